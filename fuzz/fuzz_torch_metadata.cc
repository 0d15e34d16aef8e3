// DCP's metadata: what decodes is whole and has its boxes inside its shapes.

#include <cstddef>
#include <cstdint>

#include "reshard/base/check.h"
#include "reshard/format/torch/metadata.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  reshard::MemorySource source({reinterpret_cast<const std::byte*>(data), size});
  const auto metadata = reshard::torch::DecodeMetadata(source);
  if (!metadata.ok()) {
    return 0;
  }
  for (const auto& tensor : metadata->tensors) {
    for (const auto& chunk : tensor.chunks) {
      RESHARD_CHECK(reshard::CheckBox(chunk.box, tensor.shape, tensor.dtype).ok());
      RESHARD_CHECK(chunk.place.file < metadata->files.size());
    }
  }
  for (const auto& value : metadata->bytes) {
    RESHARD_CHECK(value.place.file < metadata->files.size());
  }
  return 0;
}
