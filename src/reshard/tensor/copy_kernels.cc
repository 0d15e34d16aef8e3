#include <algorithm>
#include <array>
#include <cstring>

#include "reshard/tensor/copy_kernels_internal.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "reshard/base/check.h"

namespace reshard {
namespace {

// Most bytes of a tile of runs shorter than a line.
constexpr std::size_t kTileBytes = 64 * kLineBytes;

// Destination rows that a transpose visits in turn: their pages stay in the TLB while the source
// streams.
constexpr std::uint64_t kBand = 256;

template <typename Run>
void ForEachRun(const Plane& plane, const std::byte* src, std::byte* dst, Run run) {
  const NestLoop outer = plane.outer;  // Copies: the bytes written could alias `plane`.
  const NestLoop inner = plane.inner;
  for (std::uint64_t i = 0; i < outer.count; ++i) {
    const std::byte* s = src + At(i, outer.src_stride);
    std::byte* d = dst + At(i, outer.dst_stride);
    run(s, d);
    for (std::uint64_t j = 1; j < inner.count; ++j) {  // Additions: compilers keep a product here.
      s += inner.src_stride;
      d += inner.dst_stride;
      run(s, d);
    }
  }
}

template <std::size_t kBytes>
void CopyFixed(const Plane& plane, const std::byte* src, std::byte* dst) {
  ForEachRun(plane, src, dst, [](const std::byte* s, std::byte* d) { std::memcpy(d, s, kBytes); });
}

// Runs of kBytes..2 * kBytes bytes: two fixed copies that overlap in the middle instead of a call.
template <std::size_t kBytes>
void CopyPair(std::uint64_t run_bytes, const Plane& plane, const std::byte* src, std::byte* dst) {
  const std::uint64_t tail = run_bytes - kBytes;
  ForEachRun(plane, src, dst, [tail](const std::byte* s, std::byte* d) {
    std::memcpy(d, s, kBytes);
    std::memcpy(d + tail, s + tail, kBytes);
  });
}

void CopyAny(std::uint64_t run_bytes, const Plane& plane, const std::byte* src, std::byte* dst) {
  ForEachRun(plane, src, dst,
             [run_bytes](const std::byte* s, std::byte* d) { std::memcpy(d, s, run_bytes); });
}

void CopyOddPlane(std::uint64_t run_bytes, const Plane& plane, const std::byte* src,
                  std::byte* dst) {
  if (run_bytes < 8) {
    return CopyPair<4>(run_bytes, plane, src, dst);
  }
  if (run_bytes < 16) {
    return CopyPair<8>(run_bytes, plane, src, dst);
  }
  if (run_bytes < 32) {
    return CopyPair<16>(run_bytes, plane, src, dst);
  }
  if (run_bytes < 64) {
    return CopyPair<32>(run_bytes, plane, src, dst);
  }
  if (run_bytes < 128) {
    return CopyPair<64>(run_bytes, plane, src, dst);
  }
  CopyAny(run_bytes, plane, src, dst);
}

}  // namespace

void CopyPlane(std::uint64_t run_bytes, const Plane& plane, const std::byte* src, std::byte* dst) {
  switch (run_bytes) {
    case 1:
      return CopyFixed<1>(plane, src, dst);
    case 2:
      return CopyFixed<2>(plane, src, dst);
    case 3:
      return CopyFixed<3>(plane, src, dst);
    case 4:
      return CopyFixed<4>(plane, src, dst);
    case 8:
      return CopyFixed<8>(plane, src, dst);
    case 12:
      return CopyFixed<12>(plane, src, dst);
    case 16:
      return CopyFixed<16>(plane, src, dst);
    case 32:
      return CopyFixed<32>(plane, src, dst);
    case 64:
      return CopyFixed<64>(plane, src, dst);
    case 128:
      return CopyFixed<128>(plane, src, dst);
    default:
      return CopyOddPlane(run_bytes, plane, src, dst);
  }
}

#if defined(__SSE2__)
namespace {

// Copies whole cache lines; `dst` is aligned to one.
void StreamLines(const std::byte* src, std::byte* dst, std::size_t lines, std::ptrdiff_t ahead) {
  for (std::size_t i = 0; i < lines; ++i) {
    __builtin_prefetch(src + ahead);
    const auto* from = reinterpret_cast<const __m128i*>(src);
    auto* to = reinterpret_cast<__m128i*>(dst);
    const __m128i a = _mm_loadu_si128(from);
    const __m128i b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2);
    const __m128i d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
    src += kLineBytes;
    dst += kLineBytes;
  }
}

}  // namespace

