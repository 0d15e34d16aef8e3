// The 256-bit kernel: AVX2 and VPCLMULQDQ (Ice Lake, Zen 3 and later).

#include "reshard/codec/crc64_internal.h"

#if defined(__x86_64__)

#define RESHARD_CRC64_TARGET "avx2,pclmul,sse4.1,vpclmulqdq"
#include "reshard/codec/crc64_v256_internal.h"

namespace reshard::crc64 {
namespace {

struct Fold256 {
  static constexpr std::size_t kBytes = V256::kBytes;

  template <Write kWrite>
  RESHARD_CRC64_INLINE static __m128i Run(Cursor c, std::uint64_t state) {
    if (c.left < kBytes) {
      return FoldShort<kWrite>(c, state);
    }
    const __m256i v = FoldRegisters<V256, kWrite, 8>(c, state);
    return FoldBlocks<kWrite>(JoinHalves(v), c);
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
