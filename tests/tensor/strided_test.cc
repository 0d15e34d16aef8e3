#include "reshard/tensor/strided.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "tests/support/status_matchers.h"

namespace reshard {
namespace {

using ::testing::ElementsAre;
using testing::FailsWith;
using ::testing::IsEmpty;

std::byte* SomeAddress() {
  static std::array<std::byte, 1> memory;
  return memory.data();
}

TEST(TensorViewTest, RowMajorStridesCountElements) {
  EXPECT_THAT(RowMajorStrides(Shape{2, 3, 4}), ElementsAre(12, 4, 1));
  EXPECT_THAT(RowMajorStrides(Shape{}), IsEmpty());
  EXPECT_THAT(RowMajorStrides(Shape{2, 0, 4}), ElementsAre(4, 4, 1));
}

TEST(TensorViewTest, DenseViewsAreDense) {
  EXPECT_TRUE(IsDense(DenseView(SomeAddress(), DType::kFloat32, {2, 3})));
  EXPECT_TRUE(IsDense(DenseView(SomeAddress(), DType::kFloat32, {})));
  EXPECT_TRUE(IsDense(DenseView(nullptr, DType::kFloat32, {2, 0})));
  const float values[6] = {};
  EXPECT_TRUE(IsDense(ConstDenseView(values, DType::kFloat32, {2, 3})));
  EXPECT_EQ(ConstDenseView(values, DType::kFloat32, {2, 3}).data,
            reinterpret_cast<const std::byte*>(values));
}

TEST(TensorViewTest, DensityIgnoresStridesOfAxesWithOneStep) {
  TensorView view{SomeAddress(), DType::kFloat32, {1, 3, 1}, {99, 1, -7}};
  EXPECT_TRUE(IsDense(view));
  view.strides = {3, 2, 1};
  EXPECT_FALSE(IsDense(view));
  view = {SomeAddress(), DType::kFloat32, {2, 3}, {1, 2}};
  EXPECT_FALSE(IsDense(view)) << "a transpose";
}

TEST(CheckViewTest, AcceptsNegativeAndZeroStrides) {
  EXPECT_OK(CheckView({SomeAddress(), DType::kFloat32, {4, 3}, {-3, 0}}));
  EXPECT_OK(CheckView({nullptr, DType::kFloat32, {4, 0}, {0, 0}}));  // empty: no address needed
  EXPECT_OK(CheckView({SomeAddress(), DType::kComplex128, {}, {}}));
}

TEST(CheckViewTest, RefusesWhatIsNoView) {
  EXPECT_THAT(CheckView({SomeAddress(), DType::kFloat32, {4}, {}}), FailsWith("BAD_VIEW"));
  EXPECT_THAT(CheckView({nullptr, DType::kFloat32, {4}, {1}}), FailsWith("BAD_VIEW"));
  EXPECT_THAT(CheckView({nullptr, DType::kFloat32, {}, {}}), FailsWith("BAD_VIEW"));
  EXPECT_THAT(CheckView({SomeAddress(), DType::kFloat32, {1ULL << 62}, {1}}),
              FailsWith("SHAPE_OVERFLOW"));
}

TEST(CheckViewTest, RefusesStridesThatReachTooFar) {
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  EXPECT_THAT(CheckView({SomeAddress(), DType::kUint8, {2}, {kMin}}), FailsWith("BAD_VIEW"));
  EXPECT_THAT(CheckView({SomeAddress(), DType::kFloat64, {3}, {1LL << 60}}), FailsWith("BAD_VIEW"));
  EXPECT_OK(CheckView({SomeAddress(), DType::kFloat64, {1}, {kMin}}));  // never stepped
}

TEST(CheckViewTest, SubByteViewsStepByUnitsAndAreDenseAlongTheLastAxis) {
  EXPECT_OK(CheckView({SomeAddress(), DType::kFloat6E2m3, {2, 4}, {-8, 1}}));
  EXPECT_THAT(CheckView({SomeAddress(), DType::kFloat6E2m3, {2, 4}, {6, 1}}),
              FailsWith("BAD_VIEW"));
  EXPECT_THAT(CheckView({SomeAddress(), DType::kFloat4E2m1, {2, 4}, {4, 2}}),
              FailsWith("BAD_VIEW"));
  EXPECT_THAT(CheckView({SomeAddress(), DType::kFloat4E2m1, {2, 3}, {4, 1}}),
              FailsWith("NOT_BYTE_SIZED"));
}

TEST(StrideBytesTest, EveryDTypeAgreesWithDenseStrides) {
  for (const DTypeInfo& info : AllDTypes()) {
    SCOPED_TRACE(info.name);
    const Shape shape = {3, 2, 8};
    const TensorView view = DenseView(SomeAddress(), info.dtype, shape);
    EXPECT_OK(CheckView(view));
    EXPECT_EQ(StrideBytes(view), DenseStrideBytes(ToUnits(shape, info.dtype), info.unit_bytes));
    EXPECT_EQ(StrideBytes(view)[1], static_cast<std::int64_t>(info.bits));  // 8 elements
  }
}

TEST(StrideBytesTest, NegativeStrides) {
  EXPECT_THAT(StrideBytes({SomeAddress(), DType::kFloat32, {4, 3}, {-3, -1}}),
              ElementsAre(-12, -4));
  EXPECT_THAT(StrideBytes({SomeAddress(), DType::kFloat6E2m3, {2, 8}, {-8, 1}}),
              ElementsAre(-6, 3));
}

TEST(CopyNestTest, ContiguousAxesMergeIntoOneRun) {
  const auto strides = DenseStrideBytes(Shape{2, 3, 4}, 4);
  const CopyNest nest = MakeCopyNest(Shape{2, 3, 4}, 4, strides, strides);
  EXPECT_EQ(nest.run_bytes, 96U);
  EXPECT_THAT(nest.loops, IsEmpty());
  EXPECT_EQ(nest.num_runs(), 1U);
}

TEST(CopyNestTest, ColumnCutKeepsOneLoop) {
  // Columns of a (6, 8) tensor of 4 bytes, cut to (6, 3): two outer axes of a (2, 3, 3) box merge.
  const CopyNest nest = MakeCopyNest(Shape{2, 3, 3}, 4, std::vector<std::int64_t>{96, 32, 4},
                                     std::vector<std::int64_t>{36, 12, 4});
  EXPECT_EQ(nest.run_bytes, 12U);
  EXPECT_THAT(nest.loops, ElementsAre(NestLoop{6, 32, 12}));
  EXPECT_EQ(nest.num_bytes(), 72U);
  EXPECT_EQ(nest.src_span(), 5U * 32U + 12U);
}

TEST(CopyNestTest, AxesContiguousOnOneSideOnlyStayApart) {
  const CopyNest nest = MakeCopyNest(Shape{2, 3}, 4, std::vector<std::int64_t>{12, 4},
                                     std::vector<std::int64_t>{4, 8});
  EXPECT_EQ(nest.run_bytes, 4U);
  EXPECT_THAT(nest.loops, ElementsAre(NestLoop{2, 12, 4}, NestLoop{3, 4, 8}));
}

TEST(CopyNestTest, LoopsOfOneStepVanish) {
  const CopyNest nest =
      MakeCopyNest(Shape{1, 3, 1, 4}, 2, std::vector<std::int64_t>{-5, 100, 77, 2},
                   std::vector<std::int64_t>{9, 8, 1, 2});
  EXPECT_EQ(nest.run_bytes, 8U);
  EXPECT_THAT(nest.loops, ElementsAre(NestLoop{3, 100, 8}));
}

TEST(CopyNestTest, ScalarIsOneRunAndEmptyIsNone) {
  const CopyNest scalar = MakeCopyNest({}, 16, {}, {});
  EXPECT_EQ(scalar.run_bytes, 16U);
  EXPECT_EQ(scalar.num_runs(), 1U);
  const CopyNest empty = MakeCopyNest(Shape{3, 0}, 4, std::vector<std::int64_t>{0, 4},
                                      std::vector<std::int64_t>{0, 4});
  EXPECT_EQ(empty.num_runs(), 0U);
  EXPECT_EQ(empty.num_bytes(), 0U);
  EXPECT_EQ(empty.src_span(), 0U);
}

}  // namespace
}  // namespace reshard
