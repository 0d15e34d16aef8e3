// safetensors files: tensors lie inside of the file, one after the other, and the message for other
// ranks says the same. Opened as a checkpoint of its own, a file gives a valid catalog.

#include <cstddef>
#include <cstdint>

#include "reshard/base/check.h"
#include "reshard/format/safetensors/data_file.h"
#include "reshard/format/safetensors/format.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  reshard::MemorySource source({reinterpret_cast<const std::byte*>(data), size});
  const auto file = reshard::safetensors::ReadDataFile(source);
  if (!file.ok()) {
    RESHARD_CHECK(file.error().code == reshard::ErrorCode::kCorruption);
    return 0;
  }
  std::uint64_t bytes = 0;
  for (const auto& tensor : file->tensors) {
    const std::uint64_t own = reshard::NumBytes(tensor.shape, tensor.dtype);
    RESHARD_CHECK(tensor.offset <= size && own <= size - tensor.offset);
    bytes += own;
  }
  RESHARD_CHECK(bytes <= size - 8);
  const reshard::Bytes message = reshard::safetensors::EncodeDataFile(*file);
  const auto again = reshard::safetensors::DecodeDataFile(message);
  RESHARD_CHECK(again.ok() && reshard::safetensors::EncodeDataFile(*again) == message);
  const auto& format = reshard::safetensors::Format();
  reshard::ByteSource* const sources[] = {&source};
  for (const char* name : {"f.safetensors", "shard-00001-model-00001-of-00001.safetensors"}) {
    const reshard::ForeignRef ref = {"safetensors", name, 0};
    const auto metadata = format.ReadMetadata(ref, sources);
    RESHARD_CHECK(metadata.ok());
    const reshard::ExaminedFile examined[] = {{size, 0, message}};
    RESHARD_CHECK(format.Assemble(ref, **metadata, examined).ok());
  }
  return 0;
}
