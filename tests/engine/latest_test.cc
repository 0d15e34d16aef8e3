#include "reshard/engine/latest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/engine/snapshot.h"
#include "tests/engine/memory_places.h"
#include "tests/support/small_checkpoint.h"
#include "tests/support/status_matchers.h"

namespace reshard::testing {
namespace {

TEST(PlacesTest, ComparesNumbersInNamesAsNumbers) {
  EXPECT_LT(CompareNaturally("step-9", "step-10"), 0);
  EXPECT_LT(CompareNaturally("step-09", "step-10"), 0);
  EXPECT_GT(CompareNaturally("step-99999999999999999999999", "step-9"), 0);
  EXPECT_LT(CompareNaturally("step-2", "step-2b"), 0);
  EXPECT_EQ(CompareNaturally("a1b2", "a1b2"), 0);
  EXPECT_NE(CompareNaturally("a01", "a1"), 0);
  EXPECT_LT(CompareNaturally("a", "b"), 0);
}

TEST(PlacesTest, ComparesPathsByComponent) {
  EXPECT_LT(ComparePaths("run-2/step-10", "run-10/step-9"), 0);
  EXPECT_LT(ComparePaths("", "a"), 0);
  EXPECT_LT(ComparePaths("a", "a/0"), 0);
  EXPECT_LT(ComparePaths("a/9", "a-1/2"), 0);  // not because '/' > '-'
}

class LatestTest : public ::testing::Test {
 protected:
  MemoryPlaces runs_;
};

TEST_F(LatestTest, FindsNothingInEmptyPlaces) {
  runs_.At("run");
  ASSERT_OK_AND_ASSIGN(const Latest latest, FindLatest(runs_.places()));
  EXPECT_FALSE(latest.newest);
  EXPECT_TRUE(latest.skipped.empty());
}

TEST_F(LatestTest, OrdersByFolderNumbersThenById) {
  ASSERT_OK(SaveSmall(runs_.At("run/step-10"), 2));
  ASSERT_OK(SaveSmall(runs_.At("run/step-10"), 10));
  ASSERT_OK(SaveSmall(runs_.At("run/step-9"), 50));
  ASSERT_OK_AND_ASSIGN(const Latest latest, FindLatest(runs_.places()));
  EXPECT_EQ(latest.newest, (SnapshotRef{"run/step-10", 10}));
  EXPECT_FALSE(latest.only_one);
}

TEST_F(LatestTest, PassesOverDamagedOnesAndSaysSo) {
  ASSERT_OK(SaveSmall(runs_.At("run/step-1"), 0));
  ASSERT_OK(SaveSmall(runs_.At("run/step-2"), 0));
  ASSERT_OK(SaveSmall(runs_.At("run/step-3"), 0));
  ASSERT_OK(runs_.At("run/step-3").Remove("1_0.safetensors"));
  ASSERT_OK_AND_ASSIGN(Bytes bytes, ReadWhole(runs_.At("run/step-2"), "0.reshard"));
  bytes.resize(bytes.size() / 2);
  Rewrite(runs_.At("run/step-2"), "0.reshard", bytes);
  ASSERT_OK_AND_ASSIGN(const Latest latest, FindLatest(runs_.places()));
  EXPECT_EQ(latest.newest, (SnapshotRef{"run/step-1", 0}));
  EXPECT_TRUE(latest.only_one);
  ASSERT_EQ(latest.skipped.size(), 2U);
  EXPECT_EQ(latest.skipped[0].snapshot, (SnapshotRef{"run/step-3", 0}));
  EXPECT_EQ(latest.skipped[0].why.reason, "FILE_MISSING");
  EXPECT_EQ(latest.skipped[1].why.reason, "CATALOG_TRUNCATED");
}

TEST_F(LatestTest, AShorterFileIsNotComplete) {
  Storage& storage = runs_.At("run");
  ASSERT_OK(SaveSmall(storage, 0));
  ASSERT_OK(SaveSmall(storage, 1));
  ASSERT_OK_AND_ASSIGN(Bytes bytes, ReadWhole(storage, "0_1.safetensors"));
  bytes.pop_back();
  Rewrite(storage, "0_1.safetensors", bytes);
  ASSERT_OK_AND_ASSIGN(const Latest latest, FindLatest(runs_.places()));
  EXPECT_EQ(latest.newest, (SnapshotRef{"run", 0}));
  ASSERT_EQ(latest.skipped.size(), 1U);
  EXPECT_EQ(latest.skipped[0].why.reason, "FILE_SIZE");
}

TEST_F(LatestTest, NeverTakesAnOlderOneBecauseOfAnIoError) {
  ASSERT_OK(SaveSmall(runs_.At("run/step-1"), 0));
  ASSERT_OK(SaveSmall(runs_.At("run/step-2"), 0));
  ASSERT_OK(FindLatest(runs_.places()));
  const std::uint64_t all = runs_.operations();
  ASSERT_GT(all, 5U);
  for (std::uint64_t k = 0; k < all; ++k) {
    runs_.SetFaults([k](std::uint64_t count, StorageOp, std::string_view) {
      return count == k ? FaultAction::kFail : FaultAction::kNone;
    });
    const Result<Latest> latest = FindLatest(runs_.places());
    if (latest.ok()) {  // the first, optional look at the catalog
      EXPECT_EQ(latest->newest, (SnapshotRef{"run/step-2", 0})) << k;
    } else {
      EXPECT_EQ(latest.error().reason, "INJECTED") << k;
    }
  }
}

}  // namespace
}  // namespace reshard::testing
