#pragma once

// Arithmetic on untrusted 64-bit values: every function says when the true result does not fit.

#include <cstdint>
#include <optional>
#include <span>

namespace reshard {

/// a + b, or nothing when it exceeds 64 bits.
inline std::optional<std::uint64_t> CheckedAdd(std::uint64_t a, std::uint64_t b) {
  std::uint64_t out = 0;
  if (__builtin_add_overflow(a, b, &out)) {
    return std::nullopt;
  }
  return out;
}

/// a * b, or nothing when it exceeds 64 bits.
inline std::optional<std::uint64_t> CheckedMul(std::uint64_t a, std::uint64_t b) {
  std::uint64_t out = 0;
  if (__builtin_mul_overflow(a, b, &out)) {
    return std::nullopt;
  }
  return out;
}

/// The product of all values, or nothing when the product *of the non-zero values* exceeds 64 bits:
/// a zero must not hide an overflow, whatever the order. The empty product is 1.
inline std::optional<std::uint64_t> CheckedProduct(std::span<const std::uint64_t> values) {
  std::uint64_t product = 1;
  bool zero = false;
  for (std::uint64_t value : values) {
    if (value == 0) {
      zero = true;
      continue;
    }
    if (__builtin_mul_overflow(product, value, &product)) {
      return std::nullopt;
    }
  }
  return zero ? 0 : product;
}

}  // namespace reshard
