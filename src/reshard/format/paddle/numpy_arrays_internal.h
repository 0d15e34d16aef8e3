#pragma once

// numpy arrays as they stand in pickles, and the payloads of protocol 2, which are text.
// docs/format/paddle.md section 3.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "reshard/base/byte_source.h"
#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/format/pickle/document.h"
#include "reshard/format/pickle/machine.h"
#include "reshard/tensor/box.h"

namespace reshard::paddle {

/// The names that a data file may use.
enum ArrayGlobal : std::uint16_t {
  kNdarray = 1,
  kDtypeType,
  kReconstruct,
  kFromBuffer,
  kScalar,
  kEncodeText,
  kBytesType,
  kTupleType,
  kOrderedDict,
};

std::span<const pickle::GlobalRule> ArrayGlobals();

/// Where a payload lies.
struct Payload {
  pickle::NodeId node = pickle::kNoNode;
  ByteRange source;
  bool text = false;  ///< UTF-8 of characters up to U+00FF, one for each byte.
};

/// An array, not yet checked against the size of its payload.
struct NumpyArray {
  DType dtype = DType::kUint8;
  Shape shape;
  ChunkOrder order = ChunkOrder::kRowMajor;
  Payload payload;
};

/// Whether the node is a call that makes an array.
bool IsArray(const pickle::Document& document, pickle::NodeId node);

/// Errors: kCorruption BAD_ARRAY; kUnsupported BAD_ARRAY (object arrays, big-endian dtypes).
Result<NumpyArray> ReadArray(const pickle::Document& document, pickle::NodeId node);

/// The bytes of a bytes object, whichever form it has. Errors: kCorruption BAD_ARRAY.
Result<Payload> ReadPayload(const pickle::Document& document, pickle::NodeId node);

/// A tuple or list of sizes. Errors: kCorruption BAD_ARRAY.
Result<Shape> ReadShape(const pickle::Document& document, pickle::NodeId node);

/// A dtype object. Errors: as ReadArray.
Result<DType> ReadDtype(const pickle::Document& document, pickle::NodeId node);

/// Decoded bytes between two entries of Segment::checkpoints.
inline constexpr std::uint64_t kCheckpointBytes = std::uint64_t{64} * 1024;

/// A payload of an encoded file as a part of the decoded arrays.
struct Segment {
  ByteRange source;
  bool text = false;
  std::uint64_t decoded_begin = 0;
  std::uint64_t decoded_size = 0;
  std::vector<std::uint64_t> checkpoints;  ///< Of text: source offset of each 64 KiB decoded.
};

/// Measures a payload; a text is read whole. Errors: kCorruption BAD_ARRAY (not the text of bytes).
Result<Segment> MeasurePayload(ByteSource& source, const Payload& payload);

/// Fills `out` with the decoded bytes of a segment from `offset` on.
Status ReadSegment(ByteSource& source, const Segment& segment, std::uint64_t offset,
                   MutableByteSpan out);

/// BAD_ARRAY at the node's offset.
tl::unexpected<Error> BadArray(const pickle::Document& document, pickle::NodeId node,
                               std::string_view what, ErrorCode code = ErrorCode::kCorruption);

}  // namespace reshard::paddle
