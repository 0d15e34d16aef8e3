// The kernels that run a copy nest, whole or through a window.

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "reshard/base/check.h"
#include "reshard/tensor/strided.h"

namespace reshard {
namespace {

// Runs shorter than this profit from another order of the loops; longer ones fill cache lines.
constexpr std::uint64_t kLineBytes = 64;

// Most bytes of a tile of runs shorter than a line, max(8, line / run) runs on each side.
constexpr std::size_t kTileBytes = 64 * kLineBytes;

// Copies of this many bytes in all, in runs of at least kStreamRunBytes, bypass the cache: their
// destination would not stay in it anyhow, and a plain store first reads the line it overwrites (a
// third of the traffic).
constexpr std::uint64_t kStreamBytes = 8 << 20;
constexpr std::uint64_t kStreamRunBytes = 256;

std::ptrdiff_t At(std::uint64_t i, std::int64_t stride) {
  return static_cast<std::ptrdiff_t>(i) * stride;
}

// The two innermost loops of a nest; a count of 1 where there are fewer.
struct Plane {
  NestLoop outer{1, 0, 0};
  NestLoop inner{1, 0, 0};
};

template <typename Run>
void ForEachRun(const Plane& plane, const std::byte* src, std::byte* dst, Run run) {
  const NestLoop outer = plane.outer;  // Copies: the bytes written could alias `plane`.
  const NestLoop inner = plane.inner;
  for (std::uint64_t i = 0; i < outer.count; ++i) {
    const std::byte* s = src + At(i, outer.src_stride);
    std::byte* d = dst + At(i, outer.dst_stride);
    for (std::uint64_t j = 0; j < inner.count; ++j) {
      run(s + At(j, inner.src_stride), d + At(j, inner.dst_stride));
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
// Copies whole cache lines; `dst` is aligned to one.
void StreamLines(const std::byte* src, std::byte* dst, std::size_t lines, std::size_t ahead) {
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

// Lines that a run fills only in part are stored plainly, and by nothing else: a line that is
// stored both ways costs more than all it saves.
void StreamPlane(std::uint64_t run_bytes, const Plane& plane, const std::byte* src,
                 std::byte* dst) {
  // Short strided runs end before the hardware's prefetcher sees a pattern.
  const std::size_t ahead =
      run_bytes < 4096 && plane.inner.count > 1 ? At(4, plane.inner.src_stride) : kLineBytes * 8;
  ForEachRun(plane, src, dst, [run_bytes, ahead](const std::byte* s, std::byte* d) {
    const std::size_t head = -reinterpret_cast<std::uintptr_t>(d) % kLineBytes;
    const std::size_t lines = (run_bytes - head) / kLineBytes;
    const std::size_t done = head + lines * kLineBytes;
    std::memcpy(d, s, head);
    StreamLines(s + head, d + head, lines, ahead);
    std::memcpy(d + done, s + done, run_bytes - done);
  });
}

// Orders streamed stores before whatever tells another thread that the bytes are there.
void EndStream() { _mm_sfence(); }
#else
void StreamPlane(std::uint64_t run_bytes, const Plane& plane, const std::byte* src,
                 std::byte* dst) {
  CopyPlane(run_bytes, plane, src, dst);
}

void EndStream() {}
#endif

// A plane whose two sides disagree about the inner loop: one loop has the smaller source stride
// (across), the other the smaller destination stride (down).
struct CrossPlane {
  NestLoop across;
  NestLoop down;
};

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
  const bool dense = plane.across.src_stride == static_cast<std::int64_t>(run_bytes);
  for (std::uint64_t i = 0; i < plane.down.count; i += side) {
    for (std::uint64_t j = 0; j < plane.across.count; j += side) {
      CrossPlane tile = plane;
      tile.across.count = std::min(side, plane.across.count - j);
      tile.down.count = std::min(side, plane.down.count - i);
      const std::byte* from = src + At(i, plane.down.src_stride) + At(j, plane.across.src_stride);
      std::byte* to = dst + At(i, plane.down.dst_stride) + At(j, plane.across.dst_stride);
      if (dense) {
        CopyTileBuffered(run_bytes, tile, from, to);
      } else {
        CopyPlane(run_bytes, {tile.across, tile.down}, from, to);
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
  // Destination rows visited in turn: their pages stay in the TLB while the source streams.
  constexpr std::uint64_t kBand = 256;
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

// A nest on its way to the kernels: loops may be reordered, because its runs are independent.
class NestRunner {
 public:
  // `may_stream`: the copy that this is (a part of) is large, and nobody reads the destination
  // soon.
  NestRunner(std::uint64_t run_bytes, const std::byte* src, std::byte* dst, bool may_stream)
      : run_bytes_(run_bytes), src_(src), dst_(dst), stream_(may_stream) {}

  // Adds a loop inside those added before.
  void Add(NestLoop loop) {
    if (loop.count == 0) {
      run_bytes_ = 0;
    }
    if (loop.count <= 1) {
      return;
    }
    if (loop.dst_stride < 0) {  // Walk it the other way round: ascending writes.
      src_ += At(loop.count - 1, loop.src_stride);
      dst_ += At(loop.count - 1, loop.dst_stride);
      loop.src_stride = -loop.src_stride;
      loop.dst_stride = -loop.dst_stride;
    }
    RESHARD_CHECK(size_ < loops_.size());
    loops_[size_++] = loop;
  }

  void Run() {
    if (run_bytes_ == 0) {
      return;
    }
    if (run_bytes_ < kLineBytes) {
      Arrange();
    }
    stream_ = stream_ && run_bytes_ >= kStreamRunBytes;
    if (size_ == 0) {
      Copy(Plane(), src_, dst_);
    } else {
      Walk(0, src_, dst_);
    }
    if (stream_) {
      EndStream();
    }
  }

 private:
  void MoveLast(std::size_t index) {
    std::rotate(loops_.begin() + index, loops_.begin() + index + 1, loops_.begin() + size_);
  }

  // Puts the loop with the smallest destination stride last. When the source disagrees, its loop of
  // smallest stride comes last but one, and the two are a cross plane. Loops that are contiguous on
  // both sides, whatever their place was, become part of the run.
  void Arrange() {
    while (size_ > 0) {
      const std::size_t down = Smallest([](const NestLoop& l) { return l.dst_stride; });
      const std::size_t across = Smallest([](const NestLoop& l) { return l.src_stride; });
      const NestLoop loop = loops_[down];
      const auto run = static_cast<std::int64_t>(run_bytes_);
      if (loop.src_stride == run && loop.dst_stride == run) {
        MoveLast(down);
        --size_;
        run_bytes_ *= loop.count;
        continue;
      }
      cross_ = down != across && run_bytes_ < kLineBytes;
      if (cross_) {
        MoveLast(across);
        MoveLast(down > across ? down - 1 : down);
      } else {
        MoveLast(down);
      }
      return;
    }
  }

  // The loop of smallest non-zero stride; the last of equals, and the last when all are zero.
  template <typename Stride>
  std::size_t Smallest(Stride stride) const {
    std::size_t best = size_ - 1;
    for (std::size_t i = size_; i-- > 0;) {
      const std::int64_t now = std::abs(stride(loops_[best]));
      const std::int64_t next = std::abs(stride(loops_[i]));
      if (next != 0 && (now == 0 || next < now)) {
        best = i;
      }
    }
    return best;
  }

  void Walk(std::size_t level, const std::byte* src, std::byte* dst) const {
    const NestLoop& loop = loops_[level];
    if (level + 2 < size_) {
      for (std::uint64_t i = 0; i < loop.count; ++i) {
        Walk(level + 1, src + At(i, loop.src_stride), dst + At(i, loop.dst_stride));
      }
    } else if (cross_) {
      CopyCross(run_bytes_, {loop, loops_[level + 1]}, src, dst);
    } else if (level + 1 < size_) {
      Copy({loop, loops_[level + 1]}, src, dst);
    } else {
      Copy({NestLoop{1, 0, 0}, loop}, src, dst);
    }
  }

  void Copy(const Plane& plane, const std::byte* src, std::byte* dst) const {
    stream_ ? StreamPlane(run_bytes_, plane, src, dst) : CopyPlane(run_bytes_, plane, src, dst);
  }

  std::uint64_t run_bytes_;
  const std::byte* src_;
  std::byte* dst_;
  bool stream_;
  bool cross_ = false;
  std::size_t size_ = 0;
  std::array<NestLoop, kMaxAxes> loops_;
};

// Runs the part of a nest that lies in a window of its dense side: the source when kGather is
// false, the destination when it is true. Offsets on the dense side count from the nest's base; on
// the other, free side a pointer moves along.
template <bool kGather>
class WindowRunner {
 public:
  using Dense = std::conditional_t<kGather, std::byte, const std::byte>;
  using Free = std::conditional_t<kGather, const std::byte, std::byte>;

  WindowRunner(const CopyNest& nest, ByteRange window, Dense* window_data)
      : nest_(nest), begin_(window.offset), end_(window.end()), data_(window_data) {
    RESHARD_CHECK(nest.loops.size() <= kMaxAxes);
    std::uint64_t span = nest.run_bytes;
    spans_[nest.loops.size()] = span;
    for (std::size_t i = nest.loops.size(); i-- > 0;) {
      const NestLoop& loop = nest.loops[i];
      const std::int64_t stride = DenseStride(loop);
      // Increasing, non-overlapping runs are what lets the first run be found by division.
      RESHARD_CHECK(loop.count == 1 || (stride > 0 && static_cast<std::uint64_t>(stride) >= span));
      span += (loop.count - 1) * static_cast<std::uint64_t>(stride);
      spans_[i] = span;
    }
  }

  void Run(Free* free) const { RunLevel(0, 0, free); }

 private:
  static std::int64_t DenseStride(const NestLoop& loop) {
    return kGather ? loop.dst_stride : loop.src_stride;
  }

  static std::int64_t FreeStride(const NestLoop& loop) {
    return kGather ? loop.src_stride : loop.dst_stride;
  }

  // Of `count` points at `point`, `point + stride`, ...: how many are below `limit`.
  static std::uint64_t PointsBelow(std::uint64_t limit, std::uint64_t point, std::uint64_t stride,
                                   std::uint64_t count) {
    return point >= limit ? 0 : std::min(count, (limit - point - 1) / stride + 1);
  }

  // Copies what the window holds of the loops from `level` on, which begin `offset` bytes into the
  // dense side. At most the first and the last step of a loop are cut by the window's edges; the
  // steps between them are a nest of their own.
  void RunLevel(std::size_t level, std::uint64_t offset, Free* free) const {
    if (offset >= begin_ && offset + spans_[level] <= end_) {
      return CopyWhole(level, WholeLoop(level), offset, free);
    }
    if (level == nest_.loops.size()) {
      return CopyPartOfRun(offset, free);
    }
    const NestLoop& loop = nest_.loops[level];
    const std::uint64_t span = spans_[level + 1];
    // A loop of one step may have any stride.
    const auto stride = static_cast<std::uint64_t>(std::max<std::int64_t>(DenseStride(loop), 1));
    // Steps [first, last) touch the window, [whole_first, whole_last) lie inside it.
    const std::uint64_t first = PointsBelow(begin_ + 1, offset + span, stride, loop.count);
    const std::uint64_t last = PointsBelow(end_, offset, stride, loop.count);
    const std::uint64_t whole_first = PointsBelow(begin_, offset, stride, loop.count);
    const std::uint64_t whole_last = PointsBelow(end_ + 1, offset + span, stride, loop.count);
    const auto step = [&](std::uint64_t i) {
      RunLevel(level + 1, offset + i * stride, free + At(i, FreeStride(loop)));
    };
    if (first < std::min(whole_first, last)) {
      step(first);
    }
    if (whole_first < whole_last) {
      const NestLoop middle{whole_last - whole_first, loop.src_stride, loop.dst_stride};
      CopyWhole(level, middle, offset + whole_first * stride,
                free + At(whole_first, FreeStride(loop)));
    }
    if (std::max(whole_last, whole_first) < last) {
      step(last - 1);
    }
  }

  NestLoop WholeLoop(std::size_t level) const {
    return level < nest_.loops.size() ? nest_.loops[level] : NestLoop{1, 0, 0};
  }

  // Copies the loops from `level` on, with `head` in the place of the first of them.
  void CopyWhole(std::size_t level, const NestLoop& head, std::uint64_t offset, Free* free) const {
    Dense* dense = data_ + (offset - begin_);
    const std::byte* src = nullptr;
    std::byte* dst = nullptr;
    if constexpr (kGather) {
      src = free;
      dst = dense;
    } else {
      src = dense;
      dst = free;
    }
    // What is gathered goes through a checksum or to a device next: keep it in the cache.
    NestRunner runner(nest_.run_bytes, src, dst, !kGather && nest_.num_bytes() >= kStreamBytes);
    runner.Add(head);
    for (std::size_t i = level + 1; i < nest_.loops.size(); ++i) {
      runner.Add(nest_.loops[i]);
    }
    runner.Run();
  }

  void CopyPartOfRun(std::uint64_t offset, Free* free) const {
    const std::uint64_t from = std::max(offset, begin_);
    const std::uint64_t to = std::min(offset + nest_.run_bytes, end_);
    if (from >= to) {
      return;
    }
    Dense* dense = data_ + (from - begin_);
    free += from - offset;
    if constexpr (kGather) {
      std::memcpy(dense, free, to - from);
    } else {
      std::memcpy(free, dense, to - from);
    }
  }

  const CopyNest& nest_;
  std::uint64_t begin_;
  std::uint64_t end_;
  Dense* data_;
  std::array<std::uint64_t, kMaxAxes + 1> spans_;  // Dense bytes of the loops from i on.
};

}  // namespace

void RunCopy(const CopyNest& nest, const std::byte* src, std::byte* dst) {
  NestRunner runner(nest.run_bytes, src, dst, nest.num_bytes() >= kStreamBytes);
  for (const NestLoop& loop : nest.loops) {
    runner.Add(loop);
  }
  runner.Run();
}

void RunCopyWindow(const CopyNest& nest, ByteRange window, const std::byte* window_data,
                   std::byte* dst) {
  if (nest.num_runs() > 0 && window.size > 0) {
    WindowRunner<false>(nest, window, window_data).Run(dst);
  }
}

void RunGatherWindow(const CopyNest& nest, ByteRange window, const std::byte* src,
                     std::byte* window_data) {
  if (nest.num_runs() > 0 && window.size > 0) {
    WindowRunner<true>(nest, window, window_data).Run(src);
  }
}

}  // namespace reshard
