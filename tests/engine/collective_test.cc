// One rank misbehaves: its callbacks fail, its options differ, it never comes. All ranks get the
// same error, in time.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "reshard/storage/fault_storage.h"
#include "tests/support/states.h"

namespace reshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr DType kF32 = DType::kFloat32;
const Shape kShape = {120};

StateDict RowsOf(ProcessGroup& group) {
  StateDict state;
  state["w"] = PatternTensor(kF32, kShape, {CutBox(kShape, 0, group.rank(), group.size())}, 1);
  return state;
}

StateDict TargetOf(ProcessGroup& group) {
  StateDict state;
  state["w"] = TargetTensor(kF32, kShape, {CutBox(kShape, 0, group.rank(), group.size())});
  return state;
}

/// How a callback goes wrong on rank 1.
struct Misdeed {
  const char* name;
  const char* reason;
  std::function<Status()> callback;
};

std::vector<Misdeed> Misdeeds() {
  return {
      {"error", "STOP", [] { return Status(MakeError(ErrorCode::kCancelled, "STOP", "enough")); }},
      {"throws", "CALLBACK", []() -> Status { throw std::runtime_error("boom"); }},
      {"throws a number", "CALLBACK", []() -> Status { throw 7; }},
      // Looks like a failure of the group, but is this rank's alone.
      {"peer failed", "PEER_LEFT",
       [] { return Status(MakeError(ErrorCode::kPeerFailed, "PEER_LEFT", "not really")); }},
      {"file exists", "FILE_EXISTS",
       [] { return Status(MakeError(ErrorCode::kAlreadyExists, "FILE_EXISTS", "not really")); }},
  };
}

TEST(CollectiveTest, ProgressCallbackOfOneRankEndsASave) {
  for (const Misdeed& misdeed : Misdeeds()) {
    SCOPED_TRACE(misdeed.name);
    const auto storage = NewMemoryStorage();
    const auto results = OnRanks(3, [&](ProcessGroup& group) {
      SaveOptions options;
      if (group.rank() == 1) {
        options.progress = [&](const Progress&) { return misdeed.callback(); };
      }
      return Save(RowsOf(group), *storage, group, options);
    });
    ExpectOneOutcome(results);
    ASSERT_THAT(results[0], FailsWith(misdeed.reason));
    EXPECT_THAT(results[0].error().message, HasSubstr("rank 1: "));
    EXPECT_THAT(Names(*storage), ElementsAre());
  }
}

TEST(CollectiveTest, CallbackOfOneRankEndsALoad) {
  const auto storage = NewMemoryStorage();
  RunRanks(3, [&](ProcessGroup& group) { ASSERT_OK(Save(RowsOf(group), *storage, group)); });
  for (const Misdeed& misdeed : Misdeeds()) {
    for (const Transfer transfer : {Transfer::kDirect, Transfer::kExchange}) {
      for (const bool sink : {false, true}) {
        SCOPED_TRACE(std::string(misdeed.name) + (sink ? " in a sink" : " in progress"));
        const auto results = OnRanks(3, [&](ProcessGroup& group) {
          LoadOptions options;
          options.transfer = transfer;
          StateDict state = TargetOf(group);
          if (sink && group.rank() == 1) {
            state["w"].get_if<Tensor>()->shards[0].sink = [&](std::uint64_t, ByteSpan) {
              return misdeed.callback();
            };
          } else if (!sink) {
            options.progress = [&](const Progress&) { return misdeed.callback(); };
          }
          return Load(state, *storage, group, options);
        });
        ExpectOneOutcome(results);
        EXPECT_THAT(results[0], FailsWith(misdeed.reason));
      }
    }
  }
}

TEST(CollectiveTest, RenameRuleThatThrowsOnOneRankEndsALoad) {
  const auto storage = NewMemoryStorage();
  RunRanks(3, [&](ProcessGroup& group) { ASSERT_OK(Save(RowsOf(group), *storage, group)); });
  const auto results = OnRanks(3, [&](ProcessGroup& group) {
    StateDict state;
    state["v"] = FloatTensor({1});
    LoadOptions options;
    options.strict = false;
    if (group.rank() == 2) {
      options.rename = [](std::string_view) -> std::optional<std::string> {
        throw std::runtime_error("no rule");
      };
    }
    return Load(state, *storage, group, options);
  });
  ExpectOneOutcome(results);
  EXPECT_THAT(results[0], FailsWith("CALLBACK"));
}

