#include "reshard/catalog/tiling.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <random>

#include "tests/support/random_boxes.h"
#include "tests/support/sanitizers.h"

namespace reshard {
namespace {

using ::reshard::testing::CountElements;
using ::reshard::testing::kSanitized;
using ::reshard::testing::RandomTiling;

std::vector<BoxView> Views(const std::vector<Box>& boxes) { return {boxes.begin(), boxes.end()}; }

bool Tiles(const Shape& shape, const std::vector<Box>& boxes) {
  return TilesExactly(WholeBox(shape), Views(boxes));
}

TilingFault Fault(const std::vector<Box>& boxes) { return FindTilingFault(Views(boxes)); }

Shape RandomShape(std::mt19937_64& random, std::size_t max_axes, std::uint64_t max_extent) {
  Shape shape(random() % (max_axes + 1));
  std::generate(shape.begin(), shape.end(), [&] { return 1 + random() % max_extent; });
  return shape;
}

Box RandomBox(const Shape& shape, std::mt19937_64& random) {
  Box box;
  for (const std::uint64_t extent : shape) {
    box.offset.push_back(random() % (extent + 1));
    box.extent.push_back(random() % (extent - box.offset.back() + 1));
  }
  return box;
}

/// Moves, doubles, drops or replaces one box, staying inside `shape`.
void Disturb(std::vector<Box>& boxes, const Shape& shape, std::mt19937_64& random) {
  const std::size_t i = random() % boxes.size();
  switch (random() % 4) {
    case 0:
      boxes.push_back(boxes[i]);
      break;
    case 1:
      boxes.erase(boxes.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    case 2:
      boxes[i] = RandomBox(shape, random);
      break;
    default:
      if (!shape.empty()) {
        const std::size_t a = random() % shape.size();
        if (boxes[i].offset[a] > 0) {
          --boxes[i].offset[a];
        } else if (boxes[i].extent[a] < shape[a]) {
          ++boxes[i].offset[a];
        }
      }
  }
}

TEST(TilesExactlyTest, AgreesWithCountingElements) {
  std::mt19937_64 random(20240607);
  int tilings = 0;
  for (int round = 0; round < 4000; ++round) {
    const Shape shape = RandomShape(random, 4, 4);
    std::vector<Box> boxes = RandomTiling(WholeBox(shape), 5, 1, random);
    std::shuffle(boxes.begin(), boxes.end(), random);
    for (std::uint64_t i = random() % 3; i > 0 && !boxes.empty(); --i) {
      Disturb(boxes, shape, random);
    }
    const std::vector<int> counts = CountElements(shape, Views(boxes));
    const bool expected = std::all_of(counts.begin(), counts.end(), [](int n) { return n == 1; });
    tilings += expected ? 1 : 0;
    ASSERT_EQ(Tiles(shape, boxes), expected) << "round " << round << " " << ToString(shape);
  }
  EXPECT_GT(tilings, 1000);
  EXPECT_LT(tilings, 3000);
}

TEST(TilesExactlyTest, SeesOverlapAndHoleOfEqualVolume) {
  EXPECT_FALSE(Tiles({4}, {{{0}, {2}}, {{1}, {2}}}));
  EXPECT_FALSE(Tiles({4, 2}, {{{0, 0}, {3, 2}}, {{2, 0}, {1, 2}}}));
  // Every row and every column is counted twice: only the joint count shows the fault.
  EXPECT_FALSE(
      Tiles({2, 2}, {{{0, 0}, {1, 1}}, {{0, 0}, {1, 1}}, {{1, 1}, {1, 1}}, {{1, 1}, {1, 1}}}));
  EXPECT_TRUE(
      Tiles({2, 2}, {{{0, 0}, {1, 1}}, {{0, 1}, {1, 1}}, {{1, 1}, {1, 1}}, {{1, 0}, {1, 1}}}));
}

TEST(TilesExactlyTest, ScalarsAndEmptyRegions) {
  EXPECT_TRUE(Tiles({}, {{{}, {}}}));
  EXPECT_FALSE(Tiles({}, {}));
  EXPECT_FALSE(Tiles({}, {{{}, {}}, {{}, {}}}));
  EXPECT_TRUE(Tiles({0, 5}, {}));
  EXPECT_TRUE(Tiles({0, 5}, {{{0, 0}, {0, 5}}}));
  EXPECT_TRUE(Tiles({2}, {{{0}, {0}}, {{0}, {2}}, {{2}, {0}}}));
}

TEST(TilesExactlyTest, LargeCoordinates) {
  const std::uint64_t big = (1ULL << 62) + 12345;
  EXPECT_TRUE(Tiles({big}, {{{0}, {big - 1}}, {{big - 1}, {1}}}));
  EXPECT_FALSE(Tiles({big}, {{{0}, {big - 1}}}));
  EXPECT_FALSE(Tiles({big}, {{{0}, {big - 1}}, {{big - 2}, {1}}}));
}

TEST(FindTilingFaultTest, NamesTwoBoxesThatOverlapOrSaysHole) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 2000; ++round) {
    const Shape shape = RandomShape(random, 3, 4);
    std::vector<Box> boxes = RandomTiling(WholeBox(shape), 5, 1, random);
    Disturb(boxes, shape, random);
    const std::vector<int> counts = CountElements(shape, Views(boxes));
    const bool overlap = std::any_of(counts.begin(), counts.end(), [](int n) { return n > 1; });
    const TilingFault fault = Fault(boxes);
    ASSERT_EQ(fault.overlap, overlap) << "round " << round;
    if (overlap) {
      ASSERT_LT(fault.first, fault.second);
      ASSERT_TRUE(Overlaps(boxes[fault.first], boxes[fault.second]));
    }
  }
  EXPECT_TRUE(Fault({{{}, {}}, {{}, {}}}).overlap);
  EXPECT_FALSE(Fault({}).overlap);
}

TEST(BoxIndexTest, FindsWhatComparingAllFinds) {
  std::mt19937_64 random(99);
  for (int round = 0; round < 200; ++round) {
    const Shape shape = RandomShape(random, 3, 30);
    std::vector<Box> boxes;
    for (std::uint64_t i = random() % 100; i > 0; --i) {  // overlaps and empty ones too
      boxes.push_back(RandomBox(shape, random));
    }
    const BoxIndex index(Views(boxes));
    for (int query = 0; query < 20; ++query) {
      const Box wanted = query == 0 ? WholeBox(shape) : RandomBox(shape, random);
      std::vector<std::size_t> expected;
      for (std::size_t i = 0; i < boxes.size(); ++i) {
        if (Overlaps(boxes[i], wanted)) {
          expected.push_back(i);
        }
      }
      std::vector<std::size_t> found;
      index.ForEachMeeting(wanted, [&](std::size_t i) { found.push_back(i); });
      ASSERT_EQ(found, expected) << "round " << round;
    }
  }
}

class LargeGridTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kRows = 320;
  static constexpr std::uint64_t kColumns = 320;  // 102,400 boxes

