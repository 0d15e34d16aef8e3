// Strided runs by PCLMULQDQ. Each level is a Horner scheme in x^(8 * string_stride) whose value
// stays 128 bits wide, so that a run costs one fold (two multiplications) and the reduction modulo
// P is done once, at the end. Every run is filled up with zeros to whole blocks; as all runs have
// one length, the filler comes off once, too.

#include "reshard/codec/crc64_internal.h"

#if defined(__x86_64__)

#define RESHARD_CRC64_TARGET "pclmul,sse4.1"
#include "reshard/codec/crc64_nest_internal.h"

namespace reshard::crc64 {
namespace {

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
struct HornerLoop {
  Run run;

  RESHARD_CRC64_FN __m128i Sum(const Level& level, const std::byte* p) const {
    return Horner(run, level, p);
  }
};

template <typename Run>
RESHARD_CRC64_FN std::uint64_t NestRuns(const Run& run, std::uint64_t run_bytes,
                                        std::span<const Crc64Loop> loops, const std::byte* p) {
  return Finish(Nest(HornerLoop<Run>{run}, PrepareLevels(loops), p), run_bytes);
}

}  // namespace

std::uint64_t RunsByBlocks(const std::byte* data, std::uint64_t run_bytes,
                           std::span<const Crc64Loop> loops, FoldFunction fold) {
  constexpr std::uint64_t kMediumBytes = 96;
  switch (run_bytes) {
    case 1:
      return NestRuns(WordRun<std::uint8_t>{}, run_bytes, loops, data);
    case 2:
      return NestRuns(WordRun<std::uint16_t>{}, run_bytes, loops, data);
    case 4:
      return NestRuns(WordRun<std::uint32_t>{}, run_bytes, loops, data);
    case 8:
      return NestRuns(WordRun<std::uint64_t>{}, run_bytes, loops, data);
    case 16:
      return NestRuns(BlockRun{}, run_bytes, loops, data);
    default:
      break;
  }
  if (run_bytes < 16) {
    return NestRuns(ShortRun{run_bytes}, run_bytes, loops, data);
  }
  if (run_bytes <= kMediumBytes) {
    return NestRuns(MediumRun{run_bytes}, run_bytes, loops, data);
  }
  return NestRuns(LongRun{run_bytes, fold}, run_bytes, loops, data);
}

std::uint64_t RunsPclmul(const std::byte* data, std::uint64_t run_bytes,
                         std::span<const Crc64Loop> loops) {
  return RunsByBlocks(data, run_bytes, loops, FoldPclmul);
}

}  // namespace reshard::crc64

#endif
