#pragma once

// The classes and fields of Paddle's metadata pickles, for the decoder and the encoder.
// docs/format/paddle.md section 2.

#include <array>
#include <cstdint>
#include <string_view>

namespace reshard::paddle {

inline constexpr std::string_view kLegacyModule = "paddle.distributed.checkpoint.metadata";
inline constexpr std::string_view kFlexModule = "paddle.distributed.flex_checkpoint.dcp.metadata";

inline constexpr std::string_view kMetadataClass = "Metadata";
inline constexpr std::string_view kTensorClass = "LocalTensorMetadata";
inline constexpr std::string_view kIndexClass = "LocalTensorIndex";

/// The fields of all three classes.
enum class Field : std::uint8_t {
  kStateDictMetadata,
  kStorageMetadata,
  kFlatMapping,
  kTensorKey,
  kGlobalOffset,
  kLocalShape,
  kDtype,
  kGlobalShape,
  kIsFlattened,
  kFlattenedRange,
  kReplicaId,
  kCount,
};

inline constexpr std::array<std::string_view, static_cast<std::size_t>(Field::kCount)> kFieldNames =
    {"state_dict_metadata", "storage_metadata", "flat_mapping",    "tensor_key",
     "global_offset",       "local_shape",      "dtype",           "global_shape",
     "is_flattened",        "flattened_range",  "replica_id"};

}  // namespace reshard::paddle
