#pragma once

// Folding with carry-less multiplication (Gopal et al., see crc64.h), for x86-64.
//
// A source defines RESHARD_CRC64_TARGET, the instruction sets of its functions, before it includes
// this file; hence the unnamed namespace: each source gets functions of its
// own, and none that needs a newer processor can stand in for another source's.
//
// V describes a register: Reg, kBytes, Load, Store, Stream, Xor, Fold, Broadcast.

#include <immintrin.h>

#include <cstring>
#include <utility>

#include "reshard/base/bytes.h"
#include "reshard/codec/crc64_internal.h"

#define RESHARD_CRC64_FN __attribute__((target(RESHARD_CRC64_TARGET)))
#define RESHARD_CRC64_INLINE __attribute__((target(RESHARD_CRC64_TARGET), always_inline)) inline

namespace reshard::crc64 {
namespace {

enum class Write { kNone, kCached, kStreaming };

/// What is still to be folded, and where it is copied to unless Write::kNone.
struct Cursor {
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  std::size_t left = 0;
};

struct V128 {
  using Reg = __m128i;
  static constexpr std::size_t kBytes = 16;

  RESHARD_CRC64_INLINE static Reg Load(const std::byte* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }

  RESHARD_CRC64_INLINE static void Store(std::byte* p, Reg r) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), r);
  }

  RESHARD_CRC64_INLINE static void Stream(std::byte* p, Reg r) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(p), r);
  }

  RESHARD_CRC64_INLINE static Reg Xor(Reg a, Reg b) { return _mm_xor_si128(a, b); }

  /// `a` times x^n for the pair of factors `k`, plus `b`.
  RESHARD_CRC64_INLINE static Reg Fold(Reg a, Reg k, Reg b) {
    const Reg high = _mm_clmulepi64_si128(a, k, 0x00);
    const Reg low = _mm_clmulepi64_si128(a, k, 0x11);
    return _mm_xor_si128(_mm_xor_si128(high, b), low);
  }

  RESHARD_CRC64_INLINE static Reg Broadcast(Folded k) {
    return _mm_set_epi64x(static_cast<long long>(k.second), static_cast<long long>(k.first));
  }

  /// `state`, ahead of the string: it meets the string's first 8 bytes.
  RESHARD_CRC64_INLINE static Reg State(std::uint64_t state) {
    return _mm_cvtsi64_si128(static_cast<long long>(state));
  }
};

RESHARD_CRC64_INLINE Folded ToFolded(__m128i v) {
  return {static_cast<std::uint64_t>(_mm_cvtsi128_si64(v)),
          static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm_unpackhi_epi64(v, v)))};
}

/// The 128 bits modulo P.
RESHARD_CRC64_INLINE std::uint64_t Reduce(__m128i v) {
  const __m128i k =
      V128::Broadcast({std::integral_constant<std::uint64_t, PolyInverse()>::value, kPolyLow});
  const __m128i quotient = _mm_clmulepi64_si128(v, k, 0x00);
  const __m128i multiple = _mm_clmulepi64_si128(quotient, k, 0x10);
  return ToFolded(_mm_xor_si128(_mm_xor_si128(v, multiple), _mm_slli_si128(quotient, 8))).second;
}

inline constexpr std::array<Folded, 16> kFinish = FinishFactors();

/// The linear part of a folded string of `size` bytes.
RESHARD_CRC64_INLINE std::uint64_t Finish(__m128i v, std::uint64_t size) {
  const __m128i k = V128::Broadcast(kFinish[(0 - size) & 15]);
  return Reduce(V128::Fold(v, k, _mm_setzero_si128()));
}

/// `size` <= 8 bytes, filled up with zeros.
RESHARD_CRC64_INLINE std::uint64_t LoadUpTo8(const std::byte* p, std::size_t size) {
  if (size >= 4) {  // two loads that may overlap
    const std::uint64_t last = LoadLittle<std::uint32_t>(p + size - 4);
    return LoadLittle<std::uint32_t>(p) | last << (8 * (size - 4));
  }
  if (size >= 2) {
    const std::uint64_t last = LoadLittle<std::uint16_t>(p + size - 2);
    return LoadLittle<std::uint16_t>(p) | last << (8 * (size - 2));
  }
  return size == 0 ? 0 : static_cast<std::uint64_t>(*p);
}

/// `size` < 16 bytes, filled up with zeros.
RESHARD_CRC64_INLINE __m128i LoadShort(const std::byte* p, std::size_t size) {
  if (size <= 8) {
    return V128::State(LoadUpTo8(p, size));
  }
  const auto last = LoadLittle<std::uint64_t>(p + size - 8) >> (8 * (16 - size));
  return V128::Broadcast({LoadLittle<std::uint64_t>(p), last});
}

/// Loads a register's worth, copies it, and moves on.
template <typename V, Write kWrite>
RESHARD_CRC64_INLINE typename V::Reg Take(Cursor& c) {
  const typename V::Reg data = V::Load(c.src);
  if constexpr (kWrite == Write::kCached) {
    V::Store(c.dst, data);
  } else if constexpr (kWrite == Write::kStreaming) {
    V::Stream(c.dst, data);
  }
  if constexpr (kWrite != Write::kNone) {
    c.dst += V::kBytes;
  }
  c.src += V::kBytes;
  c.left -= V::kBytes;
  return data;
}

