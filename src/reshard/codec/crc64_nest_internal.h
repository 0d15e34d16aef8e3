#pragma once

// Nested loops over runs. Each level is a Horner scheme in x^(8 * string_stride) whose value stays
// 128 bits wide, so that a step costs one fold (two multiplications) and the reduction modulo P is
// done once, at the end. Included once a source, like crc64_fold_internal.h.

#include <span>
#include <vector>

#include "reshard/codec/crc64_fold_internal.h"

namespace reshard::crc64 {
namespace {

/// A loop, with the factors that move a Folded on by one step and by four.
struct Level {
  std::uint64_t count = 0;
  std::int64_t data_stride = 0;
  Folded step;
  Folded step4;
};

/// The factors that move a Folded on where `power` is x^(8 * distance).
inline Folded StepFactors(std::uint64_t power) {
  const std::uint64_t second = OverX(power);
  return {MultiplyPclmul(second, kPoly), second};
}

/// There is at least one level.
inline std::vector<Level> PrepareLevels(std::span<const Crc64Loop> loops) {
  std::vector<Level> levels;
  levels.reserve(loops.size() + 1);
  for (const Crc64Loop& loop : loops) {
    const std::uint64_t power = PowerOfBytes(loop.string_stride, MultiplyPclmul);
    const std::uint64_t power2 = MultiplyPclmul(power, power);
    levels.push_back({loop.count, loop.data_stride, StepFactors(power),
                      StepFactors(MultiplyPclmul(power2, power2))});
  }
  if (levels.empty()) {
    levels.push_back({1, 0, {}, {}});
  }
  return levels;
}

/// `inner.Sum(level, p)` is the folded value of the innermost loop from `p` on.
template <typename Inner>
RESHARD_CRC64_FN __m128i Nest(const Inner& inner, std::span<const Level> levels,
                              const std::byte* p) {
  const Level& level = levels.front();
  if (levels.size() == 1) {
    return inner.Sum(level, p);
  }
  const __m128i step = V128::Broadcast(level.step);
  __m128i v = _mm_setzero_si128();
  for (std::uint64_t i = 0; i < level.count; ++i, p += level.data_stride) {
    v = V128::Fold(v, step, Nest(inner, levels.subspan(1), p));
  }
  return v;
}

}  // namespace
}  // namespace reshard::crc64
