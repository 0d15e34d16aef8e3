// A fault at every operation of a save in a foreign format leaves the old or the new checkpoint.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <tuple>

#include "reshard/engine/foreign.h"
#include "reshard/storage/fault_storage.h"
#include "tests/support/foreign_saves.h"

namespace reshard::testing {
namespace {

/// One fault: what happens at the k-th operation of one rank.
struct Fault {
  FaultAction action = FaultAction::kNone;
  int rank = 0;
  std::uint64_t at = 0;
};

/// A format, the number of ranks, and whether there is an older save.
using Mode = std::tuple<std::string, int, bool>;

class SaveForeignFaultTest : public ::testing::TestWithParam<Mode> {
 protected:
  void SetUp() override {
    std::tie(format_, ranks_, overwrite_) = GetParam();
    ref_ = {format_, format_ == "paddle" ? "0.metadata" : ".metadata", 0};
    index_ = IndexNameOf(ref_);
    const auto base = Before();
    ASSERT_OK(SaveOn(ranks_, *base, 200, ForeignOptionsOf(format_, overwrite_)));
    after_ = ReadAll(*base);
  }

  std::unique_ptr<Storage> Before() const {
    auto base = NewMemoryStorage();
    if (overwrite_) {
      EXPECT_OK(SaveOn(ranks_, *base, 100, ForeignOptionsOf(format_)));
    }
    return base;
  }

  /// All files of a checkpoint, the index apart, are in `now`.
  void ExpectWhole(const Contents& now, const Contents& checkpoint) const {
    for (const auto& [name, bytes] : checkpoint) {
      if (name != index_) {
        const auto at = now.find(name);
        ASSERT_TRUE(at != now.end()) << name << " is gone";
        EXPECT_TRUE(at->second == bytes) << name;
      }
    }
  }

  /// False: the save has no such operation.
  bool RunOne(const Fault& fault) {
    SCOPED_TRACE(fmt::format("action {} at operation {} of rank {}", static_cast<int>(fault.action),
                             fault.at, fault.rank));
    const auto base = Before();
    before_ = ReadAll(*base);  // the index has its own times
    std::atomic<bool> happened = false;
    std::atomic<StorageOp> hit = StorageOp::kList;
    const auto results = OnRanks(ranks_, [&](ProcessGroup& group) {
      const int rank = group.rank();
      FaultStorage faulty(*base, [&, rank](std::uint64_t count, StorageOp op, std::string_view) {
        if (rank != fault.rank || count != fault.at) {
          return FaultAction::kNone;
        }
        happened = true;
        hit = op;
        return fault.action;
      });
      return Save(StateOf(200, rank, ranks_), faulty, group, ForeignOptionsOf(format_, overwrite_));
    });
    ExpectOneOutcome(results);
    Check(*base, results,
          fault.action == FaultAction::kFail ||
              (fault.action == FaultAction::kFailAfter && hit.load() != StorageOp::kCreate));
    const auto again = SaveOn(ranks_, *base, 300, ForeignOptionsOf(format_, true));
    EXPECT_OK(again);
    CheckAll(*base, ref_, 300);
    return happened;
  }

  void Check(Storage& base, const std::vector<Result<SaveResult>>& results, bool cleans) {
    const Contents now = ReadAll(base);
    bool any_ok = false;
    bool unknown = false;
    for (const auto& result : results) {
      any_ok = any_ok || result.ok();
      unknown = unknown || (!result.ok() && result.error().code == ErrorCode::kIndeterminate);
    }
    const auto metadata = now.find(ref_.metadata_name);
    const bool is_new = metadata != now.end() && metadata->second == after_.at(ref_.metadata_name);
    const bool is_old =
        overwrite_ ? metadata != now.end() && metadata->second == before_.at(ref_.metadata_name)
                   : metadata == now.end();
    EXPECT_TRUE(is_new || is_old) << "the metadata is neither the old nor the new one";
    ExpectWhole(now, is_new ? after_ : before_);
    if (any_ok) {
      EXPECT_TRUE(is_new);
      CheckAll(base, ref_, 200);
    } else if (!unknown) {
      EXPECT_TRUE(is_old) << "every rank said that it failed, but the checkpoint is there";
      if (cleans) {
        EXPECT_EQ(now, before_) << "the failed save left files behind";
      }
    }
  }

  std::string format_;
  ForeignRef ref_;
  std::string index_;
  int ranks_ = 1;
  bool overwrite_ = false;
  Contents before_;
  Contents after_;
};

TEST_P(SaveForeignFaultTest, OldOrNewAtEveryOperation) {
  for (const FaultAction action :
       {FaultAction::kFail, FaultAction::kFailAfter, FaultAction::kCrash}) {
    for (int rank = 0; rank < ranks_; ++rank) {
      std::uint64_t k = 0;
      while (RunOne({action, rank, k}) && !HasFailure()) {
        ++k;
      }
      EXPECT_GE(k, rank == 0 ? 16U : 5U) << "too few operations to be true";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, SaveForeignFaultTest,
                         ::testing::Combine(::testing::Values("paddle", "torch"),
                                            ::testing::Values(1, 2), ::testing::Bool()),
                         [](const auto& modes) {
                           return fmt::format("{}{}Ranks{}", std::get<0>(modes.param),
                                              std::get<1>(modes.param),
                                              std::get<2>(modes.param) ? "Overwrite" : "New");
                         });

}  // namespace
}  // namespace reshard::testing