TEST(CollectiveTest, OptionsThatDifferAreAnErrorAtOnce) {
  const auto storage = NewMemoryStorage();
  const Deadlines brief = {std::chrono::seconds(20), std::chrono::seconds(20)};
  const auto save = [&](const std::function<void(SaveOptions&)>& change) {
    const auto results = OnRanks(
        3,
        [&](ProcessGroup& group) {
          SaveOptions options;
          if (group.rank() == 2) {
            change(options);
          }
          return Save(RowsOf(group), *storage, group, options);
        },
        brief);
    ExpectOneOutcome(results);
    return results[0];
  };
  EXPECT_THAT(save([](SaveOptions& o) { o.coordinator_rank = 1; }), FailsWith("BAD_COORDINATOR"));
  EXPECT_THAT(save([](SaveOptions& o) { o.coordinator_rank = 9; }), FailsWith("BAD_COORDINATOR"));
  const auto id = save([](SaveOptions& o) { o.unique_id = 4; });
  ASSERT_THAT(id, FailsWith("OPTIONS_MISMATCH"));
  EXPECT_THAT(id.error().message, HasSubstr("unique_id=next"));
  EXPECT_THAT(id.error().message, HasSubstr("rank 2 with unique_id=4"));
  EXPECT_THAT(save([](SaveOptions& o) { o.overwrite = true; }), FailsWith("OPTIONS_MISMATCH"));
  EXPECT_OK(save([](SaveOptions& o) { o.threads = 1; }));
  const auto load = [&](const std::function<void(LoadOptions&)>& change) {
    const auto results = OnRanks(
        3,
        [&](ProcessGroup& group) {
          LoadOptions options;
          if (group.rank() == 0) {
            change(options);
          }
          StateDict state = TargetOf(group);
          return Load(state, *storage, group, options);
        },
        brief);
    ExpectOneOutcome(results);
    return results[0];
  };
  EXPECT_THAT(load([](LoadOptions& o) { o.coordinator_rank = 1; }), FailsWith("BAD_COORDINATOR"));
  EXPECT_THAT(load([](LoadOptions& o) { o.memory_bytes = 1; }), FailsWith("OPTIONS_MISMATCH"));
  EXPECT_THAT(load([](LoadOptions& o) { o.strict = false; }), FailsWith("OPTIONS_MISMATCH"));
  EXPECT_THAT(load([](LoadOptions& o) { o.verify = false; }), FailsWith("OPTIONS_MISMATCH"));
  EXPECT_THAT(load([](LoadOptions& o) { o.transfer = Transfer::kExchange; }),
              FailsWith("OPTIONS_MISMATCH"));
  EXPECT_OK(load([](LoadOptions& o) { o.threads = 1; }));
}

TEST(CollectiveTest, RankThatNeverSavesIsNamed) {
  const auto storage = NewMemoryStorage();
  const Deadlines brief = {std::chrono::milliseconds(300), std::chrono::milliseconds(300)};
  std::atomic<int> done = 0;
  const auto results = OnRanks(
      3,
      [&](ProcessGroup& group) -> Result<SaveResult> {
        if (group.rank() == 2) {
          while (done < 2) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
          }
          return MakeError(ErrorCode::kCancelled, "ABSENT", "");
        }
        auto result = Save(RowsOf(group), *storage, group);
        ++done;
        return result;
      },
      brief);
  for (const int rank : {0, 1}) {
    const auto& result = results[static_cast<std::size_t>(rank)];
    ASSERT_THAT(result, FailsWith("PEER_TIMEOUT"));
    EXPECT_THAT(result.error().message, HasSubstr("rank 2 "));
  }
  EXPECT_THAT(Names(*storage), ElementsAre());
}

