#include "reshard/engine/gc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/engine/snapshot.h"
#include "reshard/engine/verify.h"
#include "reshard/format/native/names.h"
#include "reshard/storage/posix_storage.h"
#include "tests/engine/memory_places.h"
#include "tests/support/small_checkpoint.h"
#include "tests/support/status_matchers.h"

namespace reshard::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// The wall clock, some days ahead.
class LaterClock final : public Clock {
 public:
  explicit LaterClock(std::chrono::hours ahead) : ahead_(ahead) {}

  std::chrono::steady_clock::time_point Now() const override {
    return std::chrono::steady_clock::now();
  }

  std::chrono::system_clock::time_point WallNow() const override {
    return std::chrono::system_clock::now() + ahead_;
  }

 private:
  std::chrono::hours ahead_;
};

class GcTest : public ::testing::Test {
 protected:
  Status Gc(std::uint64_t keep, const Clock& clock) {
    const Places places = runs_.places();
    RESHARD_TRY_ASSIGN(plan_, PlanGc(places, {keep, std::chrono::hours(24)}, clock));
    return RunGc(places, plan_);
  }

  /// Leaves a file behind.
  static void Put(Storage& storage, const std::string& name) {
    auto object = storage.Create(name, {});
    ASSERT_OK(object);
    ASSERT_OK((*object)->WriteAt(0, Bytes(100)));
    ASSERT_OK((*object)->Finish(100));
  }

  static void CopyAll(Storage& from, Storage& to) {
    for (const std::string& name : NamesIn(from)) {
      Result<Bytes> bytes = ReadWhole(from, name);
      ASSERT_OK(bytes);
      Rewrite(to, name, *bytes);
    }
  }

  std::vector<std::string> Kept() const {
    std::vector<std::string> out;
    for (const SnapshotRef& snapshot : plan_.kept) {
      out.push_back(ToString(snapshot));
    }
    return out;
  }

  MemoryPlaces runs_;
  GcPlan plan_;
  LaterClock now_{std::chrono::hours(0)};
  LaterClock later_{std::chrono::hours(48)};
};

TEST_F(GcTest, KeepsTheNewestOverAllDirectories) {
  for (const std::uint64_t id : {0, 1, 10}) {
    ASSERT_OK(SaveSmall(runs_.At("run/step-9"), id));
  }
  ASSERT_OK(SaveSmall(runs_.At("run/step-10"), 0));
  ASSERT_OK(Gc(2, now_));
  EXPECT_THAT(Kept(), ElementsAre("run/step-10@0", "run/step-9@10"));
  EXPECT_THAT(NamesIn(runs_.At("run/step-9")),
              ElementsAre("0_10.safetensors", "10.reshard", "1_10.safetensors"));
  EXPECT_EQ(NamesIn(runs_.At("run/step-10")).size(), 3U);
  EXPECT_GT(plan_.bytes(), 2'000'000U);
  for (const GcItem& item : plan_.items) {
    EXPECT_EQ(item.kind, GcKind::kSnapshot);
    EXPECT_TRUE(item.removed);
  }
}

