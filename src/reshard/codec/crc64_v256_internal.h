#pragma once

// The 256-bit register of crc64_fold_internal.h, for sources whose target has VPCLMULQDQ; included
// once a source, like that file.

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

/// The two halves as one block of 16 bytes.
RESHARD_CRC64_INLINE __m128i JoinHalves(__m256i v) {
  const __m128i last = _mm256_extracti128_si256(v, 1);
  return V128::Fold(_mm256_castsi256_si128(v), V128::Broadcast(kDistance<16>), last);
}

}  // namespace
}  // namespace reshard::crc64
