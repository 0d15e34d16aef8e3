#include "reshard/storage/fault_storage.h"

#include "reshard/storage/memory_storage.h"
#include "tests/storage/conformance.h"
#include "tests/support/status_matchers.h"

namespace reshard::testing {
namespace {

StorageFixture MakeFaultless() {
  std::shared_ptr<Storage> base = NewMemoryStorage();
  auto plan = [](std::uint64_t, StorageOp, std::string_view) { return FaultAction::kNone; };
  return {base, NewFaultStorage(*base, plan)};
}

INSTANTIATE_TEST_SUITE_P(Fault, StorageConformanceTest, ::testing::Values(&MakeFaultless));

FaultPlan At(std::uint64_t k, FaultAction action) {
  return [k, action](std::uint64_t count, StorageOp, std::string_view) {
    return count == k ? action : FaultAction::kNone;
  };
}

// Six operations: what a commit does.
Status Commit(Storage& storage) {
  RESHARD_TRY_ASSIGN(auto object, storage.Create("t", {.lock = true}));
  RESHARD_TRY(object->WriteAt(0, AsBytes("new")));
  RESHARD_TRY(object->Finish(3));
  RESHARD_TRY(storage.SyncNames());
  RESHARD_TRY(storage.Publish("t", "c", PublishMode::kNew));
  return storage.SyncNames();
}

std::string Names(Storage& storage) {
  std::string out;
  const auto list = storage.List();
  for (const ObjectInfo& info : list.value()) {
    out += info.name;
  }
  return out;
}

TEST(FaultStorageTest, CountsOperations) {
  const auto base = NewMemoryStorage();
  FaultStorage storage(*base, nullptr);
  ASSERT_OK(Commit(storage));
  EXPECT_EQ(storage.operations(), 6u);
  EXPECT_FALSE(storage.crashed());
}

TEST(FaultStorageTest, CrashAtEveryStepLeavesWhatWasDoneBefore) {
  const std::string expected[] = {"", "t", "t", "t", "t", "c"};
  for (std::uint64_t k = 0; k < 6; ++k) {
    const auto base = NewMemoryStorage();
    FaultStorage storage(*base, At(k, FaultAction::kCrash));
    const Status status = Commit(storage);
    EXPECT_THAT(status, FailsWith("CRASHED")) << k;
    EXPECT_EQ(status.error().code, ErrorCode::kCancelled);
    EXPECT_TRUE(storage.crashed());
    EXPECT_THAT(storage.Remove("t"), FailsWith("CRASHED"));
    EXPECT_EQ(Names(*base), expected[k]) << k;
    if (expected[k] == "t") {
      EXPECT_NE(base->TryLock("t").value(), nullptr) << "a dead process holds no lock";
    }
  }
}

TEST(FaultStorageTest, FailAtEveryStepRemovesTheUnfinishedObject) {
  const std::string expected[] = {"", "", "", "t", "t", "c"};
  for (std::uint64_t k = 0; k < 6; ++k) {
    const auto base = NewMemoryStorage();
    FaultStorage storage(*base, At(k, FaultAction::kFail));
    EXPECT_THAT(Commit(storage), FailsWith("INJECTED")) << k;
    EXPECT_EQ(Names(*base), expected[k]) << k;
  }
}

TEST(FaultStorageTest, FailAfterTakesEffect) {
  const std::string expected[] = {"t", "", "t", "t", "c", "c"};
  for (std::uint64_t k = 0; k < 6; ++k) {
    const auto base = NewMemoryStorage();
    FaultStorage storage(*base, At(k, FaultAction::kFailAfter));
    EXPECT_THAT(Commit(storage), FailsWith("INJECTED")) << k;
    EXPECT_EQ(Names(*base), expected[k]) << k;
  }
}

TEST(FaultStorageTest, FlipChangesOneBitOfARead) {
  const auto base = NewMemoryStorage();
  ASSERT_OK(Commit(*base));
  FaultStorage storage(*base, [](std::uint64_t, StorageOp op, std::string_view name) {
    return op == StorageOp::kRead && name == "c" ? FaultAction::kFlip : FaultAction::kNone;
  });
  ASSERT_OK_AND_ASSIGN(auto reader, storage.Open("c"));
  Bytes out(3);
  ASSERT_OK(reader->ReadAt(0, out));
  EXPECT_EQ(AsText(out), "nuw");
}

}  // namespace
}  // namespace reshard::testing
