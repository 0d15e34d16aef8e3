#pragma once

// Paddle's `{id}.metadata`: a pickle of one Metadata object, all field sets from 2.6 on.
// docs/format/paddle.md section 2.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/base/byte_source.h"
#include "reshard/base/result.h"
#include "reshard/catalog/flatten.h"
#include "reshard/tensor/box.h"
#include "reshard/tensor/dtype.h"

namespace reshard::paddle {

/// A flattened range of a piece: elements [begin, end) of the row-major local block.
struct FlatRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  bool operator==(const FlatRange&) const = default;
};

/// One stored piece: an entry of storage_metadata joined with its shape.
struct Piece {
  Shape global_offset;
  Shape local_shape;
  std::optional<FlatRange> flat;  ///< The stored array is then 1-D.
  std::uint32_t file = 0;         ///< Index into Metadata::files.
  std::uint64_t replica = 0;      ///< 0: the main copy.
};

/// A tensor and its pieces.
struct MetadataTensor {
  std::string key;
  std::optional<DType> dtype;  ///< Not in 2.6's.
  std::optional<Shape> shape;  ///< Only where stored (3.2 on).
  std::vector<Piece> pieces;   ///< In the order stored.
};

/// The whole metadata.
struct Metadata {
  std::vector<std::string> files;       ///< Each once, as first named; not to be trusted as names.
  std::vector<MetadataTensor> tensors;  ///< In the order stored.
  bool has_flat_mapping = false;
  std::vector<std::pair<std::string, Path>> flat_mapping;  ///< Keys without tensors too.
};

/// Reasons of this decoder, beside those of the pickle machine.
inline constexpr std::string_view kBadMetadata = "BAD_METADATA";
inline constexpr std::string_view kBadRelease = "BAD_RELEASE";

/// Reads a metadata file. Lists stand for tuples, unknown fields are passed over, missing ones have
/// the defaults of the classes. File names come as they are: whoever opens them checks them first
/// (a name with "..", "/" or another absolute form must never be opened).
/// Errors: kCorruption BAD_METADATA (a missing or malformed field; names key and byte offset),
/// those of pickle::Parse (LIMIT also when shared parts expand to more than kExpansion times the
/// source) and of CheckShape. Cost: 640,000 pieces in about a second (tests/format/paddle).
Result<Metadata> DecodeMetadata(ByteSource& source);

/// Most bytes that the metadata and the pickle's document may take together for each byte of the
/// source, beside 64 MiB.
inline constexpr std::uint64_t kExpansion = 8;

/// Which releases must be able to read it.
enum class Flavour {
  kLegacy,  ///< 2.6 to 3.1: paddle.distributed.checkpoint.metadata
  kFlex,    ///< 3.2 on: paddle.distributed.flex_checkpoint.dcp.metadata
};

/// The release of a name such as "3.1" or "3.3.1". Errors: kInvalidArgument BAD_RELEASE, with those
/// that are known.
Result<Flavour> FlavourOfRelease(std::string_view release);

/// Protocol 4, the full field set. Every tensor needs dtype and shape. Deterministic.
Bytes EncodeMetadata(const Metadata& metadata, Flavour flavour);

}  // namespace reshard::paddle
