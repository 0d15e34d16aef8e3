// Node-local disks: every rank has a store of its own, and only one of them has the commit record.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "reshard/engine/snapshot.h"
#include "reshard/storage/fault_storage.h"
#include "tests/support/states.h"

namespace reshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr DType kF32 = DType::kFloat32;
const Shape kShape = {64, 300};

/// Four disks, one for each rank.
class NodeLocalTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 4; ++i) {
      disks_.push_back(NewMemoryStorage(fmt::format("disk{}", i)));
    }
  }

  Storage& Disk(int i) { return *disks_[static_cast<std::size_t>(i)]; }

  void SaveAll(std::uint64_t salt, int coordinator, bool overwrite = false, bool tensors = true) {
    RunRanks(4, [&](ProcessGroup& group) {
      StateDict state = Value::Map();
      if (tensors) {
        state["w"] = PatternTensor(kF32, kShape, {CutBox(kShape, 0, group.rank(), 4)}, salt);
      }
      state["salt"] = salt;
      SaveOptions options;
      options.unique_id = 0;
      options.coordinator_rank = coordinator;
      options.overwrite = overwrite;
      ASSERT_OK(Save(state, Disk(group.rank()), group, options));
    });
  }

  /// Loads columns on as many ranks as there are stores; all results.
  std::vector<Result<LoadReport>> LoadOn(const std::vector<Storage*>& stores, std::uint64_t salt,
                                         bool tensors = true) {
    const int ranks = static_cast<int>(stores.size());
    return OnRanks(ranks, [&](ProcessGroup& group) {
      StateDict state = Value::Map();
      if (tensors) {
        state["w"] = TargetTensor(kF32, kShape, {CutBox(kShape, 1, group.rank(), ranks)});
      }
      state["salt"] = 0;
      auto report = Load(state, *stores[static_cast<std::size_t>(group.rank())], group);
      if (report.ok()) {
        EXPECT_EQ(*state.Find("salt"), Value(salt));
        EXPECT_EQ(tensors && CountWrong(*state.Find("w")->get_if<Tensor>(), salt) != 0, false);
      }
      return report;
    });
  }

  void ExpectLoads(const std::vector<Storage*>& stores, std::uint64_t salt, bool tensors = true) {
    for (const auto& result : LoadOn(stores, salt, tensors)) {
      EXPECT_OK(result);
    }
  }

  std::vector<Storage*> All() { return {&Disk(0), &Disk(1), &Disk(2), &Disk(3)}; }

  std::vector<std::unique_ptr<Storage>> disks_;
};

/// What two disks hold, as one: a rank that sees both.
std::unique_ptr<Storage> Merged(Storage& a, Storage& b) {
  auto out = CloneOf(a, "merged");
  for (const auto& [name, bytes] : ReadAll(b)) {
    PutObject(*out, name, bytes);
  }
  return out;
}

TEST_F(NodeLocalTest, LoadsWhoeverHoldsWhichDisk) {
  SaveAll(1, 0);
  EXPECT_THAT(Names(Disk(0)), ElementsAre("0.reshard", "0_0.safetensors"));
  EXPECT_THAT(Names(Disk(3)), ElementsAre("3_0.safetensors"));
  ExpectLoads(All(), 1);
  ExpectLoads({&Disk(2), &Disk(1), &Disk(0), &Disk(3)}, 1);
  ExpectLoads({&Disk(3), &Disk(2), &Disk(1), &Disk(0)}, 1);
  const auto left = Merged(Disk(0), Disk(2));
  const auto right = Merged(Disk(3), Disk(1));
  ExpectLoads({left.get(), right.get()}, 1);
  ExpectLoads({right.get(), left.get()}, 1);
}

