#include "reshard/catalog/master_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/support/status_matchers.h"

namespace reshard {
namespace {

using ::reshard::testing::FailsWith;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<std::optional<std::string>> Resolve(std::string_view key,
                                           const std::set<std::string, std::less<>>& stored) {
  return ResolveMasterWeight(key, [&](std::string_view name) { return stored.contains(name); });
}

struct Row {
  std::string requested;
  std::string first;  ///< The name that is tried first; empty: none.
};

void PrintTo(const Row& row, std::ostream* out) { *out << row.requested; }

class MasterWeightTableTest : public ::testing::TestWithParam<Row> {};

// The names that Paddle's users rely on. Where Paddle removes every repetition of the suffix, one
// is removed here, so that the two directions are inverse.
INSTANTIATE_TEST_SUITE_P(
    Names, MasterWeightTableTest,
    ::testing::Values(
        Row{"opt.master_weights.linear_0.w_0", "opt.linear_0.w_0_fp32_master_0"},
        Row{"opt.linear_0.w_0_fp32_master_0", "opt.master_weights.linear_0.w_0"},
        Row{"master_weights.linear_0.w_0", "linear_0.w_0_fp32_master_0"},
        Row{"linear_0.w_0_fp32_master_0", "linear_0.master_weights.w_0"},
        Row{"w_fp32_master_0", "w.master_weights"}, Row{"master_weights.w", "w_fp32_master_0"},
        Row{"a.b.master_weights.c", "a.b.c_fp32_master_0"},
        Row{"a.b.c_fp32_master_0", "a.master_weights.b.c"},
        Row{"opt.master_weights.w_fp32_master_0", "opt.w_fp32_master_0_fp32_master_0"},
        Row{"opt.w_fp32_master_0_fp32_master_0", "opt.master_weights.w_fp32_master_0"},
        Row{"opt.master_weights.master_weights.w", "opt.master_weights.w_fp32_master_0"},
        Row{"opt.my_master_weights.w", ""}, Row{"opt.w", ""}, Row{"master_weights", ""},
        Row{"_fp32_master_0", ""}, Row{"opt._fp32_master_0", ""},
        Row{"opt.w_fp32_master_0.beta", ""}, Row{"opt.w_fp32_master_1", ""}));

TEST_P(MasterWeightTableTest, TriesTheOtherName) {
  const auto names = MasterWeightCandidates(GetParam().requested);
  if (GetParam().first.empty()) {
    EXPECT_THAT(names, ElementsAre());
    return;
  }
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(names[0], GetParam().first);
  const auto found = Resolve(GetParam().requested, {GetParam().first, "opt.other"});
  ASSERT_OK(found);
  EXPECT_EQ(*found, GetParam().first);
}

TEST(MasterWeightsTest, StaticNamesAreTriedAtEveryPosition) {
  EXPECT_THAT(MasterWeightCandidates("a.b.c_fp32_master_0"),
              ElementsAre("a.master_weights.b.c", "master_weights.a.b.c", "a.b.master_weights.c",
                          "a.b.c.master_weights"));
  EXPECT_THAT(MasterWeightCandidates("a.b.master_weights.c"), ElementsAre("a.b.c_fp32_master_0"));
}

TEST(MasterWeightsTest, BothDirectionsFindEachOtherAtAnyDepth) {
  for (const std::string dynamic_name :
       {"master_weights.w", "opt.master_weights.w", "a.b.master_weights.c",
        "opt.master_weights.w_fp32_master_0"}) {
    const auto names = MasterWeightCandidates(dynamic_name);
    ASSERT_EQ(names.size(), 1U);
    const auto back = Resolve(names[0], {dynamic_name});
    ASSERT_OK(back);
    EXPECT_EQ(*back, dynamic_name);
  }
}

TEST(MasterWeightsTest, PositionOneWinsOverTheOthers) {
  const auto found =
      Resolve("a.b.c_fp32_master_0", {"a.master_weights.b.c", "a.b.master_weights.c"});
  ASSERT_OK(found);
  EXPECT_EQ(*found, "a.master_weights.b.c");
}

TEST(MasterWeightsTest, SeveralStoredNamesAreAnErrorThatNamesThem) {
  const auto found =
      Resolve("a.b.c_fp32_master_0", {"master_weights.a.b.c", "a.b.master_weights.c"});
  ASSERT_THAT(found, FailsWith("AMBIGUOUS_MASTER_WEIGHT"));
  EXPECT_THAT(found.error().message, HasSubstr("'a.b.c_fp32_master_0'"));
  EXPECT_THAT(found.error().message, HasSubstr("'master_weights.a.b.c', 'a.b.master_weights.c'"));
}

TEST(MasterWeightsTest, EachKeyIsResolvedAfresh) {
  // Paddle tests an unrelated missing key with the candidate of the key before it.
  const std::set<std::string, std::less<>> stored = {"opt.w_fp32_master_0"};
  EXPECT_EQ(*Resolve("opt.master_weights.w", stored), "opt.w_fp32_master_0");
  EXPECT_EQ(*Resolve("opt.unrelated", stored), std::nullopt);
  EXPECT_EQ(*Resolve("opt.master_weights.v", stored), std::nullopt);
}

}  // namespace
}  // namespace reshard
