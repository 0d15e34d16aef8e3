// Strided runs by VPCLMULQDQ. A run of 32 bytes or more is cut into columns, one register wide, and
// the Horner scheme of the innermost loop (crc64_nest_internal.h) goes down each column on its own:
// no run is folded to one value, so that a byte costs what it costs in one long string, and the
// columns hide each other's latency.
//
// With more than kMaxColumns columns a run is cut into chunks of as many columns, and the scheme
// goes down the chunks of a run, then on to the next run. The last register of a run ends where the
// run ends; bytes that an earlier register has covered are masked out of it, since zeros in front
// cost nothing.

#include "reshard/codec/crc64_internal.h"

#if defined(__x86_64__)

#define RESHARD_CRC64_TARGET "avx2,pclmul,sse4.1,vpclmulqdq"
#include "reshard/codec/crc64_nest_internal.h"
#include "reshard/codec/crc64_v256_internal.h"

namespace reshard::crc64 {
namespace {

constexpr std::size_t kRegister = V256::kBytes;
constexpr std::size_t kMaxColumns = 8;
// Beyond this the folding of each run to one value no longer shows.
constexpr std::size_t kMaxColumnRun = 4096;

struct Columns {
  std::size_t count = 0;             // columns of a chunk
  std::size_t chunks = 0;            // chunks of a run
  std::size_t tail = 0;              // where the last chunk starts
  std::size_t last = 0;              // where the last register starts
  Folded to_chunk, to_tail, to_run;  // move on to the next chunk, last chunk, next run
  Folded to_last;                    // from the last column but one to the last
  alignas(kRegister) std::array<std::uint8_t, kMaxColumns * kRegister> mask{};  // of the last chunk
};

Folded Distance(std::uint64_t bytes) { return StepFactors(PowerOfBytes(bytes, MultiplyPclmul)); }

Columns PlanColumns(std::size_t run_bytes, std::uint64_t string_stride) {
  const std::size_t registers = (run_bytes + kRegister - 1) / kRegister;
  Columns plan;
  plan.chunks = (registers + kMaxColumns - 1) / kMaxColumns;
  plan.count = (registers + plan.chunks - 1) / plan.chunks;
  const std::size_t chunk_bytes = plan.count * kRegister;
  const bool single = plan.chunks == 1;
  plan.tail = single ? 0 : run_bytes - chunk_bytes;
  plan.last = run_bytes - kRegister;
  plan.to_chunk = Distance(chunk_bytes);
  plan.to_tail = Distance(run_bytes - (plan.chunks - 1) * chunk_bytes);
  plan.to_run = Distance(string_stride - plan.tail);
  plan.to_last =
      plan.count == 1 ? Folded{} : Distance(plan.last - (plan.tail + (plan.count - 2) * kRegister));
  for (std::size_t column = 0; column < plan.count; ++column) {
    const bool is_last = column + 1 == plan.count;
    const std::size_t start = is_last ? plan.last : plan.tail + column * kRegister;
    const std::size_t covered =
        single ? column * kRegister : (plan.chunks - 1) * chunk_bytes;  // by earlier registers
    for (std::size_t i = 0; i < kRegister; ++i) {
      plan.mask[column * kRegister + i] = start + i < covered ? 0 : 0xff;
    }
  }
  return plan;
}

template <std::size_t... kIndex>
RESHARD_CRC64_INLINE void AdvanceFull(Accumulators<V256, sizeof...(kIndex)>& acc, __m256i k,
                                      const std::byte* p, std::index_sequence<kIndex...>) {
  ((acc.reg[kIndex] = V256::Fold(acc.reg[kIndex], k, V256::Load(p + kIndex * kRegister))), ...);
}

template <std::size_t... kIndex>
RESHARD_CRC64_INLINE void AdvanceTail(Accumulators<V256, sizeof...(kIndex)>& acc, __m256i k,
                                      const Columns& plan, const std::byte* p,
                                      std::index_sequence<kIndex...>) {
  constexpr std::size_t kLast = sizeof...(kIndex) - 1;
  const auto* mask = reinterpret_cast<const __m256i*>(plan.mask.data());
  ((acc.reg[kIndex] = V256::Fold(
        acc.reg[kIndex], k,
        _mm256_and_si256(
            V256::Load(p + (kIndex == kLast ? plan.last : plan.tail + kIndex * kRegister)),
            _mm256_load_si256(mask + kIndex)))),
   ...);
}

template <std::size_t kCount>
struct ColumnLoop {
  const Columns& plan;

  RESHARD_CRC64_FN __m128i Sum(const Level& level, const std::byte* p) const {
    constexpr auto kIndices = std::make_index_sequence<kCount>();
    const __m256i to_run = V256::Broadcast(plan.to_run);
    const __m256i to_chunk = V256::Broadcast(plan.to_chunk);
    const __m256i to_tail = V256::Broadcast(plan.to_tail);
    Accumulators<V256, kCount> acc{};
    for (std::uint64_t i = 0; i < level.count; ++i, p += level.data_stride) {
      if (plan.chunks == 1) {
        AdvanceTail(acc, to_run, plan, p, kIndices);
        continue;
      }
      AdvanceFull(acc, to_run, p, kIndices);
      for (std::size_t chunk = 1; chunk + 1 < plan.chunks; ++chunk) {
        AdvanceFull(acc, to_chunk, p + chunk * kCount * kRegister, kIndices);
      }
      AdvanceTail(acc, to_tail, plan, p, kIndices);
    }
    return Join(acc);
  }

 private:
  RESHARD_CRC64_INLINE __m128i Join(const Accumulators<V256, kCount>& acc) const {
    const __m256i k = V256::Broadcast(kDistance<kRegister>);
    __m256i v = acc.reg[0];
    for (std::size_t column = 1; column + 1 < kCount; ++column) {
      v = V256::Fold(v, k, acc.reg[column]);
    }
    if constexpr (kCount > 1) {
      v = V256::Fold(v, V256::Broadcast(plan.to_last), acc.reg[kCount - 1]);
    }
    return JoinHalves(v);
  }
};

template <std::size_t kCount>
RESHARD_CRC64_FN std::uint64_t RunsByColumns(const Columns& plan, std::span<const Level> levels,
                                             const std::byte* data) {
  if constexpr (kCount < kMaxColumns) {
    if (plan.count > kCount) {
      return RunsByColumns<kCount + 1>(plan, levels, data);
    }
  }
  constexpr std::uint64_t kNoFiller = 0;  // the value ends where the string ends
  return Finish(Nest(ColumnLoop<kCount>{plan}, levels, data), kNoFiller);
}

}  // namespace

std::uint64_t RunsVpclmul256(const std::byte* data, std::uint64_t run_bytes,
                             std::span<const Crc64Loop> loops) {
  if (run_bytes < kRegister || run_bytes > kMaxColumnRun) {
    return RunsByBlocks(data, run_bytes, loops, FoldVpclmul256);
  }
  const std::uint64_t string_stride = loops.empty() ? run_bytes : loops.back().string_stride;
  const Columns plan = PlanColumns(run_bytes, string_stride);
  return RunsByColumns<1>(plan, PrepareLevels(loops), data);
}

}  // namespace reshard::crc64

#endif