  LargeGridTest() {
    for (std::uint64_t r = 0; r < kRows; ++r) {
      for (std::uint64_t c = 0; c < kColumns; ++c) {
        boxes_.push_back({{r * 16, c * 8}, {16, 8}});
      }
    }
  }

  /// Of this thread on a processor, so that a busy machine does not count.
  static double Seconds(const std::function<void()>& work) {
    const auto now = [] {
      timespec time{};
      ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
    };
    const double begin = now();
    work();
    return now() - begin;
  }

  static constexpr double kBoundSeconds = kSanitized ? 15 : 1;

  std::vector<Box> boxes_;
};

TEST_F(LargeGridTest, ChecksFaultsAndQueriesAreNotQuadratic) {
  const Shape shape = {kRows * 16, kColumns * 8};
  EXPECT_LT(Seconds([&] { EXPECT_TRUE(Tiles(shape, boxes_)); }), kBoundSeconds);
  std::size_t meetings = 0;
  EXPECT_LT(
      Seconds([&] {
        const BoxIndex index(Views(boxes_));
        for (std::uint64_t r = 0; r < kRows; ++r) {  // a reader per band of rows
          index.ForEachMeeting(Box{{r * 16 + 8, 0}, {16, 8}}, [&](std::size_t) { ++meetings; });
        }
      }),
      kBoundSeconds);
  EXPECT_EQ(meetings, 2 * kRows - 1);
  boxes_[50'000].offset[1] -= 1;
  EXPECT_LT(Seconds([&] {
              EXPECT_FALSE(Tiles(shape, boxes_));
              EXPECT_TRUE(Fault(boxes_).overlap);
            }),
            kBoundSeconds);
}

}  // namespace
}  // namespace reshard
