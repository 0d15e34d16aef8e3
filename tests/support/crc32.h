#pragma once

// CRC-32 as zip and zlib have it, bit by bit: the checksum of tests/golden/paddle's expected values.

#include <cstdint>

#include "reshard/base/bytes.h"

namespace reshard::testing {

inline std::uint32_t Crc32(ByteSpan bytes) {
  std::uint32_t crc = 0xffffffff;
  for (const std::byte b : bytes) {
    crc ^= std::to_integer<std::uint32_t>(b);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc & 1) != 0 ? crc >> 1 ^ 0xedb88320 : crc >> 1;
    }
  }
  return ~crc;
}

}  // namespace reshard::testing
