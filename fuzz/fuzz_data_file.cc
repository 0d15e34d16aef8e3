// Headers of data files, as they come and with the sizes and the checksum made right.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "reshard/base/check.h"
#include "reshard/codec/crc64.h"
#include "reshard/format/native/data_file.h"

namespace {

using reshard::native::kHeadBytes;

void Try(reshard::ByteSpan bytes) {
  const auto head = reshard::native::DecodeHead(bytes);
  const auto fragment = reshard::native::DecodeFragment(bytes);
  if (head.ok()) {
    RESHARD_CHECK(head->payload_offset % kHeadBytes == 0);
    RESHARD_CHECK(head->file_size >= head->payload_offset);
  }
  RESHARD_CHECK(head.ok() || !fragment.ok());
}

/// Overwrites the `width` characters behind the first `name`, if they are there.
void Put(reshard::Bytes& bytes, std::string_view name, std::uint64_t value, std::uint64_t base,
         std::size_t width) {
  const std::size_t at = reshard::AsText(bytes).find(name);
  if (at == std::string_view::npos || at + name.size() + width > bytes.size()) {
    return;
  }
  for (std::size_t i = width; i-- > 0; value /= base) {
    bytes[at + name.size() + i] = static_cast<std::byte>("0123456789abcdef"[value % base]);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  Try({begin, size});
  reshard::Bytes fixed(begin, begin + size);
  fixed.resize(std::max((fixed.size() + kHeadBytes - 1) / kHeadBytes, std::size_t{1}) * kHeadBytes,
               std::byte{' '});
  reshard::StoreLittle<std::uint64_t>(fixed.data(), fixed.size() - 8);
  Put(fixed, " size=", fixed.size() + 100, 10, 20);
  Put(fixed, " payload=", fixed.size(), 10, 20);
  Put(fixed, " rest=", reshard::Crc64(reshard::ByteSpan(fixed).subspan(kHeadBytes)), 16, 16);
  Try(fixed);
  return 0;
}
