// Copy nests, whole or through a window, on top of the kernels.

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "reshard/base/check.h"
#include "reshard/tensor/copy_kernels_internal.h"
#include "reshard/tensor/strided.h"

namespace reshard {
namespace {

// Copies of this many bytes in all bypass the cache where their runs are long enough: their
// destination would not stay in it anyhow, and a plain store first reads the line it overwrites (a
// third of the traffic).
constexpr std::uint64_t kStreamBytes = 8 << 20;

// The same for what is scattered window by window: it is one of many pieces on their way to memory
// that nobody reads before all have come.
constexpr std::uint64_t kStreamScatterBytes = 128 << 10;

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
    NestRunner runner(nest_.run_bytes, src, dst,
                      !kGather && nest_.num_bytes() >= kStreamScatterBytes);
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
      NestRunner(to - from, dense, free, to - from >= kStreamScatterBytes).Run();
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
