#pragma once

// CRC-64/XZ (reflected ECMA-182 polynomial, init and final all ones; check value of "123456789":
// 995dc9bbdf1939fa) and its algebra.
//
// A CRC is linear over GF(2). The *linear part* of a byte string is its CRC with init 0 and without
// the final inversion; linear parts of pieces, each shifted by the bytes that follow it, XOR to the
// linear part of the whole. The constant that init and final contribute depends on the length
// alone. So the CRC of a tensor can be put together from the pieces that many ranks hold.
//
// Source: ECMA-182 annex B; Gopal et al., "Fast CRC Computation for Generic Polynomials Using
// PCLMULQDQ Instruction", Intel 2009. Thread-safe: all functions are pure.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "reshard/base/bytes.h"

namespace reshard {

/// CRC-64/XZ of `data`. The CRC of nothing is 0.
std::uint64_t Crc64(ByteSpan data);

/// The linear part of (what gave `state`) followed by `data`.
std::uint64_t Crc64Linear(ByteSpan data, std::uint64_t state = 0);

/// Copies `size` bytes and returns what Crc64Linear would, in one pass. Large copies use
/// non-temporal stores. No overlap.
std::uint64_t Crc64LinearCopy(std::byte* dst, const std::byte* src, std::size_t size,
                              std::uint64_t state = 0);

/// Linear part of the string behind `linear` followed by `bytes` zero bytes.
std::uint64_t Crc64Shift(std::uint64_t linear, std::uint64_t bytes);

/// What init and final add to the linear part of a string of `bytes` bytes:
/// Crc64(s) == Crc64Linear(s) ^ Crc64Constant(s.size()).
std::uint64_t Crc64Constant(std::uint64_t bytes);

/// CRC of A followed by B from their CRCs and B's length.
std::uint64_t Crc64Combine(std::uint64_t crc_a, std::uint64_t crc_b, std::uint64_t bytes_b);

/// Crc64Shift by a fixed distance, prepared once: one multiplication an application.
class Crc64Shifter {
 public:
  explicit Crc64Shifter(std::uint64_t bytes);
  std::uint64_t operator()(std::uint64_t linear) const;

 private:
  std::uint64_t factor_;
};

/// One loop over runs: where run i+1 starts after run i in memory, and in the string.
struct Crc64Loop {
  std::uint64_t count = 1;
  std::int64_t data_stride = 0;     ///< bytes in memory
  std::uint64_t string_stride = 0;  ///< bytes in the string; >= what the inner loops span
};

/// Linear part of a string that holds `run_bytes` bytes at every combination of the loops
/// (outermost first) and zeros between, up to the end of the last run.
std::uint64_t Crc64Runs(const std::byte* data, std::uint64_t run_bytes,
                        std::span<const Crc64Loop> loops);

/// One implementation of the functions above, for tests and benchmarks.
struct Crc64Kernel {
  std::string_view name;  ///< "scalar", "pclmul" (128 bits wide), "vpclmul256"
  /// Crc64Linear.
  std::uint64_t (*linear)(const std::byte* data, std::size_t size, std::uint64_t state);
  /// Crc64LinearCopy.
  std::uint64_t (*linear_copy)(std::byte* dst, const std::byte* src, std::size_t size,
                               std::uint64_t state);
  /// Crc64Runs; neither `run_bytes` nor a count may be 0.
  std::uint64_t (*runs)(const std::byte* data, std::uint64_t run_bytes,
                        std::span<const Crc64Loop> loops);
  /// Product of two polynomials modulo the CRC's; bit 63 is the coefficient of x^0.
  std::uint64_t (*multiply)(std::uint64_t a, std::uint64_t b);
};

/// The kernels this processor runs, slowest first; the last one is used.
std::span<const Crc64Kernel> Crc64Kernels();

}  // namespace reshard