// Lines that a run fills only in part are stored plainly, and by nothing else: a line that is
// stored both ways costs more than all it saves.
void StreamPlane(std::uint64_t run_bytes, const Plane& plane, const std::byte* src,
                 std::byte* dst) {
  // Short strided runs end before the hardware's prefetcher sees a pattern.
  const bool short_runs = run_bytes < 4096 && plane.inner.count > 1;
  const std::ptrdiff_t ahead = short_runs ? At(4, plane.inner.src_stride) : At(8, kLineBytes);
  ForEachRun(plane, src, dst, [run_bytes, ahead](const std::byte* s, std::byte* d) {
    const std::size_t head = -reinterpret_cast<std::uintptr_t>(d) % kLineBytes;
    const std::size_t lines = (run_bytes - head) / kLineBytes;
    const std::size_t done = head + lines * kLineBytes;
    std::memcpy(d, s, head);
    StreamLines(s + head, d + head, lines, ahead);
    std::memcpy(d + done, s + done, run_bytes - done);
  });
}

void EndStream() { _mm_sfence(); }
#else
void StreamPlane(std::uint64_t run_bytes, const Plane& plane, const std::byte* src,
                 std::byte* dst) {
  CopyPlane(run_bytes, plane, src, dst);
}

void EndStream() {}
#endif

namespace {

// Copies one tile of a plane that is dense across in the source. Rows whose distance is a power of
// two share a cache set, so every source line is read once, into a buffer, before it is taken
// apart.
void CopyTileBuffered(std::uint64_t run_bytes, const CrossPlane& tile, const std::byte* src,
                      std::byte* dst) {
  alignas(kLineBytes) std::array<std::byte, kTileBytes> buffer;
  const std::uint64_t row_bytes = tile.across.count * run_bytes;
  RESHARD_CHECK(row_bytes * tile.down.count <= buffer.size());
  const auto row = static_cast<std::int64_t>(row_bytes);
  const auto run = static_cast<std::int64_t>(run_bytes);
  CopyPlane(row_bytes, {NestLoop{1, 0, 0}, NestLoop{tile.down.count, tile.down.src_stride, row}},
            src, buffer.data());
  CopyPlane(run_bytes,
            {NestLoop{tile.across.count, run, tile.across.dst_stride},
             NestLoop{tile.down.count, row, tile.down.dst_stride}},
            buffer.data(), dst);
}

// Walks the plane in tiles of about a cache line in both directions, so that a line that was
// touched is used up while it is in the cache.
void CopyBlocked(std::uint64_t run_bytes, const CrossPlane& plane, const std::byte* src,
                 std::byte* dst) {
  const std::uint64_t side = std::max<std::uint64_t>(8, kLineBytes / run_bytes);
  // From 16 bytes on, the buffer costs more than the misses that it saves.
  const bool buffered =
      run_bytes < 16 && plane.across.src_stride == static_cast<std::int64_t>(run_bytes);
  const std::uint64_t down_side = buffered ? kTileBytes / (side * run_bytes) : side;
  const std::uint64_t band_size = kBand / side * side;
  for (std::uint64_t band = 0; band < plane.across.count; band += band_size) {
    const std::uint64_t band_end = std::min(band + band_size, plane.across.count);
    for (std::uint64_t i = 0; i < plane.down.count; i += down_side) {
      for (std::uint64_t j = band; j < band_end; j += side) {
        CrossPlane tile = plane;
        tile.across.count = std::min(side, band_end - j);
        tile.down.count = std::min(down_side, plane.down.count - i);
        const std::byte* s = src + At(i, plane.down.src_stride) + At(j, plane.across.src_stride);
        std::byte* d = dst + At(i, plane.down.dst_stride) + At(j, plane.across.dst_stride);
        buffered ? CopyTileBuffered(run_bytes, tile, s, d)
                 : CopyPlane(run_bytes, {tile.across, tile.down}, s, d);
      }
    }
  }
}

// 16-byte vectors of elements, in the compilers' own extension: any processor, no intrinsics.
template <typename T>
struct Vector {
  static constexpr std::size_t kLanes = 16 / sizeof(T);
  typedef T Type __attribute__((vector_size(16)));
};

// The first (kHigh: last) halves of a and b, element by element in turn.
template <typename T, bool kHigh>
typename Vector<T>::Type Interleave(typename Vector<T>::Type a, typename Vector<T>::Type b) {
  if constexpr (sizeof(T) == 8) {
    return kHigh ? __builtin_shufflevector(a, b, 1, 3) : __builtin_shufflevector(a, b, 0, 2);
  } else if constexpr (sizeof(T) == 4) {
    return kHigh ? __builtin_shufflevector(a, b, 2, 6, 3, 7)
                 : __builtin_shufflevector(a, b, 0, 4, 1, 5);
  } else if constexpr (sizeof(T) == 2) {
    return kHigh ? __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
                 : __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  } else {
    return kHigh ? __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14,
                                           30, 15, 31)
                 : __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7,
                                           23);
  }
}

