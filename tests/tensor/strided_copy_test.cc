// RunCopy, RunCopyWindow and RunGatherWindow against a loop over bytes.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "reshard/tensor/strided.h"

namespace reshard {
namespace {

constexpr std::byte kGuard{0xEE};

// Strided memory that holds every element of a box, and where its element 0 lies.
struct Place {
  Bytes memory;
  std::size_t origin = 0;
  std::vector<std::int64_t> strides;

  std::byte* data() { return memory.data() + origin; }
};

// One copy: source, destination, what the destination must hold afterwards.
struct Case {
  Shape extent;
  std::uint32_t unit = 1;
  Place src;
  Place dst;

  CopyNest nest() const { return MakeCopyNest(extent, unit, src.strides, dst.strides); }
};

// Calls fn(src offset, dst offset) for every unit, in row-major order.
template <typename Fn>
void ForEachUnit(const Case& c, Fn fn) {
  Index index(c.extent.size(), 0);
  for (std::uint64_t n = NumElements(c.extent); n > 0; --n) {
    std::int64_t src = 0;
    std::int64_t dst = 0;
    for (std::size_t i = 0; i < index.size(); ++i) {
      src += static_cast<std::int64_t>(index[i]) * c.src.strides[i];
      dst += static_cast<std::int64_t>(index[i]) * c.dst.strides[i];
    }
    fn(src, dst);
    for (std::size_t i = index.size(); i-- > 0 && ++index[i] == c.extent[i];) {
      index[i] = 0;
    }
  }
}

class Random {
 public:
  explicit Random(std::uint32_t seed) : engine_(seed) {}

  std::uint64_t Below(std::uint64_t n) { return engine_() % n; }

  bool Chance(int percent) { return Below(100) < static_cast<std::uint64_t>(percent); }

  std::mt19937& engine() { return engine_; }

