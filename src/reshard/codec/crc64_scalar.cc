// The kernel that runs everywhere: slicing by 8 (Kounavis and Berry, "A Systematic Approach to
// Building High Performance, Software-based, CRC Generators", 2005).

#include <algorithm>
#include <array>
#include <cstring>

#include "reshard/base/bytes.h"
#include "reshard/codec/crc64_internal.h"

namespace reshard::crc64 {
namespace {

using Table = std::array<std::uint64_t, 256>;

// kTables[k][b]: the linear part of byte b followed by k zero bytes.
constexpr std::array<Table, 8> MakeTables() {
  std::array<Table, 8> tables{};
  for (std::size_t byte = 0; byte < 256; ++byte) {
    std::uint64_t value = byte;
    for (int bit = 0; bit < 8; ++bit) {
      value = TimesX(value);
    }
    tables[0][byte] = value;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint64_t value = tables[k - 1][byte];
      tables[k][byte] = (value >> 8) ^ tables[0][value & 0xff];
    }
  }
  return tables;
}

constexpr std::array<Table, 8> kTables = MakeTables();

std::uint64_t Slice(std::uint64_t word) {
  return kTables[7][word & 0xff] ^ kTables[6][(word >> 8) & 0xff] ^
         kTables[5][(word >> 16) & 0xff] ^ kTables[4][(word >> 24) & 0xff] ^
         kTables[3][(word >> 32) & 0xff] ^ kTables[2][(word >> 40) & 0xff] ^
         kTables[1][(word >> 48) & 0xff] ^ kTables[0][word >> 56];
}

std::uint64_t Nest(const std::byte* data, std::uint64_t run_bytes,
                   std::span<const Crc64Loop> loops) {
  if (loops.empty()) {
    return LinearScalar(data, run_bytes, 0);
  }
  const Crc64Loop& loop = loops.front();
  const std::uint64_t step = PowerOfBytes(loop.string_stride, MultiplyScalar);
  std::uint64_t linear = 0;
  for (std::uint64_t i = 0; i < loop.count; ++i) {
    linear = MultiplyScalar(linear, step) ^ Nest(data, run_bytes, loops.subspan(1));
    data += loop.data_stride;
  }
  return linear;
}

}  // namespace

std::uint64_t LinearScalar(const std::byte* data, std::size_t size, std::uint64_t state) {
  for (; size >= 8; size -= 8, data += 8) {
    state = Slice(state ^ LoadLittle<std::uint64_t>(data));
  }
  for (; size > 0; --size, ++data) {
    state = (state >> 8) ^ kTables[0][(state ^ static_cast<std::uint64_t>(*data)) & 0xff];
  }
  return state;
}

std::uint64_t LinearCopyScalar(std::byte* dst, const std::byte* src, std::size_t size,
                               std::uint64_t state) {
  constexpr std::size_t kPiece = 4096;  // still in the first-level cache when it is summed
  while (size > 0) {
    const std::size_t piece = std::min(size, kPiece);
    std::memcpy(dst, src, piece);
    state = LinearScalar(src, piece, state);
    dst += piece;
    src += piece;
    size -= piece;
  }
  return state;
}

std::uint64_t RunsScalar(const std::byte* data, std::uint64_t run_bytes,
                         std::span<const Crc64Loop> loops) {
  return Nest(data, run_bytes, loops);
}

}  // namespace reshard::crc64