TEST(CollectiveTest, PublishedSnapshotKeepsItsFilesWhateverFailsThen) {
  // The names cannot be synced after the publish, and nobody is left to hear of it.
  const auto storage = NewMemoryStorage();
  const Deadlines brief = {std::chrono::milliseconds(300), std::chrono::milliseconds(300)};
  std::atomic<int> done = 0;
  const auto results = OnRanks(
      3,
      [&](ProcessGroup& group) {
        std::atomic<bool> published = false;
        const auto faulty =
            NewFaultStorage(*storage, [&](std::uint64_t, StorageOp op, std::string_view) {
              if (op == StorageOp::kSyncNames && published) {
                while (done < 2) {
                  std::this_thread::sleep_for(std::chrono::milliseconds(2));
                }
                return FaultAction::kFail;
              }
              published = published || op == StorageOp::kPublish;
              return FaultAction::kNone;
            });
        auto result = Save(RowsOf(group), *faulty, group);
        ++done;
        return result;
      },
      brief);
  for (const auto& result : results) {
    EXPECT_THAT(result, FailsWith("COMMIT_UNKNOWN"));
  }
  RunRanks(2, [&](ProcessGroup& group) {
    StateDict state = TargetOf(group);
    ASSERT_OK(Load(state, *storage, group));
    EXPECT_EQ(CountWrong(*state.Find("w")->get_if<Tensor>(), 1), 0U);
  });
}

/// Every storage operation of a save at which one rank falls silent for good.
class SilentRankTest : public ::testing::TestWithParam<int> {};

TEST_P(SilentRankTest, IsNamedAndNothingCommittedIsLost) {
  const int victim = GetParam();
  const Deadlines brief = {std::chrono::milliseconds(300), std::chrono::milliseconds(300)};
  std::uint64_t states = 0;
  for (std::uint64_t k = 0;; ++k, ++states) {
    SCOPED_TRACE(fmt::format("silent at operation {} of rank {}", k, victim));
    const auto storage = NewMemoryStorage();
    RunRanks(2, [&](ProcessGroup& group) { ASSERT_OK(Save(RowsOf(group), *storage, group)); });
    std::atomic<int> done = 0;
    std::atomic<bool> hit = false;
    const auto results = OnRanks(
        3,
        [&](ProcessGroup& group) {
          const auto stuck =
              NewFaultStorage(*storage, [&](std::uint64_t count, StorageOp, std::string_view) {
                if (group.rank() == victim && count == k) {
                  hit = true;
                  while (done < 2) {  // the others must end by themselves
                    std::this_thread::sleep_for(std::chrono::milliseconds(2));
                  }
                }
                return FaultAction::kNone;
              });
          SaveOptions options;
          options.threads = 1;
          auto result = Save(RowsOf(group), *stuck, group, options);
          ++done;
          return result;
        },
        brief);
    if (!hit) {
      break;
    }
    bool any_ok = false;
    for (int rank = 0; rank < 3; ++rank) {
      const auto& result = results[static_cast<std::size_t>(rank)];
      any_ok = any_ok || result.ok();
      if (rank == victim || result.ok()) {
        continue;  // OK: it was over already but for cleaning
      }
      EXPECT_TRUE(result.error().code == ErrorCode::kPeerFailed ||
                  result.error().code == ErrorCode::kIndeterminate)
          << result.error().ToString();
      EXPECT_THAT(result.error().message,
                  HasSubstr(fmt::format("rank {} gave no sign of life", victim)));
    }
    // Whatever happened: what is committed loads, and a fresh save succeeds.
    RunRanks(3, [&](ProcessGroup& group) {
      StateDict state = TargetOf(group);
      const auto report = Load(state, *storage, group);
      ASSERT_OK(report);
      EXPECT_EQ(CountWrong(*state.Find("w")->get_if<Tensor>(), 1), 0U);
      if (any_ok) {
        EXPECT_EQ(report->unique_id, 1U);
      }
      EXPECT_OK(Save(RowsOf(group), *storage, group));
    });
  }
  EXPECT_GE(states, 4U);
}

INSTANTIATE_TEST_SUITE_P(Victims, SilentRankTest, ::testing::Values(0, 1));

}  // namespace
}  // namespace reshard::testing
