// The 128-bit kernel: PCLMULQDQ (Westmere, Bulldozer and later).

#include "reshard/codec/crc64_internal.h"

#if defined(__x86_64__)

#define RESHARD_CRC64_TARGET "pclmul,sse4.1"
#include "reshard/codec/crc64_fold_internal.h"

namespace reshard::crc64 {
namespace {

struct Fold128 {
  static constexpr std::size_t kBytes = V128::kBytes;

  template <Write kWrite>
  RESHARD_CRC64_INLINE static __m128i Run(Cursor c, std::uint64_t state) {
    if (c.left < kBytes) {
      return FoldShort<kWrite>(c, state);
    }
    return FoldBlocks<kWrite>(FoldRegisters<V128, kWrite, 8>(c, state), c);
  }
};

}  // namespace

RESHARD_CRC64_FN std::uint64_t MultiplyPclmul(std::uint64_t a, std::uint64_t b) {
  return Reduce(_mm_clmulepi64_si128(V128::State(a), V128::State(OverX(b)), 0x00));
}

RESHARD_CRC64_FN std::uint64_t LinearPclmul(const std::byte* data, std::size_t size,
                                            std::uint64_t state) {
  return Linear<Fold128, Write::kNone>({data, nullptr, size}, state);
}

RESHARD_CRC64_FN Folded FoldPclmul(const std::byte* data, std::size_t size) {
  return ToFolded(Fold128::Run<Write::kNone>({data, nullptr, size}, 0));
}

RESHARD_CRC64_FN std::uint64_t LinearCopyPclmul(std::byte* dst, const std::byte* src,
                                                std::size_t size, std::uint64_t state) {
  return LinearCopy<Fold128>(dst, src, size, state);
}

}  // namespace reshard::crc64

#endif