// Transposes kLanes x kLanes elements in registers: log2(kLanes) perfect shuffles of the rows.
template <typename T>
void TransposeSquare(const std::byte* src, std::int64_t src_row, std::byte* dst,
                     std::int64_t dst_row) {
  constexpr std::size_t kLanes = Vector<T>::kLanes;
  using V = typename Vector<T>::Type;
  std::array<V, kLanes> rows;
  for (std::size_t i = 0; i < kLanes; ++i) {
    std::memcpy(&rows[i], src + At(i, src_row), 16);
  }
  for (std::size_t step = 1; step < kLanes; step *= 2) {
    std::array<V, kLanes> shuffled;
    for (std::size_t i = 0; i < kLanes / 2; ++i) {
      shuffled[2 * i] = Interleave<T, false>(rows[i], rows[i + kLanes / 2]);
      shuffled[2 * i + 1] = Interleave<T, true>(rows[i], rows[i + kLanes / 2]);
    }
    rows = shuffled;
  }
  for (std::size_t i = 0; i < kLanes; ++i) {
    std::memcpy(dst + At(i, dst_row), &rows[i], 16);
  }
}

// Transposes one tile of a cache line by a cache line, through a buffer as in CopyTileBuffered.
template <typename T>
void TransposeTile(const std::byte* src, std::int64_t src_row, std::byte* dst,
                   std::int64_t dst_row) {
  constexpr std::size_t kSide = kLineBytes / sizeof(T);
  constexpr std::size_t kLanes = Vector<T>::kLanes;
  alignas(kLineBytes) std::array<std::byte, kSide * kLineBytes> buffer;
  for (std::size_t i = 0; i < kSide; ++i) {
    std::memcpy(buffer.data() + i * kLineBytes, src + At(i, src_row), kLineBytes);
  }
  for (std::size_t column = 0; column < kSide; column += kLanes) {
    for (std::size_t row = 0; row < kSide; row += kLanes) {
      TransposeSquare<T>(buffer.data() + row * kLineBytes + column * sizeof(T), kLineBytes,
                         dst + At(column, dst_row) + row * sizeof(T), dst_row);
    }
  }
}

// Copies a part of the plane, given by its first element and counts, with CopyBlocked.
void CopyCorner(std::uint64_t run_bytes, CrossPlane plane, std::uint64_t down, std::uint64_t across,
                const std::byte* src, std::byte* dst) {
  src += At(down, plane.down.src_stride) + At(across, plane.across.src_stride);
  dst += At(down, plane.down.dst_stride) + At(across, plane.across.dst_stride);
  plane.down.count -= down;
  plane.across.count -= across;
  CopyBlocked(run_bytes, plane, src, dst);
}

// A plane of single elements, dense across in the source and dense down in the destination.
template <typename T>
void Transpose(const CrossPlane& plane, const std::byte* src, std::byte* dst) {
  constexpr std::uint64_t kSide = kLineBytes / sizeof(T);
  const std::uint64_t tiled_down = plane.down.count / kSide * kSide;
  const std::uint64_t tiled_across = plane.across.count / kSide * kSide;
  for (std::uint64_t band = 0; band < tiled_across; band += kBand) {
    const std::uint64_t band_end = std::min(band + kBand, tiled_across);
    for (std::uint64_t i = 0; i < tiled_down; i += kSide) {
      for (std::uint64_t j = band; j < band_end; j += kSide) {
        TransposeTile<T>(
            src + At(i, plane.down.src_stride) + At(j, sizeof(T)), plane.down.src_stride,
            dst + At(j, plane.across.dst_stride) + At(i, sizeof(T)), plane.across.dst_stride);
      }
    }
  }
  CopyCorner(sizeof(T), plane, 0, tiled_across, src, dst);
  CrossPlane bottom = plane;
  bottom.across.count = tiled_across;
  CopyCorner(sizeof(T), bottom, tiled_down, 0, src, dst);
}

}  // namespace

void CopyCross(std::uint64_t run_bytes, const CrossPlane& plane, const std::byte* src,
               std::byte* dst) {
  const auto run = static_cast<std::int64_t>(run_bytes);
  if (plane.across.src_stride == run && plane.down.dst_stride == run) {
    switch (run_bytes) {
      case 1:
        return Transpose<std::uint8_t>(plane, src, dst);
      case 2:
        return Transpose<std::uint16_t>(plane, src, dst);
      case 4:
        return Transpose<std::uint32_t>(plane, src, dst);
      case 8:
        return Transpose<std::uint64_t>(plane, src, dst);
      default:
        break;
    }
  }
  CopyBlocked(run_bytes, plane, src, dst);
}

}  // namespace reshard
