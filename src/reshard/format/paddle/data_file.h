#pragma once

// Paddle's data files (`*.distcp`, `.pdparams`, `.pdopt`): a pickled dict of numpy arrays, or
// safetensors bytes. Only their structure is read; payloads are passed over.
// docs/format/paddle.md section 3.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/base/byte_source.h"
#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/catalog/flatten.h"
#include "reshard/catalog/value.h"

namespace reshard::paddle {

/// An array of a data file.
struct StoredArray {
  Path path;                    ///< One part in distributed checkpoints, more when nested.
  DType dtype = DType::kUint8;  ///< As the file says: a numpy uint16 is bfloat16.
  Shape shape;
  ChunkOrder order = ChunkOrder::kRowMajor;
  ByteRange bytes;  ///< In the file, or in its decoded arrays.
};

/// A big tensor that protocols 2 and 3 cut into parts (`UnpackBigParamInfor@@`).
struct SplitArray {
  std::string key;
  Shape shape;
  std::vector<std::string> parts;  ///< Keys of 1-D arrays, in order.
};

/// What a data file holds.
struct DataFile {
  FileEncoding encoding = FileEncoding::kRaw;
  std::uint64_t decoded_bytes = 0;  ///< Of an encoded file: all arrays together.
  bool safetensors = false;
  std::vector<StoredArray> arrays;  ///< In the file's order.
  std::vector<SplitArray> splits;
  std::optional<Value> name_table;              ///< StructuredToParameterName@@
  std::vector<std::pair<Path, Value>> objects;  ///< Other leaves of `.pdparams`, `.pdopt`.
};

/// Reasons of this decoder, beside those of the pickle machine and of safetensors headers.
inline constexpr std::string_view kBadArray = "BAD_ARRAY";

/// The key of the table from flat keys to Paddle's own parameter names.
inline constexpr std::string_view kNameTableKey = "StructuredToParameterName@@";

/// The key of the list of split tensors.
inline constexpr std::string_view kSplitKey = "UnpackBigParamInfor@@";

/// Walks the structure of a data file; told by content what it is.
/// Errors: kCorruption BAD_ARRAY (an array whose shape, dtype and bytes disagree; names key and
///         byte offset), those of pickle::Parse and safetensors::ReadHeader; kUnsupported BAD_ARRAY
///         (an object array, a big-endian dtype, a value that is no plain one).
/// Cost: reads a few hundred bytes per array, except in encoded files, which are read whole.
Result<DataFile> ReadDataFile(ByteSource& source);

/// As bytes that travel between ranks of one job.
Bytes EncodeDataFile(const DataFile& file);

/// The opposite. Errors: kInternal BAD_MESSAGE.
Result<DataFile> DecodeDataFile(ByteSpan bytes);

/// The decoded arrays of a file whose encoding is kPickleText, as a source of its own, which reads
/// from `file` (must outlive it). Bounded memory. Errors: those of ReadDataFile.
Result<std::unique_ptr<ByteSource>> DecodePickleText(ByteSource& file);

}  // namespace reshard::paddle
