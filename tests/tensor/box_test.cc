#include "reshard/tensor/box.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "tests/support/status_matchers.h"

namespace reshard {
namespace {

using testing::FailsWith;

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

bool Has(const Box& box, const Index& index) {
  for (std::size_t i = 0; i < index.size(); ++i) {
    if (index[i] < box.offset[i] || index[i] - box.offset[i] >= box.extent[i]) {
      return false;
    }
  }
  return true;
}

TEST(BoxTest, WholeBoxBeginsAtZero) {
  EXPECT_EQ(WholeBox(Shape{4, 8}), (Box{{0, 0}, {4, 8}}));
  EXPECT_EQ(WholeBox(Shape{}), (Box{{}, {}}));
}

TEST(BoxTest, ViewEqualsTheBoxItShows) {
  const Box box{{1, 2}, {3, 4}};
  EXPECT_EQ(BoxView(box), BoxView(Box{{1, 2}, {3, 4}}));
  EXPECT_FALSE(BoxView(box) == BoxView(Box{{1, 2}, {3, 5}}));
  EXPECT_FALSE(BoxView(box) == BoxView(Box{{1}, {3}}));
  EXPECT_EQ(BoxView(box).ToBox(), box);
}

TEST(BoxTest, CountsElements) {
  EXPECT_EQ(NumElements(Box{{1, 2}, {3, 4}}), 12U);
  EXPECT_EQ(NumElements(Box{{}, {}}), 1U);
  EXPECT_EQ(NumElements(Shape{5, 0, 7}), 0U);
}

TEST(BoxTest, OnlyAZeroExtentIsEmpty) {
  EXPECT_FALSE(IsEmpty(Box{{}, {}}));
  EXPECT_FALSE(IsEmpty(Box{{9}, {1}}));
  EXPECT_TRUE(IsEmpty(Box{{0, 4}, {3, 0}}));
}

TEST(BoxTest, IntersectsWhereBoxesShareElements) {
  EXPECT_EQ(Intersect(Box{{0, 2}, {4, 4}}, Box{{2, 0}, {5, 3}}), (Box{{2, 2}, {2, 1}}));
  EXPECT_EQ(Intersect(Box{{0}, {4}}, Box{{4}, {4}}), std::nullopt) << "neighbours do not meet";
  EXPECT_EQ(Intersect(Box{{0}, {4}}, Box{{2}, {0}}), std::nullopt) << "an empty box meets nothing";
  EXPECT_EQ(Intersect(Box{{}, {}}, Box{{}, {}}), (Box{{}, {}}));
}

TEST(BoxTest, ContainsEmptyBoxesEverywhere) {
  EXPECT_TRUE(Contains(Box{{0, 0}, {4, 4}}, Box{{1, 0}, {3, 4}}));
  EXPECT_FALSE(Contains(Box{{0, 0}, {4, 4}}, Box{{1, 0}, {4, 4}}));
  EXPECT_FALSE(Contains(Box{{1, 0}, {4, 4}}, Box{{0, 0}, {1, 1}}));
  EXPECT_TRUE(Contains(Box{{1, 1}, {1, 1}}, Box{{9, 3}, {2, 0}}));
  EXPECT_TRUE(Contains(Box{{}, {}}, Box{{}, {}}));
}

TEST(BoxTest, RandomPairsAgreeWithTheirElements) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    SCOPED_TRACE(::testing::Message() << "seed 7, round " << round);
    Box a{Index(2), Index(2)};
    Box b = a;
    for (std::size_t i = 0; i < 2; ++i) {
      a.offset[i] = random() % 5;
      b.offset[i] = random() % 5;
      a.extent[i] = random() % 4;
      b.extent[i] = random() % 4;
    }
    const std::optional<Box> common = Intersect(a, b);
    bool contains = true;
    for (std::uint64_t x = 0; x < 9; ++x) {
      for (std::uint64_t y = 0; y < 9; ++y) {
        ASSERT_EQ(Has(a, {x, y}) && Has(b, {x, y}), common && Has(*common, {x, y}));
        contains = contains && (Has(a, {x, y}) || !Has(b, {x, y}));
      }
    }
    ASSERT_EQ(Contains(a, b), contains);
    ASSERT_EQ(Overlaps(a, b), common.has_value());
    ASSERT_FALSE(common && IsEmpty(*common));
  }
}

TEST(CheckShapeTest, AcceptsScalarsZerosAndTheLargest) {
  EXPECT_OK(CheckShape(Shape{}, DType::kFloat32));
  EXPECT_OK(CheckShape(Shape{0}, DType::kFloat32));
  EXPECT_OK(CheckShape(Shape(kMaxAxes, 1), DType::kFloat32));
  EXPECT_OK(CheckShape(Shape{(1ULL << 60) - 1}, DType::kFloat64));
  EXPECT_OK(CheckShape(Shape{kMax / 2}, DType::kUint8));
  EXPECT_OK(CheckShape(Shape{kMax / 2 - 1}, DType::kFloat4E2m1));
}

TEST(CheckShapeTest, RefusesTooManyAxes) {
  EXPECT_THAT(CheckShape(Shape(kMaxAxes + 1, 1), DType::kUint8), FailsWith("TOO_MANY_AXES"));
}

TEST(CheckShapeTest, RefusesMoreBytesThan63Bits) {
  EXPECT_THAT(CheckShape(Shape{1ULL << 60}, DType::kFloat64), FailsWith("SHAPE_OVERFLOW"));
  EXPECT_THAT(CheckShape(Shape{1ULL << 59}, DType::kComplex128), FailsWith("SHAPE_OVERFLOW"));
  EXPECT_THAT(CheckShape(Shape{1ULL << 63}, DType::kBool), FailsWith("SHAPE_OVERFLOW"));
  EXPECT_THAT(CheckShape(Shape{1ULL << 63}, DType::kFloat4E2m1), FailsWith("SHAPE_OVERFLOW"));
  EXPECT_THAT(CheckShape(Shape{4194305, 4194305, 211106198978564}, DType::kUint8),
              FailsWith("SHAPE_OVERFLOW"));
}

