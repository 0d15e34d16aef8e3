#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/comm/thread_ranks.h"
#include "tests/support/collective_checks.h"
#include "tests/support/status_matchers.h"

namespace reshard::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kDeadline(300);

Groups ShortGroups(int size, milliseconds deadline = kDeadline) {
  return ThreadProcessGroups(size, {.control = deadline, .data = deadline});
}

std::string Named(int rank) { return fmt::format("rank {} gave no sign of life", rank); }

// "" when `status` is PEER_TIMEOUT and names `rank`.
std::string ExpectNames(const Status& status, int rank) {
  if (!status.ok() && status.error().code == ErrorCode::kPeerFailed &&
      status.error().reason == "PEER_TIMEOUT" && status.error().message.starts_with(Named(rank))) {
    return "";
  }
  return status.ok() ? "unexpectedly OK" : status.error().ToString();
}

// Every collective as a status, in an order in which the leaves of the last ones wait.
using Collective = Status (*)(ProcessGroup&);

Status DoBarrier(ProcessGroup& group) { return group.Barrier(); }

Status DoAllGather(ProcessGroup& group) {
  RESHARD_TRY(group.AllGather(AsBytes("x")));
  return OkStatus();
}

Status DoAgree(ProcessGroup& group) { return group.Agree(OkStatus()); }

Status DoAllToAllV(ProcessGroup& group) {
  const auto n = static_cast<std::size_t>(group.size());
  const Bytes out(100000);
  Bytes in(100000 * n);
  std::vector<ByteSpan> send(n, out);
  std::vector<MutableByteSpan> receive;
  for (std::size_t i = 0; i < n; ++i) {
    receive.push_back(MutableByteSpan(in).subspan(i * 100000, 100000));
  }
  return group.AllToAllV(send, receive);
}

Status DoDuplicate(ProcessGroup& group) {
  RESHARD_TRY(group.Duplicate());
  return OkStatus();
}

/// A collective with a name for the test's own.
struct NamedCollective {
  const char* name;
  Collective run;
};

void PrintTo(const NamedCollective& collective, std::ostream* out) { *out << collective.name; }

class SilentRankTest : public ::testing::TestWithParam<std::tuple<NamedCollective, int>> {};

INSTANTIATE_TEST_SUITE_P(
    Collectives, SilentRankTest,
    ::testing::Combine(::testing::Values(NamedCollective{"Barrier", &DoBarrier},
                                         NamedCollective{"AllGather", &DoAllGather},
                                         NamedCollective{"Agree", &DoAgree},
                                         NamedCollective{"AllToAllV", &DoAllToAllV},
                                         NamedCollective{"Duplicate", &DoDuplicate}),
                       ::testing::Values(0, 3)),
    [](const ::testing::TestParamInfo<std::tuple<NamedCollective, int>>& param) {
      return std::string(std::get<0>(param.param).name) + "Rank" +
             std::to_string(std::get<1>(param.param));
    });

TEST_P(SilentRankTest, IsNamedByAllOthersInTime) {
  const auto [collective, silent] = GetParam();
  Groups groups = ShortGroups(5);
  const auto start = steady_clock::now();
  EXPECT_EQ(OnEveryRank(groups,
                        [&, run = collective.run, silent = silent](ProcessGroup& group, int rank) {
                          return rank == silent ? std::string() : ExpectNames(run(group), silent);
                        }),
            "");
  const auto took = steady_clock::now() - start;
  EXPECT_GE(took, kDeadline);
  EXPECT_LT(took, 3 * kDeadline);
  // The silent one, when it comes back, learns that it was given up; the others answer at once.
  const auto again = steady_clock::now();
  for (const auto& group : groups) {
    EXPECT_EQ(ExpectNames(group->Barrier(), silent), "");
    EXPECT_EQ(ExpectNames(DoAllToAllV(*group), silent), "");
  }
  EXPECT_LT(steady_clock::now() - again, kDeadline / 2);
}

TEST(FailureTest, SubgroupNamesTheGlobalRank) {
  Groups groups = ShortGroups(4);
  EXPECT_EQ(OnEveryRank(groups,
                        [](ProcessGroup& group, int rank) -> std::string {
                          const int ranks[] = {3, 2, 1};
                          auto sub = group.Subgroup(ranks);
                          if (!sub.ok() || rank == 0 || rank == 3) {
                            // Rank 3 keeps its group, silent, until the others have noticed.
                            std::this_thread::sleep_for(2 * kDeadline);
                            return "";
                          }
                          return ExpectNames((*sub)->Barrier(), 3);
                        }),
            "");
  // The parent group lives on.
  EXPECT_EQ(OnEveryRank(groups, [](ProcessGroup& g, int) { return CheckBlobs(g, 10); }), "");
}

