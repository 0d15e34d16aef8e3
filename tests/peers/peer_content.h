#pragma once

// The values that every tensor holds in a test with another framework: the formula of
// tests/peers/content.py once more, written apart from it.

#include <cstdint>
#include <cstring>

#include "reshard/tensor/dtype.h"

namespace reshard::testing {

/// Widest element: complex128.
inline constexpr std::size_t kMaxElementBytes = 16;

/// Bits of `eighths` / 8 as float16; |eighths| < 2048, so it is exact.
inline std::uint16_t HalfBits(int eighths) {
  if (eighths == 0) {
    return 0;
  }
  const auto sign = static_cast<unsigned>(eighths < 0) << 15;
  const auto magnitude = static_cast<unsigned>(eighths < 0 ? -eighths : eighths);
  unsigned top = 0;
  while (magnitude >> (top + 1) != 0) {
    ++top;
  }
  return static_cast<std::uint16_t>(sign | (top + 15 - 3) << 10 |
                                    ((magnitude << (10 - top)) & 0x3ff));
}

/// Bits of `eighths` / 8 as bfloat16; |eighths| < 256, so it is exact.
inline std::uint16_t BrainBits(int eighths) {
  const float value = static_cast<float>(eighths) / 8;
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<std::uint16_t>(bits >> 16);
}

template <typename T>
std::size_t PutValue(T value, std::byte* out) {
  std::memcpy(out, &value, sizeof(value));
  return sizeof(value);
}

/// Codes of -4 ... 3 with 4 exponent and 3 mantissa bits, or 5 and 2.
inline std::uint8_t Float8Code(std::uint64_t index, bool e4m3) {
  static constexpr std::uint8_t kE4m3[] = {0xc8, 0xc4, 0xc0, 0xb8, 0x00, 0x38, 0x40, 0x44};
  static constexpr std::uint8_t kE5m2[] = {0xc4, 0xc2, 0xc0, 0xbc, 0x00, 0x3c, 0x40, 0x42};
  return e4m3 ? kE4m3[index] : kE5m2[index];
}

/// Writes element `index` of a tensor with `seed`; returns its size, 0 for a dtype that peers do
/// not exchange.
inline std::size_t PutElement(DType dtype, std::uint64_t index, std::uint64_t seed,
                              std::byte* out) {
  const std::uint64_t u = (7 * index + 13 * (index / 251) + seed) % 251;
  const int w = static_cast<int>(u) - 125;
  switch (dtype) {
    case DType::kBool:
      return PutValue(static_cast<std::uint8_t>(u % 2), out);
    case DType::kUint8:
      return PutValue(static_cast<std::uint8_t>(u), out);
    case DType::kUint16:
      return PutValue(static_cast<std::uint16_t>(u), out);
    case DType::kUint32:
      return PutValue(static_cast<std::uint32_t>(u), out);
    case DType::kUint64:
      return PutValue(u * 4294967297, out);
    case DType::kInt8:
      return PutValue(static_cast<std::int8_t>(w), out);
    case DType::kInt16:
      return PutValue(static_cast<std::int16_t>(w), out);
    case DType::kInt32:
      return PutValue(static_cast<std::int32_t>(w), out);
    case DType::kInt64:
      return PutValue(static_cast<std::int64_t>(w) * 4294967297, out);
    case DType::kFloat16:
      return PutValue(HalfBits(w), out);
    case DType::kBfloat16:
      return PutValue(BrainBits(w), out);
    case DType::kFloat32:
      return PutValue(static_cast<float>(w) / 8, out);
    case DType::kFloat64:
      return PutValue(static_cast<double>(w) / 8, out);
    case DType::kComplex32:
      PutValue(HalfBits(w), out);
      return 2 + PutValue(HalfBits(-2 * w), out + 2);
    case DType::kComplex64:
      PutValue(static_cast<float>(w) / 8, out);
      return 4 + PutValue(static_cast<float>(-w) / 4, out + 4);
    case DType::kComplex128:
      PutValue(static_cast<double>(w) / 8, out);
      return 8 + PutValue(static_cast<double>(-w) / 4, out + 8);
    case DType::kFloat8E4m3fn:
    case DType::kFloat8E5m2:
      return PutValue(Float8Code(u % 8, dtype == DType::kFloat8E4m3fn), out);
    case DType::kFloat8E4m3fnuz:
    case DType::kFloat8E5m2fnuz:
    case DType::kFloat8E8m0fnu:
      return PutValue(static_cast<std::uint8_t>(u), out);
    default:
      return 0;
  }
}

}  // namespace reshard::testing
