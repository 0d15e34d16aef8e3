// Records of DCP: a tensor's parts lie in the input.

#include <cstddef>
#include <cstdint>

#include "reshard/base/check.h"
#include "reshard/format/torch/record.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  reshard::MemorySource source({reinterpret_cast<const std::byte*>(data), size});
  static_cast<void>(reshard::torch::ReadValueRecord(source, {0, size}));
  const auto tensor = reshard::torch::ReadTensorRecord(source, {0, size});
  if (!tensor.ok()) {
    return 0;
  }
  const auto parts = reshard::torch::StridedToChunks(
      reshard::WholeBox(tensor->shape), tensor->stride, tensor->byte_offset, tensor->dtype, 100);
  for (std::size_t i = 0; parts.ok() && i < parts->size(); ++i) {
    const reshard::torch::DensePart& part = (*parts)[i];
    RESHARD_CHECK(part.byte_offset <= size &&
                  reshard::NumBytes(part.box, tensor->dtype) <= size - part.byte_offset);
  }
  return 0;
}
