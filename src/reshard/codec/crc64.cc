#include "reshard/codec/crc64.h"

#include <array>

#include "reshard/codec/crc64_internal.h"

namespace reshard {
namespace {

constexpr std::array kAllKernels = {
    Crc64Kernel{"scalar", crc64::LinearScalar, crc64::LinearCopyScalar, crc64::RunsScalar,
                crc64::MultiplyScalar},
#if defined(__x86_64__)
    Crc64Kernel{"pclmul", crc64::LinearPclmul, crc64::LinearCopyPclmul, crc64::RunsPclmul,
                crc64::MultiplyPclmul},
    Crc64Kernel{"vpclmul256", crc64::LinearVpclmul256, crc64::LinearCopyVpclmul256,
                crc64::RunsVpclmul256, crc64::MultiplyPclmul},
#endif
};

// Each kernel needs what the one before it needs, and more.
std::size_t CountSupported() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("pclmul") || !__builtin_cpu_supports("sse4.1")) {
    return 1;
  }
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("vpclmulqdq")) {
    return 2;
  }
#endif
  return kAllKernels.size();
}

const Crc64Kernel& Active() {
  static const Crc64Kernel& kernel = Crc64Kernels().back();
  return kernel;
}

constexpr std::array<std::uint64_t, 64> MakePowers() {
  std::array<std::uint64_t, 64> powers{};
  powers[0] = crc64::SmallPower(8);
  for (std::size_t k = 1; k < powers.size(); ++k) {
    powers[k] = crc64::MultiplyScalar(powers[k - 1], powers[k - 1]);
  }
  return powers;
}

// kPowers[k]: x^(8 * 2^k) modulo P.
constexpr std::array<std::uint64_t, 64> kPowers = MakePowers();

// Whether `outer` only continues `inner`, so that the two are one loop.
bool Continues(const Crc64Loop& outer, const Crc64Loop& inner) {
  std::int64_t data_span = 0;
  std::uint64_t string_span = 0;
  std::uint64_t count = 0;
  return !__builtin_mul_overflow(inner.data_stride, inner.count, &data_span) &&
         !__builtin_mul_overflow(inner.string_stride, inner.count, &string_span) &&
         !__builtin_mul_overflow(outer.count, inner.count, &count) &&
         outer.data_stride == data_span && outer.string_stride == string_span;
}

// Loops without those that run once, and with those merged that continue each other.
std::vector<Crc64Loop> Simplify(std::span<const Crc64Loop> loops) {
  std::vector<Crc64Loop> simple;
  simple.reserve(loops.size());
  for (const Crc64Loop& loop : loops) {
    if (loop.count == 1) {
      continue;
    }
    if (!simple.empty() && Continues(simple.back(), loop)) {
      simple.back() = {simple.back().count * loop.count, loop.data_stride, loop.string_stride};
    } else {
      simple.push_back(loop);
    }
  }
  return simple;
}

}  // namespace

namespace crc64 {

std::uint64_t PowerOfBytes(std::uint64_t bytes,
                           std::uint64_t (*multiply)(std::uint64_t, std::uint64_t)) {
  if (bytes == 0) {
    return kOne;
  }
  std::uint64_t power = kPowers[static_cast<std::size_t>(std::countr_zero(bytes))];
  for (bytes &= bytes - 1; bytes != 0; bytes &= bytes - 1) {
    power = multiply(power, kPowers[static_cast<std::size_t>(std::countr_zero(bytes))]);
  }
  return power;
}

}  // namespace crc64

std::span<const Crc64Kernel> Crc64Kernels() {
  static const std::size_t count = CountSupported();
  return std::span<const Crc64Kernel>(kAllKernels).first(count);
}

std::uint64_t Crc64(ByteSpan data) { return ~Crc64Linear(data, ~0ULL); }

std::uint64_t Crc64Linear(ByteSpan data, std::uint64_t state) {
  return Active().linear(data.data(), data.size(), state);
}

std::uint64_t Crc64LinearCopy(std::byte* dst, const std::byte* src, std::size_t size,
                              std::uint64_t state) {
  return Active().linear_copy(dst, src, size, state);
}

std::uint64_t Crc64Shift(std::uint64_t linear, std::uint64_t bytes) {
  return Crc64Shifter(bytes)(linear);
}

std::uint64_t Crc64Constant(std::uint64_t bytes) { return ~Crc64Shift(~0ULL, bytes); }

std::uint64_t Crc64Combine(std::uint64_t crc_a, std::uint64_t crc_b, std::uint64_t bytes_b) {
  // The constants work out: shift(~shift(~0, a), b) ^ ~shift(~0, b) == ~shift(~0, a + b).
  return Crc64Shift(crc_a, bytes_b) ^ crc_b;
}

Crc64Shifter::Crc64Shifter(std::uint64_t bytes)
    : factor_(crc64::PowerOfBytes(bytes, Active().multiply)) {}

std::uint64_t Crc64Shifter::operator()(std::uint64_t linear) const {
  return Active().multiply(linear, factor_);
}

std::uint64_t Crc64Runs(const std::byte* data, std::uint64_t run_bytes,
                        std::span<const Crc64Loop> loops) {
  bool empty = run_bytes == 0;
  for (const Crc64Loop& loop : loops) {
    empty = empty || loop.count == 0;
  }
  if (empty) {
    return 0;
  }
  std::vector<Crc64Loop> simple = Simplify(loops);
  const auto is_dense = [&] {  // the runs of the innermost loop touch: they are one longer run
    return !simple.empty() && simple.back().string_stride == run_bytes &&
           static_cast<std::uint64_t>(simple.back().data_stride) == run_bytes &&
           run_bytes * simple.back().count / run_bytes == simple.back().count;
  };
  while (is_dense()) {
    run_bytes *= simple.back().count;
    simple.pop_back();
  }
  return Active().runs(data, run_bytes, simple);
}

}  // namespace reshard
