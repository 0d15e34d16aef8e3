#pragma once

// What one safetensors file holds, for the assembly of a catalog: its header, and where PyTorch DCP
// says that its tensors lie in larger ones. docs/format/safetensors.md section 4.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/byte_source.h"
#include "reshard/base/result.h"
#include "reshard/tensor/box.h"
#include "reshard/tensor/dtype.h"

namespace reshard::safetensors {

/// The key of `__metadata__` under which DCP says where tensors lie.
inline constexpr std::string_view kShardingKey = "DCP_SHARDING_INFO";

/// A tensor of a file.
struct StoredTensor {
  std::string name;
  DType dtype = DType::kUint8;
  Shape shape;
  std::uint64_t offset = 0;    ///< In the file.
  std::optional<Index> place;  ///< Its offset in a larger tensor, as many axes as `shape`.
};

/// A file.
struct DataFile {
  std::vector<StoredTensor> tensors;       ///< In the order of their bytes.
  bool has_sharding = false;               ///< Whether DCP_SHARDING_INFO is there.
  std::vector<std::string> metadata_keys;  ///< Of `__metadata__`, those that mean nothing here.
};

/// Reads the header. Errors: those of ReadHeader; BAD_METADATA of a DCP_SHARDING_INFO that does not
/// decode, or has other axes than the tensor.
Result<DataFile> ReadDataFile(ByteSource& source);

/// As bytes for another rank, and back. Errors: kInternal BAD_MESSAGE.
Bytes EncodeDataFile(const DataFile& file);
Result<DataFile> DecodeDataFile(ByteSpan bytes);

}  // namespace reshard::safetensors
