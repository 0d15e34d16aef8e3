#include "reshard/base/checked.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>

namespace reshard {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

TEST(CheckedTest, AddsUpToTheLimit) {
  EXPECT_EQ(CheckedAdd(kMax - 1, 1), kMax);
  EXPECT_EQ(CheckedAdd(kMax, 1), std::nullopt);
}

TEST(CheckedTest, MultipliesUpToTheLimit) {
  EXPECT_EQ(CheckedMul(kMax, 1), kMax);
  EXPECT_EQ(CheckedMul(1ULL << 32, 1ULL << 32), std::nullopt);
}

TEST(CheckedTest, ProductThatWrapsToASmallNumberIsRefused) {
  const std::array<std::uint64_t, 3> shape = {4194305, 4194305, 211106198978564};
  EXPECT_EQ(CheckedProduct(shape), std::nullopt);
}

TEST(CheckedTest, ZeroDoesNotHideAnOverflowInAnyOrder) {
  EXPECT_EQ(CheckedProduct(std::array<std::uint64_t, 3>{0, kMax, kMax}), std::nullopt);
  EXPECT_EQ(CheckedProduct(std::array<std::uint64_t, 3>{kMax, kMax, 0}), std::nullopt);
  EXPECT_EQ(CheckedProduct(std::array<std::uint64_t, 2>{0, kMax}), 0U);
}

TEST(CheckedTest, EmptyProductIsOne) { EXPECT_EQ(CheckedProduct({}), 1U); }

}  // namespace
}  // namespace reshard