TEST_F(NodeLocalTest, EachByteIsReadOnceAndSentOn) {
  SaveAll(1, 0);
  std::uint64_t read = 0;
  for (const auto& result : LoadOn(All(), 1)) {
    ASSERT_OK(result);
    EXPECT_TRUE(result->exchanged);
    read += result->bytes_read;
  }
  EXPECT_EQ(read, 64U * 300 * 4);
}

TEST_F(NodeLocalTest, OverwriteByAnotherCoordinatorCleansTheOldOne) {
  SaveAll(1, 0);
  SaveAll(2, 3, true);
  EXPECT_THAT(Names(Disk(0)), ElementsAre("0_0.a1.safetensors"));
  EXPECT_THAT(Names(Disk(1)), ElementsAre("1_0.a1.safetensors"));
  EXPECT_THAT(Names(Disk(3)), ElementsAre("0.reshard", "3_0.a1.safetensors"));
  ExpectLoads(All(), 2);
  SaveAll(3, 0, true);
  EXPECT_THAT(Names(Disk(3)), ElementsAre("3_0.a2.safetensors"));
  ExpectLoads(All(), 3);
}

TEST_F(NodeLocalTest, OverwriteWithoutDataFilesTakesAHigherAttempt) {
  SaveAll(1, 0, false, false);
  EXPECT_THAT(Names(Disk(0)), ElementsAre("0.reshard"));
  SaveAll(2, 2, true, false);
  EXPECT_THAT(Names(Disk(0)), ElementsAre());
  EXPECT_THAT(Names(Disk(2)), ElementsAre("0.reshard"));
  ExpectLoads(All(), 2, false);
}

TEST_F(NodeLocalTest, DamagedOldRecordDoesNotBlockReadersAfterAnOverwrite) {
  SaveAll(1, 0);
  PutObject(Disk(0), "0.reshard", Bytes(50, std::byte{9}));
  SaveAll(2, 1, true);
  ExpectLoads(All(), 2);
  const auto names = Names(Disk(0));
  EXPECT_EQ(std::count(names.begin(), names.end(), "0_0.safetensors"), 1)
      << "a catalog that does not decode deletes nothing";
}

TEST_F(NodeLocalTest, OldRecordThatComesBackLoses) {
  SaveAll(1, 0);
  const Contents old = ReadAll(Disk(0));
  SaveAll(2, 3, true);
  for (const auto& [name, bytes] : old) {  // a node that was away during the overwrite
    PutObject(Disk(0), name, bytes);
  }
  ExpectLoads(All(), 2);
}

TEST_F(NodeLocalTest, CommittedIdOnAnotherRanksDiskIsSeen) {
  SaveAll(1, 0);
  const auto results = OnRanks(4, [&](ProcessGroup& group) {
    StateDict state;
    state["salt"] = 2;
    SaveOptions options;
    options.unique_id = 0;
    options.coordinator_rank = 2;
    return Save(state, Disk(group.rank()), group, options);
  });
  ExpectOneOutcome(results);
  EXPECT_THAT(results[0], FailsWith("SNAPSHOT_EXISTS"));
  RunRanks(4, [&](ProcessGroup& group) {
    StateDict state;
    state["salt"] = 2;
    SaveOptions options;
    options.coordinator_rank = 2;
    const auto saved = Save(state, Disk(group.rank()), group, options);
    ASSERT_OK(saved);
    EXPECT_EQ(saved->unique_id, 1U);
  });
}

TEST_F(NodeLocalTest, CatalogsOfDifferentRunsConflict) {
  SaveAll(1, 0);
  const auto first = CloneOf(Disk(0));
  disks_.clear();
  SetUp();
  SaveAll(2, 1);
  const auto results = LoadOn({first.get(), &Disk(1), &Disk(2), &Disk(3)}, 1);
  ExpectOneOutcome(results);
  EXPECT_THAT(results[0], FailsWith("CATALOG_CONFLICT"));
}