TEST_F(GcTest, VerifyCountsOnlyWhatIsWhole) {
  for (const std::uint64_t id : {0, 1, 2}) {
    ASSERT_OK(SaveSmall(runs_.At("run"), id));
  }
  ASSERT_OK_AND_ASSIGN(Bytes bytes, ReadWhole(runs_.At("run"), "0_2.safetensors"));
  bytes[20'000] ^= std::byte{1};
  Rewrite(runs_.At("run"), "0_2.safetensors", bytes);
  GcOptions options;
  ASSERT_OK_AND_ASSIGN(plan_, PlanGc(runs_.places(), options, now_));
  EXPECT_THAT(Kept(), ElementsAre("run@2"));  // payload bytes are not read
  options.verify = true;
  ASSERT_OK_AND_ASSIGN(plan_, PlanGc(runs_.places(), options, now_));
  EXPECT_THAT(Kept(), ElementsAre("run@1"));
  EXPECT_THAT(plan_.notes, ElementsAre(HasSubstr("run@2 is not complete")));
  ASSERT_EQ(plan_.items.size(), 1U);
  EXPECT_EQ(plan_.items[0].unique_id, 0U);
}

TEST_F(GcTest, SaysThatThereIsNothing) {
  runs_.At("run");
  ASSERT_OK(Gc(1, now_));
  EXPECT_THAT(plan_.notes, ElementsAre(HasSubstr("run holds no snapshot")));
  Put(runs_.At("run/a"), "0.metadata");
  ASSERT_OK(Gc(1, now_));
  EXPECT_THAT(plan_.notes, ElementsAre(HasSubstr("run/a holds a checkpoint of another format")));
  ASSERT_OK(SaveSmall(runs_.At("run/b"), 0));
  ASSERT_OK(Gc(1, now_));
  EXPECT_THAT(plan_.notes, IsEmpty());
}

TEST_F(GcTest, PlanningChangesNothing) {
  ASSERT_OK(SaveSmall(runs_.At("run"), 0));
  ASSERT_OK(SaveSmall(runs_.At("run"), 1));
  const std::vector<std::string> before = NamesIn(runs_.At("run"));
  ASSERT_OK_AND_ASSIGN(const GcPlan plan, PlanGc(runs_.places(), {}, now_));
  ASSERT_EQ(plan.items.size(), 1U);
  EXPECT_EQ(plan.items[0].unique_id, 0U);
  EXPECT_THAT(plan.items[0].files, ElementsAre("0_0.safetensors", "1_0.safetensors"));
  EXPECT_EQ(plan.items[0].last, "0.reshard");
  EXPECT_EQ(NamesIn(runs_.At("run")), before);
}

TEST_F(GcTest, RefusesToKeepNothing) { EXPECT_THAT(Gc(0, now_), FailsWith("BAD_KEEP")); }

TEST_F(GcTest, ADamagedNewestDoesNotCountAndIsKept) {
  for (const std::uint64_t id : {0, 1, 2}) {
    ASSERT_OK(SaveSmall(runs_.At("run"), id));
  }
  ASSERT_OK(runs_.At("run").Remove("0_2.safetensors"));
  ASSERT_OK(Gc(1, later_));
  EXPECT_THAT(Kept(), ElementsAre("run@1"));
  EXPECT_THAT(plan_.notes, Contains(HasSubstr("run@2 is not complete")));
  EXPECT_THAT(NamesIn(runs_.At("run")),
              ElementsAre("0_1.safetensors", "1.reshard", "1_1.safetensors", "1_2.safetensors",
                          "2.reshard"));
}

TEST_F(GcTest, WithoutACompleteSnapshotNothingGoes) {
  ASSERT_OK(SaveSmall(runs_.At("run"), 0));
  ASSERT_OK(runs_.At("run").Remove("0_0.safetensors"));
  ASSERT_OK(Gc(1, later_));
  EXPECT_THAT(plan_.items, IsEmpty());
}

TEST_F(GcTest, AnOldSnapshotWhoseCatalogIsDamagedGoesWithItsFiles) {
  Storage& storage = runs_.At("run");
  ASSERT_OK(SaveSmall(storage, 0));
  ASSERT_OK(SaveSmall(storage, 1));
  Rewrite(storage, "0.reshard", Bytes(10));
  ASSERT_OK(Gc(1, later_));
  EXPECT_THAT(NamesIn(storage), ElementsAre("0_1.safetensors", "1.reshard", "1_1.safetensors"));
}

TEST_F(GcTest, StraysGoWhenTheyAreOldAndNoSaveHoldsThem) {
  Storage& storage = runs_.At("run");
  ASSERT_OK(SaveSmall(storage, 0));
  Put(storage, "0_1.safetensors");
  Put(storage, "5_1.a3.safetensors");
  Put(storage, "1.a3.reshard.tmp");
  Put(storage, "2.a0.reshard.tmp.old");
  Put(storage, "7_0.a9.safetensors");  // of a committed id, but not listed
  ASSERT_OK(Gc(1, now_));
  EXPECT_EQ(NamesIn(storage).size(), 8U);
  EXPECT_THAT(plan_.notes, Contains(HasSubstr("recent")));
  ASSERT_OK(Gc(1, later_));
  EXPECT_THAT(NamesIn(storage), ElementsAre("0.reshard", "0_0.safetensors", "1_0.safetensors"));
}

TEST_F(GcTest, TheAgeOfAnAttemptIsThatOfItsNewestFile) {
  Storage& storage = runs_.At("run");
  Put(storage, "0_1.safetensors");
  const std::int64_t written = (*storage.List())[0].mtime_ns;
  Put(storage, "1_1.safetensors");
  const std::int64_t newest = (*storage.List())[1].mtime_ns;
  ASSERT_GT(newest, written);

  class At final : public Clock {
   public:
    explicit At(std::int64_t ns) : ns_(ns) {}

    std::chrono::steady_clock::time_point Now() const override { return {}; }

    std::chrono::system_clock::time_point WallNow() const override {
      return std::chrono::system_clock::time_point(std::chrono::nanoseconds(ns_));
    }

   private:
    std::int64_t ns_;
  };

  const std::int64_t day = 24LL * 3600 * 1'000'000'000;
  ASSERT_OK(Gc(1, At(newest + day)));
  EXPECT_EQ(NamesIn(storage).size(), 2U);
  ASSERT_OK(Gc(1, At(newest + day + 1)));
  EXPECT_THAT(NamesIn(storage), IsEmpty());
}

TEST_F(GcTest, ASaveAtWorkIsNeverTouched) {
  Storage& storage = runs_.At("run");
  ASSERT_OK(SaveSmall(storage, 0));
  ASSERT_OK(SaveSmall(storage, 1));
  ASSERT_OK(SaveSmall(storage, 2));
  // An overwrite of 0, and a new save 3.
  auto overwrite = storage.Create("0.a1.reshard.tmp", {0, true});
  auto save = storage.Create("3.a0.reshard.tmp", {0, true});
  ASSERT_OK(overwrite);
  ASSERT_OK(save);
  Put(storage, "0_3.safetensors");
  ASSERT_OK(Gc(1, later_));
  const std::vector<std::string> names = NamesIn(storage);
  EXPECT_THAT(names, Contains("0_3.safetensors"));
  EXPECT_THAT(names, Contains("3.a0.reshard.tmp"));
  EXPECT_THAT(names, Contains("0.reshard"));
  EXPECT_THAT(names, Contains("0_0.safetensors"));
  EXPECT_THAT(names, Not(Contains("1.reshard")));
  EXPECT_THAT(plan_.notes, Contains(HasSubstr("run@0 is kept: a save")));
  // They died: now their leftovers go.
  (*overwrite)->Abandon();
  (*save)->Abandon();
  ASSERT_OK(Gc(1, later_));
  EXPECT_THAT(NamesIn(storage), ElementsAre("0_2.safetensors", "1_2.safetensors", "2.reshard"));
}

TEST_F(GcTest, ASnapshotThatWasOverwrittenAfterThePlanIsLeftAlone) {
  Storage& storage = runs_.At("run");
  ASSERT_OK(SaveSmall(storage, 0));
  ASSERT_OK(SaveSmall(storage, 1));
  const Places places = runs_.places();
  ASSERT_OK_AND_ASSIGN(GcPlan plan, PlanGc(places, {}, later_));
  ASSERT_EQ(plan.items.size(), 1U);
  ASSERT_OK(SaveSmall(storage, 0, 9, true));
  ASSERT_OK(RunGc(places, plan));
  EXPECT_FALSE(plan.items[0].removed);
  EXPECT_THAT(plan.notes, Contains(HasSubstr("overwritten")));
  ASSERT_OK_AND_ASSIGN(const VerifyReport report, Verify(storage));
  EXPECT_EQ(report.snapshots.size(), 2U);
  EXPECT_TRUE(report.whole());
}

TEST_F(GcTest, FinishesADeletionButNotTheFilesOfANewSaveOfThatId) {
  Storage& storage = runs_.At("run");
  ASSERT_OK(SaveSmall(storage, 0));
  ASSERT_OK(storage.Rename("0.reshard", "0.reshard.deleting"));
  ASSERT_OK(storage.Remove("0_0.safetensors"));
  ASSERT_OK(storage.Remove("1_0.safetensors"));
  ASSERT_OK(SaveSmall(storage, 0, 3));  // the same names again
  ASSERT_OK(Gc(1, now_));
  EXPECT_THAT(NamesIn(storage), ElementsAre("0.reshard", "0_0.safetensors", "1_0.safetensors"));
  ASSERT_OK_AND_ASSIGN(const VerifyReport report, Verify(storage));
  EXPECT_TRUE(report.whole());
}

TEST_F(GcTest, ForeignFilesAreNeverTouched) {
  Storage& storage = runs_.At("run");
  ASSERT_OK(SaveSmall(storage, 0));
  ASSERT_OK(SaveSmall(storage, 1));
  const std::vector<std::string> foreign = {
      "config.json", "00_0.safetensors", "0_00.safetensors", "model.safetensors",
      "x.reshard",   "01.reshard",       "0.reshard.tmp",    "0_0.safetensors.old"};
  for (const std::string& name : foreign) {
    Put(storage, name);
  }
  ASSERT_OK(Gc(1, later_));
  const std::vector<std::string> names = NamesIn(storage);
  for (const std::string& name : foreign) {
    EXPECT_THAT(names, Contains(name));
  }
  EXPECT_EQ(names.size(), foreign.size() + 3);
}

TEST_F(GcTest, TheReplaceLockGoesOnlyWhenNothingElseIsLeft) {
  Storage& storage = runs_.At("run");
  Put(storage, kReplaceLockName);
  Put(storage, "0_1.safetensors");
  auto save = storage.Create("1.a0.reshard.tmp", {0, true});
  ASSERT_OK(Gc(1, later_));
  EXPECT_EQ(NamesIn(storage).size(), 3U);
  (*save)->Abandon();
  ASSERT_OK(Gc(1, later_));
  EXPECT_THAT(NamesIn(storage), IsEmpty());
}

// For every k and every way to fail: what is kept stays whole, and another gc finishes.
TEST_F(GcTest, SurvivesAFaultAtEveryOperation) {
  const std::unique_ptr<Storage> model = NewMemoryStorage();
  const std::unique_ptr<Storage> older_model = NewMemoryStorage();
  for (const std::uint64_t id : {0, 1, 2}) {
    ASSERT_OK(SaveSmall(*model, id));
  }
  ASSERT_OK(SaveSmall(*older_model, 4));
  ASSERT_OK(model->Rename("0.reshard", "0.reshard.deleting"));
  ASSERT_OK(model->Remove("1_0.safetensors"));
  Put(*model, "3_2.a7.safetensors");
  Put(*model, "9.a0.reshard.tmp");
  const std::vector<std::string> expected = {"0_2.safetensors", "1_2.safetensors", "2.reshard"};
  // One gc with a fault at operation k, then the checks; returns the operations it made.
  std::uint64_t faults = 0;
  const auto run = [&](FaultAction action, std::uint64_t k) -> std::uint64_t {
    SCOPED_TRACE(::testing::Message() << "operation " << k << " action " << int(action));
    MemoryPlaces runs;
    Storage& storage = runs.At("run/step-9");
    CopyAll(*model, storage);
    CopyAll(*older_model, runs.At("run/step-8"));
    const Places places = runs.places();
    runs.SetFaults([=](std::uint64_t count, StorageOp, std::string_view) {
      return count == k ? action : FaultAction::kNone;
    });
    Result<GcPlan> plan = PlanGc(places, {1, std::chrono::hours(24)}, later_);
    const Status status =
        plan.ok() ? RunGc(places, *plan) : Status(tl::unexpected<Error>(plan.error()));
    const std::uint64_t operations = runs.operations();
    faults += status.ok() ? 0 : 1;
    // Every snapshot that still is one is whole; the kept one is there.
    runs.SetFaults(nullptr);
    const Result<VerifyReport> report = Verify(storage);
    EXPECT_OK(report);
    EXPECT_TRUE(report->whole());
    EXPECT_EQ(report->snapshots.back().unique_id, 2U);
    Result<GcPlan> again = PlanGc(places, {1, std::chrono::hours(24)}, later_);
    EXPECT_OK(again);
    EXPECT_OK(RunGc(places, *again));
    EXPECT_EQ(NamesIn(storage), expected);
    EXPECT_THAT(NamesIn(runs.At("run/step-8")), IsEmpty());
    return operations;
  };
  const std::uint64_t operations = run(FaultAction::kNone, 0);
  ASSERT_EQ(faults, 0U);
  for (const FaultAction action :
       {FaultAction::kFail, FaultAction::kFailAfter, FaultAction::kCrash}) {
    for (std::uint64_t k = 0; k < operations; ++k) {
      run(action, k);
    }
  }
  EXPECT_GT(operations, 30U);
  EXPECT_GT(faults, operations * 2);
}

}  // namespace
}  // namespace reshard::testing
