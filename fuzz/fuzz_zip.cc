// Zip archives: what opens has members that lie in the input and do not meet.

#include <cstddef>
#include <cstdint>

#include "reshard/base/check.h"
#include "reshard/format/zip/archive.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  reshard::MemorySource source({reinterpret_cast<const std::byte*>(data), size});
  const auto archive = reshard::zip::Archive::Open(source, {0, size});
  if (!archive.ok()) {
    return 0;
  }
  std::uint64_t end = 0;
  for (const reshard::zip::Member& member : archive->members()) {
    const auto payload = archive->Locate(member);
    if (payload.ok()) {
      RESHARD_CHECK(payload->offset >= end && payload->end() <= size);
      end = payload->end();
    }
  }
  return 0;
}