template <Write kWrite>
RESHARD_CRC64_INLINE __m128i TakeRest(Cursor& c) {
  const __m128i data = LoadShort(c.src, c.left);
  if constexpr (kWrite != Write::kNone) {
    std::memcpy(c.dst, c.src, c.left);
  }
  c.left = 0;
  return data;
}

/// The factors that move a block on by `kByteCount` bytes.
template <std::size_t kByteCount>
inline constexpr Folded kDistance = FactorPair(8 * static_cast<int>(kByteCount));

/// Independent accumulators over interleaved registers, so that the latency of the multiplication
/// (4 to 7 cycles) is hidden.
template <typename V, std::size_t kCount>
struct Accumulators {
  typename V::Reg reg[kCount];
};

template <typename V, Write kWrite, std::size_t... kIndex>
RESHARD_CRC64_INLINE void Start(Accumulators<V, sizeof...(kIndex)>& acc, Cursor& c,
                                std::index_sequence<kIndex...>) {
  ((acc.reg[kIndex] = Take<V, kWrite>(c)), ...);
}

template <typename V, Write kWrite, std::size_t... kIndex>
RESHARD_CRC64_INLINE void Advance(Accumulators<V, sizeof...(kIndex)>& acc, typename V::Reg k,
                                  Cursor& c, std::index_sequence<kIndex...>) {
  ((acc.reg[kIndex] = V::Fold(acc.reg[kIndex], k, Take<V, kWrite>(c))), ...);
}

template <typename V, std::size_t... kIndex>
RESHARD_CRC64_INLINE Accumulators<V, sizeof...(kIndex)> Halve(
    const Accumulators<V, 2 * sizeof...(kIndex)>& acc, std::index_sequence<kIndex...>) {
  const typename V::Reg k = V::Broadcast(kDistance<V::kBytes * sizeof...(kIndex)>);
  return {{V::Fold(acc.reg[kIndex], k, acc.reg[kIndex + sizeof...(kIndex)])...}};
}

/// Folds on while a whole round is left, then with half as many accumulators, down to one.
template <typename V, Write kWrite, std::size_t kCount>
RESHARD_CRC64_INLINE typename V::Reg Narrow(Accumulators<V, kCount> acc, Cursor& c) {
  constexpr std::size_t kRound = V::kBytes * kCount;
  const typename V::Reg k = V::Broadcast(kDistance<kRound>);
  while (c.left >= kRound) {
    Advance<V, kWrite>(acc, k, c, std::make_index_sequence<kCount>());
  }
  if constexpr (kCount == 1) {
    return acc.reg[0];
  } else {
    return Narrow<V, kWrite, kCount / 2>(Halve<V>(acc, std::make_index_sequence<kCount / 2>()), c);
  }
}

/// Folds all but the last c.left < V::kBytes bytes; the string holds at least one register.
template <typename V, Write kWrite, std::size_t kCount>
RESHARD_CRC64_INLINE typename V::Reg FoldRegisters(Cursor& c, std::uint64_t state) {
  if constexpr (kCount > 1) {
    if (c.left < V::kBytes * kCount) {
      return FoldRegisters<V, kWrite, kCount / 2>(c, state);
    }
  }
  Accumulators<V, kCount> acc;
  Start<V, kWrite>(acc, c, std::make_index_sequence<kCount>());
  acc.reg[0] = V::Xor(acc.reg[0], V::State(state));
  return Narrow<V, kWrite, kCount>(acc, c);
}

/// Folds on from `v` over what is left of the string, filled up to a whole block.
template <Write kWrite>
RESHARD_CRC64_INLINE __m128i FoldBlocks(__m128i v, Cursor& c) {
  const __m128i k = V128::Broadcast(kDistance<16>);
  while (c.left >= 16) {
    v = V128::Fold(v, k, Take<V128, kWrite>(c));
  }
  return c.left == 0 ? v : V128::Fold(v, k, TakeRest<kWrite>(c));
}

/// Folds a string shorter than 32 bytes.
template <Write kWrite>
RESHARD_CRC64_INLINE __m128i FoldShort(Cursor& c, std::uint64_t state) {
  if (c.left < 16) {
    return V128::Xor(TakeRest<kWrite>(c), V128::State(state));
  }
  const __m128i first = Take<V128, kWrite>(c);
  return FoldBlocks<kWrite>(V128::Xor(first, V128::State(state)), c);
}

/// The linear part of what the cursor stands before. `Kernel::Run` folds a string that is not
/// empty.
template <typename Kernel, Write kWrite>
RESHARD_CRC64_INLINE std::uint64_t Linear(const Cursor& c, std::uint64_t state) {
  return c.left == 0 ? state : Finish(Kernel::template Run<kWrite>(c, state), c.left);
}

/// Crc64LinearCopy. `Kernel::kBytes` is the size of its registers.
template <typename Kernel>
RESHARD_CRC64_INLINE std::uint64_t LinearCopy(std::byte* dst, const std::byte* src,
                                              std::size_t size, std::uint64_t state) {
  if (size < kStreamingBytes) {
    return Linear<Kernel, Write::kCached>({src, dst, size}, state);
  }
  // Streaming stores need an aligned destination: the bytes before it go first.
  const std::size_t head = (0 - reinterpret_cast<std::uintptr_t>(dst)) % Kernel::kBytes;
  state = Linear<Kernel, Write::kCached>({src, dst, head}, state);
  state = Linear<Kernel, Write::kStreaming>({src + head, dst + head, size - head}, state);
  _mm_sfence();  // streaming stores are not ordered with the stores that publish the buffer
  return state;
}

}  // namespace
}  // namespace reshard::crc64
