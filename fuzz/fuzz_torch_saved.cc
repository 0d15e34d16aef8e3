// Files of torch.save, in the zip form and the older one: what is found of a tensor lies in the
// input.

#include <cstddef>
#include <cstdint>

#include "reshard/base/check.h"
#include "reshard/format/torch/saved_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  reshard::MemorySource source({reinterpret_cast<const std::byte*>(data), size});
  const auto file = reshard::torch::ReadSavedFile(source);
  if (!file.ok()) {
    return 0;
  }
  for (const reshard::torch::SavedTensor& tensor : file->tensors) {
    for (const reshard::torch::DensePart& part : tensor.parts) {
      RESHARD_CHECK(part.byte_offset <= size &&
                    reshard::NumBytes(part.box, tensor.dtype) <= size - part.byte_offset);
    }
  }
  return 0;
}
