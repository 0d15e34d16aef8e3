#pragma once

// PyTorch DCP's `.metadata`: a pickle of one Metadata object. Read without executing anything, from
// torch 1.13 on; written as the least that torch 2.6 and later accept. docs/format/torch_dcp.md.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/byte_source.h"
#include "reshard/base/result.h"
#include "reshard/catalog/flatten.h"
#include "reshard/tensor/box.h"
#include "reshard/tensor/dtype.h"

namespace reshard::torch {

/// Where a record (one torch.save archive) lies: `_StorageInfo`.
struct RecordPlace {
  std::uint32_t file = 0;  ///< Index into Metadata::files.
  ByteRange bytes;         ///< In the file, as stored (compressed, where it is).
  bool zstd = false;       ///< transform_descriptors is ['stream.zstd/1'].
  bool operator==(const RecordPlace&) const = default;
};

/// A chunk of a tensor.
struct MetadataChunk {
  Box box;
  RecordPlace place;
};

/// An entry of state_dict_metadata that is a tensor.
struct MetadataTensor {
  std::string key;
  std::optional<Path> path;  ///< Of planner_data, when it has the key.
  DType dtype = DType::kUint8;
  Shape shape;
  std::vector<MetadataChunk> chunks;
};

/// An entry that is anything else: a record that holds a pickled value.
struct MetadataBytes {
  std::string key;
  std::optional<Path> path;
  RecordPlace place;
};

/// The whole metadata.
struct Metadata {
  std::vector<std::string> files;  ///< Each once, as first named; not to be trusted as names.
  std::vector<MetadataTensor> tensors;
  std::vector<MetadataBytes> bytes;
};

/// Reasons of this decoder, beside those of the pickle machine.
inline constexpr std::string_view kBadMetadata = "BAD_METADATA";

/// Reads a metadata file. Unknown fields are passed over (Megatron adds some), missing ones have
/// the defaults of the classes. Chunks are found by (fqn, offset), as torch does.
/// Errors: kCorruption BAD_METADATA (a missing or malformed field, a chunk without a record; names
/// key and byte offset), those of pickle::Parse and of CheckShape; kUnsupported BAD_METADATA (a
/// dtype or transform that is not known; names it). Memory: at most 64 MiB and 8 times the source,
/// the pickle's document included (LIMIT).
Result<Metadata> DecodeMetadata(ByteSource& source);

/// Every chunk and value needs a place, every entry a path. Deterministic. No storage_meta, no
/// version; protocol 4, as torch itself. torch 2.6 and later read it.
Bytes EncodeMetadata(const Metadata& metadata);

}  // namespace reshard::torch
