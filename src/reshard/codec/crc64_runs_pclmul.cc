// Strided runs by PCLMULQDQ. Each level is a Horner scheme in x^(8 * string_stride) whose value
// stays 128 bits wide, so that a run costs one fold (two multiplications) and the reduction modulo
// P is done once, at the end. Every run is filled up with zeros to whole blocks; as all runs have
// one length, the filler comes off once, too.

#include "reshard/codec/crc64_internal.h"

#if defined(__x86_64__)

#define RESHARD_CRC64_TARGET "pclmul,sse4.1"
#include "reshard/codec/crc64_fold_internal.h"

namespace reshard::crc64 {
namespace {

struct Level {
  std::uint64_t count = 0;
  std::int64_t data_stride = 0;
  Folded step;   // moves on by one run
  Folded step4;  // by four
};

// Loaders: the folded value of the run at `p`.

template <typename Word>
struct WordRun {
  RESHARD_CRC64_INLINE __m128i Load(const std::byte* p) const {
    return V128::State(LoadLittle<Word>(p));
  }
};

struct BlockRun {
  RESHARD_CRC64_INLINE __m128i Load(const std::byte* p) const { return V128::Load(p); }
};

struct ShortRun {
  std::size_t size;  // < 16

  RESHARD_CRC64_INLINE __m128i Load(const std::byte* p) const { return LoadShort(p, size); }
};

struct MediumRun {
  std::size_t size;  // >= 16; so short that a chain of single blocks is not the bottleneck

  RESHARD_CRC64_INLINE __m128i Load(const std::byte* p) const {
    Cursor c{p + 16, nullptr, size - 16};
    return FoldBlocks<Write::kNone>(V128::Load(p), c);
  }
};

struct LongRun {
  std::size_t size;
  FoldFunction fold;

  RESHARD_CRC64_INLINE __m128i Load(const std::byte* p) const {
    return V128::Broadcast(fold(p, size));
  }
};

template <typename Run>
RESHARD_CRC64_FN __m128i Horner(const Run& run, const Level& level, const std::byte* p) {
  const std::int64_t stride = level.data_stride;
  const __m128i step = V128::Broadcast(level.step);
  std::uint64_t left = level.count - 1;
  __m128i v = run.Load(p);
  p += stride;
  if (left >= 11) {  // four chains over interleaved runs hide the latency of the multiplication
    const __m128i step4 = V128::Broadcast(level.step4);
    __m128i v1 = run.Load(p);
    __m128i v2 = run.Load(p + stride);
    __m128i v3 = run.Load(p + 2 * stride);
    p += 3 * stride;
    for (left -= 3; left >= 4; left -= 4, p += 4 * stride) {
      v = V128::Fold(v, step4, run.Load(p));
      v1 = V128::Fold(v1, step4, run.Load(p + stride));
      v2 = V128::Fold(v2, step4, run.Load(p + 2 * stride));
      v3 = V128::Fold(v3, step4, run.Load(p + 3 * stride));
    }
    v = V128::Fold(V128::Fold(V128::Fold(v, step, v1), step, v2), step, v3);
  }
  for (; left > 0; --left, p += stride) {
    v = V128::Fold(v, step, run.Load(p));
  }
  return v;
}

template <typename Run>
RESHARD_CRC64_FN __m128i Nest(const Run& run, std::span<const Level> levels, const std::byte* p) {
  const Level& level = levels.front();
  if (levels.size() == 1) {
    return Horner(run, level, p);
  }
  const __m128i step = V128::Broadcast(level.step);
  __m128i v = _mm_setzero_si128();
  for (std::uint64_t i = 0; i < level.count; ++i, p += level.data_stride) {
    v = V128::Fold(v, step, Nest(run, levels.subspan(1), p));
  }
  return v;
}

Folded StepFactors(std::uint64_t power) {
  const std::uint64_t second = OverX(power);
  return {MultiplyPclmul(second, kPoly), second};
}

std::vector<Level> PrepareLevels(std::span<const Crc64Loop> loops) {
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

RESHARD_CRC64_FN std::uint64_t Runs(const std::byte* data, std::uint64_t run_bytes,
                                    std::span<const Crc64Loop> loops, FoldFunction fold) {
  constexpr std::uint64_t kMediumBytes = 96;
  const std::vector<Level> levels = PrepareLevels(loops);
  __m128i v = _mm_setzero_si128();
  if (run_bytes == 1) {
    v = Nest(WordRun<std::uint8_t>{}, levels, data);
  } else if (run_bytes == 2) {
    v = Nest(WordRun<std::uint16_t>{}, levels, data);
  } else if (run_bytes == 4) {
    v = Nest(WordRun<std::uint32_t>{}, levels, data);
  } else if (run_bytes == 8) {
    v = Nest(WordRun<std::uint64_t>{}, levels, data);
  } else if (run_bytes < 16) {
    v = Nest(ShortRun{run_bytes}, levels, data);
  } else if (run_bytes == 16) {
    v = Nest(BlockRun{}, levels, data);
  } else if (run_bytes <= kMediumBytes) {
    v = Nest(MediumRun{run_bytes}, levels, data);
  } else {
    v = Nest(LongRun{run_bytes, fold}, levels, data);
  }
  return Finish(v, run_bytes);
}

}  // namespace

std::uint64_t RunsPclmul(const std::byte* data, std::uint64_t run_bytes,
                         std::span<const Crc64Loop> loops) {
  return Runs(data, run_bytes, loops, FoldPclmul);
}

std::uint64_t RunsVpclmul256(const std::byte* data, std::uint64_t run_bytes,
                             std::span<const Crc64Loop> loops) {
  return Runs(data, run_bytes, loops, FoldVpclmul256);
}

}  // namespace reshard::crc64

#endif
