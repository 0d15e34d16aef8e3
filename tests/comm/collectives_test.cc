#include <gtest/gtest.h>

#include "reshard/comm/transport.h"
#include "tests/comm/thread_ranks.h"
#include "tests/support/collective_checks.h"
#include "tests/support/status_matchers.h"

namespace reshard::testing {
namespace {

class CollectivesTest : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, CollectivesTest, ::testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 64));

TEST_P(CollectivesTest, GiveTheRightBytesOnEveryRank) {
  Groups groups = ThreadProcessGroups(GetParam());
  EXPECT_EQ(OnEveryRank(groups,
                        [](ProcessGroup& group, int) {
                          return group.size() > 8 ? CheckBlobs(group, 20) + CheckAgree(group)
                                                  : CheckCollectives(group);
                        }),
            "");
}

TEST(TransportGroupTest, CutsLongTransfers) {
  for (const int size : {1, 2, 3, 5}) {
    Groups groups;
    for (auto& transport : ThreadTransports(size, 777)) {
      groups.push_back(NewTransportGroup(std::move(transport)));
    }
    EXPECT_EQ(OnEveryRank(groups,
                          [](ProcessGroup& group, int) {
                            return CheckBlobs(group, 3000) + CheckAllToAllV(group, 9, 20000);
                          }),
              "")
        << size;
  }
}

TEST(SingleGroupTest, PassesTheSameChecks) {
  const auto group = SingleProcessGroup(7);
  EXPECT_EQ(group->global_rank(), 7);
  EXPECT_EQ(group->FindGlobalRank(7), 0);
  EXPECT_EQ(group->FindGlobalRank(0), -1);
  EXPECT_EQ(CheckBlobs(*group, 10), "");
  EXPECT_EQ(CheckAgree(*group), "");
  EXPECT_EQ(CheckAllToAllV(*group, 1, 100), "");
  EXPECT_EQ(CheckDuplicate(*group), "");
  const Status failed = group->Agree(MakeError(ErrorCode::kIo, "WRITE", "disk"));
  EXPECT_EQ(failed.error().message, "rank 7: disk");
}

TEST(SingleGroupTest, RefusesOtherRanks) {
  const auto group = SingleProcessGroup();
  EXPECT_THAT(group->Gather({}, 1), FailsWith("BAD_RANKS"));
  EXPECT_THAT(group->Broadcast({}, -1), FailsWith("BAD_RANKS"));
  const int ranks[] = {1};
  EXPECT_THAT(group->Subgroup(ranks), FailsWith("BAD_RANKS"));
  ASSERT_OK_AND_ASSIGN(const auto none, group->Subgroup({}));
  EXPECT_EQ(none, nullptr);
}

TEST(ThreadGroupTest, RefusesBadRanksOnEveryRank) {
  Groups groups = ThreadProcessGroups(3);
  for (const auto& group : groups) {
    EXPECT_THAT(group->Gather({}, 3), FailsWith("BAD_RANKS"));
    const int twice[] = {1, 1};
    EXPECT_THAT(group->Subgroup(twice), FailsWith("BAD_RANKS"));
    EXPECT_EQ(group->global_rank(3), -1);
  }
}

TEST(ThreadGroupTest, BackgroundGroupWorksBesideTheMainOne) {
  Groups groups = ThreadProcessGroups(4);
  Groups twins(4);
  ASSERT_EQ(OnEveryRank(groups,
                        [&](ProcessGroup& group, int rank) {
                          auto twin = group.Duplicate();
                          twins[static_cast<std::size_t>(rank)] =
                              twin.ok() ? std::move(*twin) : nullptr;
                          return twin.ok() ? "" : twin.error().ToString();
                        }),
            "");
  EXPECT_EQ(OnEveryRank(groups,
                        [&](ProcessGroup& group, int rank) {
                          std::string background;
                          std::thread thread([&] {
                            background = CheckCollectives(*twins[static_cast<std::size_t>(rank)]);
                          });
                          std::string main = CheckCollectives(group);
                          thread.join();
                          return main + background;
                        }),
            "");
}

}  // namespace
}  // namespace reshard::testing