 private:
  std::mt19937 engine_;
};

// Non-overlapping strides in an order of axes: `order` lists them outermost first.
Place MakePlace(const Shape& extent, std::uint32_t unit, const std::vector<std::size_t>& order,
                Random& random, bool negative, bool zero) {
  Place place;
  place.strides.resize(extent.size());
  std::int64_t stride = unit;
  std::int64_t lowest = 0;
  std::int64_t highest = 0;
  for (std::size_t k = order.size(); k-- > 0;) {
    const std::size_t axis = order[k];
    if (random.Chance(30)) {
      stride += static_cast<std::int64_t>(random.Below(3) * unit + random.Below(3));
    }
    place.strides[axis] = stride;
    if (negative && random.Chance(30)) {
      place.strides[axis] = -stride;
    }
    if (zero && random.Chance(10)) {
      place.strides[axis] = 0;
    }
    const auto steps = static_cast<std::int64_t>(std::max<std::uint64_t>(extent[axis], 1) - 1);
    lowest += std::min<std::int64_t>(0, steps * place.strides[axis]);
    highest += std::max<std::int64_t>(0, steps * place.strides[axis]);
    stride *= steps + 1;
  }
  constexpr std::int64_t kMargin = 64;  // Guard bytes on both sides.
  place.origin = static_cast<std::size_t>(kMargin - lowest);
  place.memory.resize(static_cast<std::size_t>(kMargin - lowest + highest + unit + kMargin));
  return place;
}

Shape RandomExtent(Random& random, std::uint64_t most_elements) {
  Shape extent(random.Below(6));
  std::uint64_t elements = 1;
  for (std::uint64_t& e : extent) {
    e = random.Chance(3) ? 0 : random.Chance(15) ? 1 + random.Below(150) : 1 + random.Below(9);
    if (elements * e > most_elements) {
      e = 1;
    }
    elements *= std::max<std::uint64_t>(e, 1);
  }
  return extent;
}

enum class Dense { kNeither, kSrc, kDst };

// The dense side keeps row-major order (padded rows allowed, as in a box of a larger tensor).
Case RandomCase(Random& random, std::uint32_t unit, Dense dense) {
  Case c;
  c.unit = unit;
  c.extent = RandomExtent(random, 4000);
  std::vector<std::size_t> row_major(c.extent.size());
  std::iota(row_major.begin(), row_major.end(), 0);
  const auto order = [&] {
    std::vector<std::size_t> shuffled = row_major;
    if (random.Chance(60)) {
      std::shuffle(shuffled.begin(), shuffled.end(), random.engine());
    }
    return shuffled;
  };
  const auto src_order = dense == Dense::kSrc ? row_major : order();
  const auto dst_order = dense == Dense::kDst ? row_major : order();
  c.src = MakePlace(c.extent, unit, src_order, random, dense != Dense::kSrc, dense != Dense::kSrc);
  c.dst = MakePlace(c.extent, unit, dst_order, random, dense != Dense::kDst, false);
  for (std::byte& b : c.src.memory) {
    b = static_cast<std::byte>(random.Below(256));
  }
  std::ranges::fill(c.dst.memory, kGuard);
  return c;
}

Bytes NaiveCopy(Case& c) {
  Bytes want = c.dst.memory;
  ForEachUnit(c, [&](std::int64_t src, std::int64_t dst) {
    for (std::int64_t b = 0; b < c.unit; ++b) {
      want[c.dst.origin + dst + b] = c.src.memory[c.src.origin + src + b];
    }
  });
  return want;
}

class StridedCopyTest : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(StridedCopyTest, AgreesWithALoopOverElements) {
  for (std::uint32_t seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    Case c = RandomCase(random, GetParam(), Dense::kNeither);
    const Bytes want = NaiveCopy(c);
    RunCopy(c.nest(), c.src.data(), c.dst.data());
    ASSERT_EQ(c.dst.memory, want) << ToString(c.extent);
  }
}

TEST_P(StridedCopyTest, TransposesOfAllSmallAndTileSizes) {
  const std::uint32_t unit = GetParam();
  for (std::uint64_t rows : {1, 2, 7, 16, 63, 64, 65, 130}) {
    for (std::uint64_t columns : {1, 3, 8, 15, 64, 129, 300}) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
      Random random(1);
      Case c{Shape{rows, columns}, unit, {}, {}};
      c.src = MakePlace(c.extent, unit, {0, 1}, random, false, false);
      c.dst = MakePlace(c.extent, unit, {1, 0}, random, false, false);
      c.src.strides = {static_cast<std::int64_t>(columns * unit), unit};
      c.dst.strides = {unit, static_cast<std::int64_t>(rows * unit)};
      for (std::size_t i = 0; i < c.src.memory.size(); ++i) {
        c.src.memory[i] = static_cast<std::byte>(i * 7 + i / 256);
      }
      const Bytes want = NaiveCopy(c);
      RunCopy(c.nest(), c.src.data(), c.dst.data());
      ASSERT_EQ(c.dst.memory, want);
    }
  }
}

TEST_P(StridedCopyTest, WindowsOfADenseSourceTileTheCopy) {
  for (std::uint32_t seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    Case c = RandomCase(random, GetParam(), Dense::kSrc);
    const CopyNest nest = c.nest();
    const Bytes want = NaiveCopy(c);
    const std::uint64_t most = 1 + random.Below(nest.src_span() + 10);
    for (std::uint64_t at = 0; at < nest.src_span();) {
      // A copy of exactly the window's bytes, so that a sanitizer sees any byte beyond.
      const std::uint64_t size = std::min(1 + random.Below(most), nest.src_span() - at);
      const Bytes window(c.src.data() + at, c.src.data() + at + size);
      RunCopyWindow(nest, {at, size}, window.data(), c.dst.data());
      at += size;
    }
    ASSERT_EQ(c.dst.memory, want) << ToString(c.extent);
  }
}

TEST_P(StridedCopyTest, AWindowTouchesItsOwnBytesOnly) {
  for (std::uint32_t seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    Case c = RandomCase(random, GetParam(), Dense::kSrc);
    const CopyNest nest = c.nest();
    const ByteRange window{random.Below(nest.src_span() + 8), random.Below(nest.src_span() + 8)};
    Bytes want = c.dst.memory;
    ForEachUnit(c, [&](std::int64_t src, std::int64_t dst) {
      for (std::int64_t b = 0; b < c.unit; ++b) {
        const auto offset = static_cast<std::uint64_t>(src + b);
        if (offset >= window.offset && offset < window.end()) {
          want[c.dst.origin + dst + b] = c.src.memory[c.src.origin + offset];
        }
      }
    });
    Bytes data(window.size);
    for (std::uint64_t i = 0; i < window.size; ++i) {
      const std::uint64_t at = c.src.origin + window.offset + i;
      data[i] = at < c.src.memory.size() ? c.src.memory[at] : kGuard;
    }
    RunCopyWindow(nest, window, data.data(), c.dst.data());
    ASSERT_EQ(c.dst.memory, want) << ToString(c.extent) << " window " << window.offset << " +"
                                  << window.size;
  }
}

TEST_P(StridedCopyTest, GatherFillsWindowsOfADenseDestination) {
  for (std::uint32_t seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    Case c = RandomCase(random, GetParam(), Dense::kDst);
    const CopyNest nest = c.nest();
    const Bytes want = NaiveCopy(c);
    const std::uint64_t span = c.dst.memory.size() - c.dst.origin;  // Reaches past the last run.
    const std::uint64_t most = 1 + random.Below(span);
    for (std::uint64_t at = 0; at < span;) {
      const std::uint64_t size = std::min(1 + random.Below(most), span - at);
      Bytes window(size, kGuard);
      RunGatherWindow(nest, {at, size}, c.src.data(), window.data());
      std::ranges::copy(window, c.dst.data() + at);
      at += size;
    }
    ASSERT_EQ(c.dst.memory, want) << ToString(c.extent);
  }
}

INSTANTIATE_TEST_SUITE_P(Units, StridedCopyTest, ::testing::Values(1, 2, 3, 4, 8, 16),
                         ::testing::PrintToStringParamName());

TEST(RunCopyTest, EveryRunLengthUpTo300) {
  for (std::uint64_t run = 1; run <= 300; ++run) {
    const CopyNest nest{run, {{3, 301, 310}}};
    Bytes src(3 * 301 + 10);
    for (std::size_t i = 0; i < src.size(); ++i) {
      src[i] = static_cast<std::byte>(i % 251);
    }
    Bytes dst(3 * 310 + 10, kGuard);
    Bytes want = dst;
    for (std::uint64_t i = 0; i < 3; ++i) {
      std::copy_n(src.begin() + static_cast<std::ptrdiff_t>(i * 301), run,
                  want.begin() + static_cast<std::ptrdiff_t>(i * 310));
    }
    RunCopy(nest, src.data(), dst.data());
    ASSERT_EQ(dst, want) << run;
  }
}

// Copies large enough to bypass the cache take another path.
TEST(RunCopyTest, LargeCopiesOfEveryAlignment) {
  constexpr std::uint64_t kTotal = 9 << 20;
  Bytes src(kTotal + (1 << 20));
  for (std::size_t i = 0; i < src.size(); ++i) {
    src[i] = static_cast<std::byte>(i * 31 + i / 509);
  }

  struct Layout {
    std::uint64_t run;
    std::int64_t dst_stride;
    std::uint64_t dst_offset;
    bool backwards;
  };

  for (const Layout& layout :
       {Layout{256, 256, 1, false}, Layout{257, 300, 63, false}, Layout{319, 320, 16, true},
        Layout{5000, 5056, 7, false}, Layout{kTotal, 0, 33, false}}) {
    SCOPED_TRACE(::testing::Message() << "run " << layout.run);
    const std::uint64_t runs = kTotal / layout.run;
    const auto src_stride = static_cast<std::int64_t>(layout.run) * (layout.backwards ? -1 : 1);
    const std::uint64_t src_offset = layout.backwards ? (runs - 1) * layout.run : 3;
    const CopyNest nest{layout.run, {{runs, src_stride, layout.dst_stride}}};
    Bytes dst(
        layout.dst_offset + runs * static_cast<std::uint64_t>(layout.dst_stride) + layout.run + 64,
        kGuard);
    Bytes want = dst;
    for (std::uint64_t i = 0; i < runs; ++i) {
      const auto at = static_cast<std::int64_t>(i);
      std::copy_n(src.data() + src_offset + at * src_stride, layout.run,
                  want.data() + layout.dst_offset + at * layout.dst_stride);
    }
    Bytes windowed = dst;
    RunCopy(nest, src.data() + src_offset, dst.data() + layout.dst_offset);
    EXPECT_TRUE(dst == want);  // Not EXPECT_EQ: it would print megabytes.
    if (layout.backwards) {
      continue;
    }
    constexpr std::uint64_t kWindow = 100001;
    for (std::uint64_t at = 0; at < nest.src_span(); at += kWindow) {
      RunCopyWindow(nest, {at, std::min(kWindow, nest.src_span() - at)},
                    src.data() + src_offset + at, windowed.data() + layout.dst_offset);
    }
    EXPECT_TRUE(windowed == want);
  }
}

TEST(RunCopyTest, ScalarsAndEmptyNests) {
  const Bytes src = {std::byte{1}, std::byte{2}};
  Bytes dst(2, kGuard);
  RunCopy(CopyNest{}, src.data(), dst.data());
  RunCopy(CopyNest{1, {{0, 1, 1}, {2, 1, 1}}}, src.data(), dst.data());
  RunCopyWindow(CopyNest{}, {0, 2}, src.data(), dst.data());
  RunCopyWindow(CopyNest{2, {}}, {1, 0}, src.data(), dst.data());
  RunCopyWindow(CopyNest{2, {}}, {2, 2}, src.data(), dst.data());
  EXPECT_EQ(dst, Bytes(2, kGuard));
  RunCopyWindow(CopyNest{2, {}}, {1, 1}, src.data() + 1, dst.data());
  EXPECT_EQ(dst, (Bytes{kGuard, std::byte{2}}));
  RunCopy(CopyNest{2, {}}, src.data(), dst.data());
  EXPECT_EQ(dst, src);
}

TEST(RunCopyTest, LoopOfOneStepInAHandMadeNestMayHaveAnyStride) {
  const Bytes src = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  Bytes dst(4, kGuard);
  RunCopyWindow(CopyNest{2, {{1, 0, 0}, {2, 2, 2}, {1, -8, 9}}}, {1, 2}, src.data() + 1,
                dst.data());
  EXPECT_EQ(dst, (Bytes{kGuard, std::byte{2}, std::byte{3}, kGuard}));
}

TEST(RunCopyTest, SixtyFourAxesWork) {
  Shape extent(kMaxAxes, 1);
  extent[0] = 3;
  extent[63] = 2;
  std::vector<std::int64_t> src_strides(kMaxAxes, 0);
  std::vector<std::int64_t> dst_strides(kMaxAxes, 0);
  src_strides[0] = 2;
  src_strides[63] = 1;
  dst_strides[0] = 1;
  dst_strides[63] = 3;
  const Bytes src = {std::byte{1}, std::byte{2}, std::byte{3},
                     std::byte{4}, std::byte{5}, std::byte{6}};
  Bytes dst(6);
  RunCopy(MakeCopyNest(extent, 1, src_strides, dst_strides), src.data(), dst.data());
  EXPECT_EQ(dst, (Bytes{std::byte{1}, std::byte{3}, std::byte{5}, std::byte{2}, std::byte{4},
                        std::byte{6}}));
}

TEST(RunCopyWindowTest, CostDependsOnTheWindowNotOnTheNest) {
  // 2^50 runs: walking them would never end, and the memory does not exist.
  const CopyNest nest{2, {{1ULL << 25, 4LL << 25, 0}, {1ULL << 25, 4, 0}}};
  const std::uint64_t last = (4ULL << 50) - 4;  // where the last run begins
  const Bytes window = {std::byte{7}, std::byte{8}, std::byte{9}, std::byte{10}};
  Bytes dst(2, kGuard);
  RunCopyWindow(nest, {last - 2, 4}, window.data(), dst.data());
  EXPECT_EQ(dst, (Bytes{std::byte{9}, std::byte{10}}));
}

}  // namespace
}  // namespace reshard
