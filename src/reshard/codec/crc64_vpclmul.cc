// The 256-bit kernel: AVX2 and VPCLMULQDQ (Ice Lake, Zen 3 and later).

#include "reshard/codec/crc64_internal.h"

#if defined(__x86_64__)

#define RESHARD_CRC64_TARGET "avx2,pclmul,sse4.1,vpclmulqdq"
#include "reshard/codec/crc64_fold_internal.h"

namespace reshard::crc64 {
namespace {

struct V256 {
  using Reg = __m256i;
  static constexpr std::size_t kBytes = 32;

  RESHARD_CRC64_INLINE static Reg Load(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }

  RESHARD_CRC64_INLINE static void Store(std::byte* p, Reg r) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), r);
  }

  RESHARD_CRC64_INLINE static void Stream(std::byte* p, Reg r) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), r);
  }

  RESHARD_CRC64_INLINE static Reg Xor(Reg a, Reg b) { return _mm256_xor_si256(a, b); }

  RESHARD_CRC64_INLINE static Reg Fold(Reg a, Reg k, Reg b) {
    const Reg high = _mm256_clmulepi64_epi128(a, k, 0x00);
    const Reg low = _mm256_clmulepi64_epi128(a, k, 0x11);
    return _mm256_xor_si256(_mm256_xor_si256(high, b), low);
  }

  RESHARD_CRC64_INLINE static Reg Broadcast(Folded k) {
    return _mm256_broadcastsi128_si256(V128::Broadcast(k));
  }

  RESHARD_CRC64_INLINE static Reg State(std::uint64_t state) {
    return _mm256_zextsi128_si256(V128::State(state));
  }
};

struct Fold256 {
  static constexpr std::size_t kBytes = V256::kBytes;

  template <Write kWrite>
  RESHARD_CRC64_INLINE static __m128i Run(Cursor c, std::uint64_t state) {
    if (c.left < kBytes) {
      return FoldShort<kWrite>(c, state);
    }
    const __m256i v = FoldRegisters<V256, kWrite, 8>(c, state);
    const __m128i k = V128::Broadcast(kDistance<16>);
    const __m128i last = _mm256_extracti128_si256(v, 1);
    return FoldBlocks<kWrite>(V128::Fold(_mm256_castsi256_si128(v), k, last), c);
  }
};

}  // namespace

RESHARD_CRC64_FN std::uint64_t LinearVpclmul256(const std::byte* data, std::size_t size,
                                                std::uint64_t state) {
  return Linear<Fold256, Write::kNone>({data, nullptr, size}, state);
}

RESHARD_CRC64_FN Folded FoldVpclmul256(const std::byte* data, std::size_t size) {
  return ToFolded(Fold256::Run<Write::kNone>({data, nullptr, size}, 0));
}

RESHARD_CRC64_FN std::uint64_t LinearCopyVpclmul256(std::byte* dst, const std::byte* src,
                                                    std::size_t size, std::uint64_t state) {
  return LinearCopy<Fold256>(dst, src, size, state);
}

}  // namespace reshard::crc64

#endif
