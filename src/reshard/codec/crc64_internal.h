#pragma once

// Polynomial arithmetic behind CRC-64/XZ, and the kernels' own functions.
//
// A std::uint64_t is a polynomial over GF(2) of degree < 64 with bit 63 the coefficient of x^0 (the
// "reflected" order in which the CRC takes the bits of a byte). P is the CRC's polynomial.
//
// Kernels with a carry-less multiplication work on a Folded: 128 bits congruent modulo P to the
// string so far. Reflected, the product of two 64-bit polynomials comes out of the instruction one
// bit too low, that is times x; factors are therefore stored divided by x.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "reshard/codec/crc64.h"

namespace reshard::crc64 {

/// P without x^64, so also x^64 modulo P.
inline constexpr std::uint64_t kPoly = 0xc96c5795d7870f42;
/// (P + 1) / x, so 1/x modulo P; also the low 64 of the 65 bits of P.
inline constexpr std::uint64_t kPolyLow = (kPoly << 1) | 1;
inline constexpr std::uint64_t kOne = 1ULL << 63;
/// From this size on a copy goes around the caches: the source piece stays in the second-level
/// cache while the destination is too long to be wanted there.
inline constexpr std::size_t kStreamingBytes = 64 << 10;

constexpr std::uint64_t TimesX(std::uint64_t a) { return (a >> 1) ^ ((a & 1) != 0 ? kPoly : 0); }

constexpr std::uint64_t OverX(std::uint64_t a) {
  return (a << 1) ^ ((a & kOne) != 0 ? kPolyLow : 0);
}

/// a * b modulo P, bit by bit.
constexpr std::uint64_t MultiplyScalar(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  for (; b != 0; b <<= 1) {
    product ^= (b & kOne) != 0 ? a : 0;
    a = TimesX(a);
  }
  return product;
}

/// x^exponent modulo P for a small exponent, which may be negative.
constexpr std::uint64_t SmallPower(int exponent) {
  std::uint64_t power = kOne;
  for (; exponent > 0; --exponent) {
    power = TimesX(power);
  }
  for (; exponent < 0; ++exponent) {
    power = OverX(power);
  }
  return power;
}

/// x^(8 * bytes) modulo P.
std::uint64_t PowerOfBytes(std::uint64_t bytes,
                           std::uint64_t (*multiply)(std::uint64_t, std::uint64_t));

/// 128 bits of a string, in memory order: `first` holds the terms x^127..x^64, `second` the rest.
struct Folded {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
};

/// The factors for the two halves of a Folded that multiply it by x^exponent.
constexpr Folded FactorPair(int exponent) {
  return {SmallPower(exponent + 63), SmallPower(exponent - 1)};
}

/// A string ends in a block of 16 bytes filled up with zeros. FinishFactors()[n] takes n filler
/// bytes off again and multiplies by the x^64 of the CRC's definition.
constexpr std::array<Folded, 16> FinishFactors() {
  std::array<Folded, 16> factors{};
  for (int fill = 0; fill < 16; ++fill) {
    factors[static_cast<std::size_t>(fill)] = FactorPair(64 - 8 * fill);
  }
  return factors;
}

/// Inverse of kPolyLow as a power series in the instruction's bit order: it finds the multiple of P
/// that cancels the low 64 bits of a product (Barrett reduction, seen from the other end).
constexpr std::uint64_t PolyInverse() {
  std::uint64_t inverse = 0;
  std::uint64_t rest = 1;
  for (int bit = 0; bit < 64; ++bit) {
    if (((rest >> bit) & 1) != 0) {
      inverse |= 1ULL << bit;
      rest ^= kPolyLow << bit;
    }
  }
  return inverse;
}

std::uint64_t LinearScalar(const std::byte* data, std::size_t size, std::uint64_t state);
std::uint64_t LinearCopyScalar(std::byte* dst, const std::byte* src, std::size_t size,
                               std::uint64_t state);
std::uint64_t RunsScalar(const std::byte* data, std::uint64_t run_bytes,
                         std::span<const Crc64Loop> loops);

#if defined(__x86_64__)
/// Folds a string, not empty, at the full width of a kernel; its last block is filled with zeros.
using FoldFunction = Folded (*)(const std::byte* data, std::size_t size);

std::uint64_t MultiplyPclmul(std::uint64_t a, std::uint64_t b);
std::uint64_t LinearPclmul(const std::byte* data, std::size_t size, std::uint64_t state);
std::uint64_t LinearCopyPclmul(std::byte* dst, const std::byte* src, std::size_t size,
                               std::uint64_t state);
Folded FoldPclmul(const std::byte* data, std::size_t size);
/// Crc64Runs, block by block; `fold` takes the long runs.
std::uint64_t RunsByBlocks(const std::byte* data, std::uint64_t run_bytes,
                           std::span<const Crc64Loop> loops, FoldFunction fold);
std::uint64_t RunsPclmul(const std::byte* data, std::uint64_t run_bytes,
                         std::span<const Crc64Loop> loops);

std::uint64_t LinearVpclmul256(const std::byte* data, std::size_t size, std::uint64_t state);
std::uint64_t LinearCopyVpclmul256(std::byte* dst, const std::byte* src, std::size_t size,
                                   std::uint64_t state);
Folded FoldVpclmul256(const std::byte* data, std::size_t size);
std::uint64_t RunsVpclmul256(const std::byte* data, std::uint64_t run_bytes,
                             std::span<const Crc64Loop> loops);
#endif

}  // namespace reshard::crc64
