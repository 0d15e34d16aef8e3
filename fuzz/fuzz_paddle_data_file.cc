// Paddle's data files: arrays lie inside of the file (or its decoded arrays), and the message for
// other ranks says the same. Opened as a checkpoint of its own, a file gives a valid catalog.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "reshard/base/check.h"
#include "reshard/format/paddle/data_file.h"
#include "reshard/format/paddle/format.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  reshard::MemorySource source({reinterpret_cast<const std::byte*>(data), size});
  const auto file = reshard::paddle::ReadDataFile(source);
  if (!file.ok()) {
    return 0;
  }
  std::uint64_t bytes = size;
  if (file->encoding == reshard::FileEncoding::kPickleText) {
    const auto decoded = reshard::paddle::DecodePickleText(source);
    RESHARD_CHECK(decoded.ok() && (*decoded)->size() == file->decoded_bytes);
    bytes = file->decoded_bytes;
    reshard::Bytes all(bytes);
    RESHARD_CHECK((*decoded)->ReadAt(0, all).ok());
  }
  for (const auto& array : file->arrays) {
    RESHARD_CHECK(array.bytes.offset <= bytes && array.bytes.size <= bytes - array.bytes.offset);
    RESHARD_CHECK(array.bytes.size == reshard::NumBytes(array.shape, array.dtype));
  }
  const reshard::Bytes message = reshard::paddle::EncodeDataFile(*file);
  const auto again = reshard::paddle::DecodeDataFile(message);
  RESHARD_CHECK(again.ok() && reshard::paddle::EncodeDataFile(*again) == message);
  const reshard::ForeignRef ref = {"paddle", "f", 0};
  const auto& format = reshard::paddle::Format();
  reshard::ByteSource* const sources[] = {&source};
  const auto metadata = format.ReadMetadata(ref, sources);
  RESHARD_CHECK(metadata.ok());
  const reshard::ExaminedFile examined[] = {{size, 0, message}};
  RESHARD_CHECK(format.Assemble(ref, **metadata, examined).ok());
  return 0;
}