TEST_F(NodeLocalTest, MissingDiskIsNamedByItsFile) {
  SaveAll(1, 0);
  const auto empty = NewMemoryStorage();
  const auto results = LoadOn({&Disk(0), &Disk(1), empty.get(), &Disk(3)}, 1);
  ExpectOneOutcome(results);
  ASSERT_THAT(results[0], FailsWith("FILE_MISSING"));
  EXPECT_THAT(results[0].error().message, HasSubstr("2_0.safetensors"));
  const auto none = LoadOn({empty.get(), &Disk(1), &Disk(2), &Disk(3)}, 1);
  ExpectOneOutcome(none);
  EXPECT_THAT(none[0], FailsWith("NO_SNAPSHOT"));
}

TEST_F(NodeLocalTest, DamagedFileIsNamedWithItsReason) {
  SaveAll(1, 0);
  const Bytes whole = ReadObject(Disk(2), "2_0.safetensors");
  const auto expect = [&](ByteSpan bytes, std::string_view reason) {
    PutObject(Disk(2), "2_0.safetensors", bytes);
    const auto results = LoadOn(All(), 1);
    ExpectOneOutcome(results);
    ASSERT_THAT(results[0], FailsWith(reason));
    EXPECT_THAT(results[0].error().message, HasSubstr("rank 2: disk2/2_0.safetensors"));
  };
  expect(ByteSpan(whole).first(whole.size() - 1), "FILE_SIZE");
  Bytes damaged = whole;
  damaged[100] ^= std::byte{1};
  expect(damaged, "FILE_HEAD");
  damaged = whole;
  damaged.back() ^= std::byte{1};
  expect(damaged, "BLOCK_CHECKSUM");
  // A copy of the file on another disk makes up for a bad one that is found at opening.
  damaged = whole;
  damaged[100] ^= std::byte{1};
  PutObject(Disk(2), "2_0.safetensors", damaged);
  PutObject(Disk(0), "2_0.safetensors", whole);
  ExpectLoads(All(), 1);
}

/// A store that cannot say whether others look at the same place.
class NamelessStorage final : public Storage {
 public:
  explicit NamelessStorage(Storage& base) : faults_(base, nullptr) {}

  const std::string& description() const override { return faults_.description(); }

  Result<std::vector<ObjectInfo>> List() override { return faults_.List(); }

  Result<std::unique_ptr<ReadableObject>> Open(std::string_view name) override {
    return faults_.Open(name);
  }

  Result<std::unique_ptr<WritableObject>> Create(std::string_view name,
                                                 const CreateOptions& options) override {
    return faults_.Create(name, options);
  }

  Result<Published> Publish(std::string_view from, std::string_view to, PublishMode mode) override {
    return faults_.Publish(from, to, mode);
  }

  Status Rename(std::string_view from, std::string_view to) override {
    return faults_.Rename(from, to);
  }

  Status Remove(std::string_view name) override { return faults_.Remove(name); }

  Status SyncNames() override { return faults_.SyncNames(); }

  Result<std::unique_ptr<StorageLock>> TryLock(std::string_view name) override {
    return faults_.TryLock(name);
  }

 private:
  FaultStorage faults_;  // passes everything on
};

TEST_F(NodeLocalTest, SharedStoreOfUnknownIdentityWorks) {
  NamelessStorage shared(Disk(0));
  for (const std::uint64_t salt : {1, 2, 3}) {
    RunRanks(4, [&](ProcessGroup& group) {
      StateDict state;
      state["w"] = PatternTensor(kF32, kShape, {CutBox(kShape, 0, group.rank(), 4)}, salt);
      state["salt"] = salt;
      SaveOptions options;
      options.unique_id = 0;
      options.overwrite = salt > 1;
      options.coordinator_rank = static_cast<int>(salt);
      ASSERT_OK(Save(state, shared, group, options));
    });
    EXPECT_EQ(Names(Disk(0)).size(), 5U);
    ExpectLoads({&shared, &shared, &shared}, salt);
  }
}

}  // namespace
}  // namespace reshard::testing
