#pragma once

// CRC-64/XZ bit by bit from its published parameters, and random bytes: shared by the codec tests.

#include <cstddef>
#include <cstdint>
#include <random>

#include "reshard/base/bytes.h"

namespace reshard {

/// width=64 poly=42f0e1eba9ea3693 init=0 refin=true refout=true xorout=0.
inline std::uint64_t ReferenceLinear(ByteSpan data, std::uint64_t state = 0) {
  constexpr std::uint64_t kPoly = 0x42f0e1eba9ea3693;
  std::uint64_t reflected = 0;
  for (int bit = 0; bit < 64; ++bit) {
    reflected |= ((kPoly >> bit) & 1) << (63 - bit);
  }
  for (std::byte byte : data) {
    state ^= static_cast<std::uint64_t>(byte);
    for (int bit = 0; bit < 8; ++bit) {
      state = (state >> 1) ^ ((state & 1) != 0 ? reflected : 0);
    }
  }
  return state;
}

inline std::uint64_t ReferenceCrc(ByteSpan data) { return ~ReferenceLinear(data, ~0ULL); }

inline Bytes RandomBytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(size);
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(random());
  }
  return bytes;
}

}  // namespace reshard