TEST(FailureTest, SlowRankThatBeatsIsNotBlamed) {
  Groups groups = ShortGroups(4);
  EXPECT_EQ(OnEveryRank(groups,
                        [](ProcessGroup& group, int rank) -> std::string {
                          const auto end = steady_clock::now() + 3 * kDeadline;
                          while (rank == 2 && steady_clock::now() < end) {
                            group.Beat();
                            std::this_thread::sleep_for(milliseconds(5));
                          }
                          const Status status = group.Barrier();
                          return status.ok() ? "" : status.error().ToString();
                        }),
            "");
}

TEST(FailureTest, WaitingRankIsNotBlamedForTheOneItWaitsFor) {
  // Rank 3 waits for rank 1 in a subgroup, all others wait for rank 3 in the whole group; rank 1
  // beats.
  Groups groups = ShortGroups(4);
  EXPECT_EQ(OnEveryRank(groups,
                        [](ProcessGroup& group, int rank) -> std::string {
                          const int ranks[] = {1, 3};
                          auto sub = group.Subgroup(ranks);
                          if (!sub.ok()) {
                            return sub.error().ToString();
                          }
                          const auto end = steady_clock::now() + 2 * kDeadline;
                          while (rank == 1 && steady_clock::now() < end) {
                            group.Beat();
                            std::this_thread::sleep_for(milliseconds(5));
                          }
                          if (*sub != nullptr && !(*sub)->Barrier().ok()) {
                            return "subgroup failed";
                          }
                          const Status status = group.Barrier();
                          return status.ok() ? "" : status.error().ToString();
                        }),
            "");
}

TEST(FailureTest, RankThatLeavesIsNamed) {
  Groups groups = ShortGroups(4, std::chrono::seconds(20));
  const auto start = steady_clock::now();
  std::thread leaver([&] {
    std::this_thread::sleep_for(milliseconds(50));
    groups[2].reset();
  });
  std::vector<std::thread> threads;
  std::vector<Status> statuses(4);
  for (const std::size_t i : {0, 1, 3}) {
    threads.emplace_back([&, i] { statuses[i] = groups[i]->Barrier(); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  leaver.join();
  EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(10));
  for (const std::size_t i : {0, 1, 3}) {
    EXPECT_THAT(statuses[i], FailsWith("PEER_LEFT"));
    EXPECT_THAT(statuses[i].error().message, ::testing::StartsWith("rank 2 left"));
  }
}

TEST(FailureTest, LeavingAfterTheLastCollectiveIsFine) {
  for (int round = 0; round < 20; ++round) {
    Groups groups = ThreadProcessGroups(4);
    EXPECT_EQ(OnEveryRank(groups,
                          [&](ProcessGroup& group, int rank) {
                            const auto sent = group.Gather(PatternBytes(rank, 0, 200000), 0);
                            if (rank != 0) {
                              groups[static_cast<std::size_t>(rank)].reset();
                            }
                            return sent.ok() ? "" : sent.error().ToString();
                          }),
              "");
  }
}

TEST(FailureTest, LeavingRightAfterAnExchangeIsFine) {
  for (int round = 0; round < 100; ++round) {
    Groups groups = ThreadProcessGroups(4);
    EXPECT_EQ(OnEveryRank(groups,
                          [&](ProcessGroup& group, int rank) {
                            const Status status = DoAllToAllV(group);
                            groups[static_cast<std::size_t>(rank)].reset();
                            return status.ok() ? "" : status.error().ToString();
                          }),
              "");
  }
}

TEST(FailureTest, DifferentSizesAreAnErrorOnAllRanks) {
  Groups groups = ShortGroups(3, std::chrono::seconds(20));
  EXPECT_EQ(
      OnEveryRank(groups,
                  [](ProcessGroup& group, int rank) -> std::string {
                    Bytes out(rank == 1 ? 200 : 100);
                    Bytes in(300);
                    std::vector<ByteSpan> send(3, out);
                    std::vector<MutableByteSpan> receive;
                    for (std::size_t i = 0; i < 3; ++i) {
                      const bool self = static_cast<int>(i) == rank;
                      receive.push_back(MutableByteSpan(in).subspan(0, self ? out.size() : 100));
                    }
                    const Status status = group.AllToAllV(send, receive);
                    const Status then = group.Barrier();
                    return !then.ok() && then.error().reason == "BAD_MESSAGE" ? ""
                           : then.ok()                                        ? "unexpectedly OK"
                                       : then.error().ToString();
                  }),
      "");
}

}  // namespace
}  // namespace reshard::testing