TEST(CheckShapeTest, ZeroDoesNotHideAnOverflow) {
  EXPECT_THAT(CheckShape(Shape{0, kMax, kMax}, DType::kUint8), FailsWith("SHAPE_OVERFLOW"));
  EXPECT_THAT(CheckShape(Shape{kMax, 0}, DType::kUint8), FailsWith("SHAPE_OVERFLOW"));
}

TEST(CheckShapeTest, SubByteShapesAreWholeUnits) {
  EXPECT_OK(CheckShape(Shape{3, 4}, DType::kFloat4E2m1));
  EXPECT_OK(CheckShape(Shape{3, 0}, DType::kFloat6E2m3));
  EXPECT_THAT(CheckShape(Shape{4, 3}, DType::kFloat4E2m1), FailsWith("NOT_BYTE_SIZED"));
  EXPECT_THAT(CheckShape(Shape{4, 6}, DType::kFloat6E3m2), FailsWith("NOT_BYTE_SIZED"));
  EXPECT_THAT(CheckShape(Shape{}, DType::kFloat4E2m1), FailsWith("NOT_BYTE_SIZED"));
}

TEST(CheckBoxTest, AcceptsBoxesUpToTheEdge) {
  EXPECT_OK(CheckBox(Box{{}, {}}, Shape{}, DType::kInt32));
  EXPECT_OK(CheckBox(Box{{1, 0}, {3, 8}}, Shape{4, 8}, DType::kInt32));
  EXPECT_OK(CheckBox(Box{{4, 0}, {0, 8}}, Shape{4, 8}, DType::kInt32));  // empty, at the end
}

TEST(CheckBoxTest, RefusesAnotherNumberOfAxes) {
  EXPECT_THAT(CheckBox(Box{{0}, {4}}, Shape{4, 8}, DType::kInt32), FailsWith("BOX_RANK"));
  EXPECT_THAT(CheckBox(Box{{0, 0}, {4}}, Shape{4, 8}, DType::kInt32), FailsWith("BOX_RANK"));
}

TEST(CheckBoxTest, RefusesBoxesThatLeaveTheShape) {
  EXPECT_THAT(CheckBox(Box{{2, 0}, {3, 8}}, Shape{4, 8}, DType::kInt32),
              FailsWith("BOX_OUT_OF_SHAPE"));
  EXPECT_THAT(CheckBox(Box{{5, 0}, {0, 8}}, Shape{4, 8}, DType::kInt32),
              FailsWith("BOX_OUT_OF_SHAPE"));
  EXPECT_THAT(CheckBox(Box{{kMax}, {2}}, Shape{4}, DType::kInt32), FailsWith("BOX_OUT_OF_SHAPE"));
  EXPECT_THAT(CheckBox(Box{{2}, {kMax}}, Shape{4}, DType::kInt32), FailsWith("BOX_OUT_OF_SHAPE"));
}

TEST(CheckBoxTest, SubByteEdgesFallOnUnits) {
  EXPECT_OK(CheckBox(Box{{1, 4}, {3, 8}}, Shape{4, 12}, DType::kFloat6E2m3));
  EXPECT_THAT(CheckBox(Box{{0, 2}, {4, 8}}, Shape{4, 12}, DType::kFloat6E2m3),
              FailsWith("NOT_BYTE_SIZED"));
  EXPECT_THAT(CheckBox(Box{{0, 4}, {4, 6}}, Shape{4, 12}, DType::kFloat6E2m3),
              FailsWith("NOT_BYTE_SIZED"));
}

TEST(BoxTest, BytesOfEveryDType) {
  for (const DTypeInfo& info : AllDTypes()) {
    SCOPED_TRACE(info.name);
    EXPECT_EQ(NumBytes(Shape{3, 8}, info.dtype), 3U * 8U * info.bits / 8U);
    EXPECT_EQ(NumBytes(Box{{0, 4}, {2, 4}}, info.dtype), 2U * 4U * info.bits / 8U);
    EXPECT_EQ(NumBytes(Shape{0, 8}, info.dtype), 0U);
  }
}

TEST(BoxTest, UnitsCountTheLastAxis) {
  EXPECT_EQ(ToUnits(Box{{1, 4}, {3, 8}}, DType::kFloat4E2m1), (Box{{1, 2}, {3, 4}}));
  EXPECT_EQ(ToUnits(Box{{1, 4}, {3, 8}}, DType::kFloat6E2m3), (Box{{1, 1}, {3, 2}}));
  EXPECT_EQ(ToUnits(Box{{1, 4}, {3, 8}}, DType::kFloat32), (Box{{1, 4}, {3, 8}}));
  EXPECT_EQ(ToUnits(Shape{6, 8}, DType::kFloat6E3m2), (Shape{6, 2}));
  EXPECT_EQ(ToUnits(Box{{}, {}}, DType::kFloat32), (Box{{}, {}}));
}

TEST(BoxTest, Text) {
  EXPECT_EQ(ToString(Box{{0, 2}, {4, 4}}), "[0:4, 2:6]");
  EXPECT_EQ(ToString(Box{{}, {}}), "[]");
  EXPECT_EQ(ToString(Shape{4, 8}), "(4, 8)");
  EXPECT_EQ(ToString(Shape{}), "()");
}

}  // namespace
}  // namespace reshard
