#include "reshard/base/bytes.h"
#include "reshard/format/pickle/utf8_internal.h"

namespace reshard::pickle {
namespace {

/// Bytes of the valid sequence at `p`, which does not begin with ASCII; 0 when there is none.
std::size_t SequenceSize(const unsigned char* p, std::size_t left) {
  const unsigned first = p[0];
  const std::size_t size = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  if (size == 0 || size > left) {
    return 0;
  }
  for (std::size_t i = 1; i < size; ++i) {
    if ((p[i] & 0xc0U) != 0x80) {
      return 0;
    }
  }
  const bool overlong = (first == 0xe0 && p[1] < 0xa0) || (first == 0xf0 && p[1] < 0x90);
  const bool outside = (first == 0xed && p[1] > 0x9f) || (first == 0xf4 && p[1] > 0x8f);
  return overlong || outside ? 0 : size;
}

}  // namespace

bool IsUtf8(std::string_view text) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  std::size_t i = 0;
  while (i < text.size()) {
    constexpr std::uint64_t kHighBits = 0x8080808080808080;
    if (text.size() - i >= 8 &&
        (LoadLittle<std::uint64_t>(reinterpret_cast<const std::byte*>(p + i)) & kHighBits) == 0) {
      i += 8;
      continue;
    }
    const std::size_t size = p[i] < 0x80 ? 1 : SequenceSize(p + i, text.size() - i);
    if (size == 0) {
      return false;
    }
    i += size;
  }
  return true;
}

}  // namespace reshard::pickle
