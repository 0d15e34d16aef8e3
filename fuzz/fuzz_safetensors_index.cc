// Hugging Face's index: files and tensors are sorted, each once, and what is written again reads
// the same. With all its files missing it gives a valid catalog, and a fault for each.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "reshard/base/check.h"
#include "reshard/format/safetensors/format.h"
#include "reshard/format/safetensors/index.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  reshard::MemorySource source({reinterpret_cast<const std::byte*>(data), size});
  const auto index = reshard::safetensors::DecodeIndex(source);
  if (!index.ok()) {
    RESHARD_CHECK(index.error().code == reshard::ErrorCode::kCorruption);
    return 0;
  }
  RESHARD_CHECK(std::is_sorted(index->files.begin(), index->files.end()));
  for (const auto& entry : index->tensors) {
    RESHARD_CHECK(entry.file < index->files.size() && index->Find(entry.name) == &entry);
  }
  const std::string text = reshard::safetensors::EncodeIndex(*index);
  reshard::MemorySource again_source(reshard::AsBytes(text));
  const auto again = reshard::safetensors::DecodeIndex(again_source);
  RESHARD_CHECK(again.ok() && again->tensors == index->tensors && again->files == index->files);
  const auto& format = reshard::safetensors::Format();
  const reshard::ForeignRef ref = {"safetensors", "model.safetensors.index.json", 0};
  reshard::ByteSource* const sources[] = {&source};
  const auto metadata = format.ReadMetadata(ref, sources);
  RESHARD_CHECK(metadata.ok());
  std::vector<reshard::ExaminedFile> examined(index->files.size());
  for (reshard::ExaminedFile& file : examined) {
    file.found = reshard::MakeError(reshard::ErrorCode::kNotFound, "FILE_MISSING", "missing");
  }
  const auto assembled = format.Assemble(ref, **metadata, examined);
  RESHARD_CHECK(assembled.ok() && assembled->faults.size() == index->files.size());
  return 0;
}
