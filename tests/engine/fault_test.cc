// Storage that fails, or stops, at the k-th operation, for every k of a save, an overwrite and a
// load; and files that are not what was written.

#include <gtest/gtest.h>

#include "reshard/storage/fault_storage.h"
#include "reshard/storage/posix_storage.h"
#include "tests/support/states.h"

namespace reshard::testing {
namespace {

constexpr DType kF32 = DType::kFloat32;
const Shape kRows = {30, 8};
const Shape kSame = {500};

/// What version `version` holds: a tensor cut by rows, one that every rank holds, an object and a
/// per-rank value. Empty boxes where a rank has no rows.
StateDict StateOf(int version, int rank, int size, bool filled = true) {
  const auto salt = static_cast<std::uint64_t>(version) * 10;
  StateDict state;
  Tensor rows = TargetTensor(kF32, kRows, {CutBox(kRows, 0, rank, size)});
  Tensor same = TargetTensor(kF32, kSame, {WholeBox(kSame)});
  if (filled) {
    FillPattern(rows, salt + 1);
    FillPattern(same, salt + 2);
  }
  state["rows"] = std::move(rows);
  state["deep"]["same"] = std::move(same);
  state["version"] = filled ? version : -1;
  return state;
}

SaveOptions SmallPlan(std::uint64_t id, bool overwrite) {
  SaveOptions options;
  options.unique_id = id;
  options.overwrite = overwrite;
  options.threads = 1;
  options.plan.min_cut_bytes = 256;
  return options;
}

/// The version that `state` holds, whole; -1 when elements are wrong.
int VersionIn(const StateDict& state) {
  const auto* version = state.Find("version")->get_if<std::int64_t>();
  const auto salt = static_cast<std::uint64_t>(*version) * 10;
  const bool right = CountWrong(*state.Find("rows")->get_if<Tensor>(), salt + 1) == 0 &&
                     CountWrong(*state.Find("deep")->Find("same")->get_if<Tensor>(), salt + 2) == 0;
  return right ? static_cast<int>(*version) : -1;
}

/// Loads the newest snapshot on two ranks; the version, or -1.
int LoadedVersion(Storage& storage) {
  const auto versions = OnRanks(2, [&](ProcessGroup& group) {
    StateDict state = StateOf(0, group.rank(), 2, false);
    const auto report = Load(state, storage, group);
    EXPECT_OK(report);
    return report.ok() ? VersionIn(state) : -1;
  });
  return versions[0] == versions[1] ? versions[0] : -1;
}

void SaveVersion(Storage& storage, int version, int ranks, std::uint64_t id, bool overwrite) {
  RunRanks(ranks, [&](ProcessGroup& group) {
    ASSERT_OK(
        Save(StateOf(version, group.rank(), ranks), storage, group, SmallPlan(id, overwrite)));
  });
}

/// One fault: what happens at the k-th operation of one rank.
struct Fault {
  FaultAction action = FaultAction::kNone;
  int rank = 0;
  std::uint64_t at = 0;
};

/// Where a fault hit.
struct Hit {
  std::atomic<bool> happened = false;
  std::atomic<StorageOp> op = StorageOp::kList;
};

/// A store for one rank of the run, faulty on one of them.
std::unique_ptr<FaultStorage> Wrap(Storage& base, const Fault& fault, int rank, Hit& hit) {
  return NewFaultStorage(base,
                         [fault, rank, &hit](std::uint64_t count, StorageOp op, std::string_view) {
                           if (rank != fault.rank || count != fault.at) {
                             return FaultAction::kNone;
                           }
                           hit.happened = true;
                           hit.op = op;
                           return fault.action;
                         });
}

std::string Describe(const Fault& fault) {
  const char* names[] = {"none", "fail", "fail after", "crash", "flip"};
  return std::string(names[static_cast<int>(fault.action)]) + " at operation " +
         std::to_string(fault.at) + " of rank " + std::to_string(fault.rank);
}

class SaveFaultTest : public ::testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  /// Saves version 2 with a fault over or after version 1 and checks all that must hold then.
  /// False: the save has no such operation.
  bool RunOne(const Fault& fault) {
    const auto [ranks, overwrite] = GetParam();
    SCOPED_TRACE(Describe(fault));
    const auto base = NewMemoryStorage();
    SaveVersion(*base, 1, ranks, 0, false);
    const Contents before = ReadAll(*base);
    Hit hit;
    const auto results = OnRanks(ranks, [&, n = ranks, over = overwrite](ProcessGroup& group) {
      const auto faulty = Wrap(*base, fault, group.rank(), hit);
      return Save(StateOf(2, group.rank(), n), *faulty, group, SmallPlan(over ? 0 : 1, over));
    });
    // Not when it died, nor when a file was made that it was not told of.
    const bool cleans =
        fault.action == FaultAction::kFail ||
        (fault.action == FaultAction::kFailAfter && hit.op.load() != StorageOp::kCreate);
    CheckAfterwards(cleans, *base, before, results);
    SaveVersion(*base, 3, ranks, overwrite ? 0 : 1, true);
    EXPECT_EQ(LoadedVersion(*base), 3);
    return hit.happened;
  }

  void CheckAfterwards(bool cleans, Storage& base, const Contents& before,
                       const std::vector<Result<SaveResult>>& results) {
    ExpectOneOutcome(results);
    bool any_ok = false;
    bool unknown = false;
    for (const auto& result : results) {
      any_ok = any_ok || result.ok();
      unknown = unknown || (!result.ok() && result.error().code == ErrorCode::kIndeterminate);
    }
    const int version = LoadedVersion(base);
    EXPECT_TRUE(version == 1 || version == 2) << version;
    if (any_ok) {
      EXPECT_EQ(version, 2) << "a rank said OK, but the snapshot is not there";
    } else if (!unknown) {
      EXPECT_EQ(version, 1) << "every rank said that it failed, but the snapshot is there";
      if (cleans) {
        EXPECT_EQ(ReadAll(base), before) << "the failed save left files behind";
      }
    }
  }
};

TEST_P(SaveFaultTest, OldOrNewAtEveryOperation) {
  std::uint64_t states = 0;
  const int ranks = std::get<0>(GetParam());
  for (const FaultAction action :
       {FaultAction::kFail, FaultAction::kFailAfter, FaultAction::kCrash}) {
    for (int rank = 0; rank < ranks; ++rank) {
      std::uint64_t k = 0;
      while (RunOne({action, rank, k}) && !HasFailure()) {
        ++k;
        ++states;
      }
      EXPECT_GE(k, 4U) << "the save of rank " << rank << " has too few operations to be true";
    }
  }
  RecordProperty("states", std::to_string(states));
  std::printf("[   states ] %llu\n", static_cast<unsigned long long>(states));
}

INSTANTIATE_TEST_SUITE_P(Modes, SaveFaultTest,
                         ::testing::Combine(::testing::Values(1, 3), ::testing::Bool()),
                         [](const auto& modes) {
                           return std::to_string(std::get<0>(modes.param)) + "Ranks" +
                                  (std::get<1>(modes.param) ? "Overwrite" : "New");
                         });

class LoadFaultTest : public ::testing::TestWithParam<std::tuple<int, Movement>> {};

TEST_P(LoadFaultTest, RightDataOrOneErrorAtEveryOperation) {
  const auto& [ranks, movement] = GetParam();
  const auto base = NewMemoryStorage();
  SaveVersion(*base, 1, 3, 0, false);
  std::uint64_t states = 0;
  const auto run = [&, n = ranks, how = movement](const Fault& fault) {
    SCOPED_TRACE(Describe(fault));
    Hit hit;
    const auto load = [&](ProcessGroup& group) {
      const auto faulty = Wrap(*base, fault, group.rank(), hit);
      StateDict state = StateOf(0, group.rank(), n, false);
      LoadOptions options;
      options.transfer = how.transfer;
      options.threads = 1;
      auto report = Load(state, *faulty, group, options);
      if (report.ok()) {
        EXPECT_EQ(VersionIn(state), 1);
      } else {
        EXPECT_EQ(state.Find("version")->get_if<std::int64_t>()[0], -1);
      }
      return report;
    };
    const auto results = OnRanks(n, load, {}, how.apart);
    ExpectOneOutcome(results);
    return hit.happened.load();
  };
  for (const FaultAction action :
       {FaultAction::kFail, FaultAction::kFailAfter, FaultAction::kCrash, FaultAction::kFlip}) {
    for (int rank = 0; rank < ranks; ++rank) {
      for (std::uint64_t k = 0; run({action, rank, k}) && !HasFailure(); ++k) {
        ++states;
      }
    }
  }
  RecordProperty("states", std::to_string(states));
  std::printf("[   states ] %llu\n", static_cast<unsigned long long>(states));
  EXPECT_GT(states, 20U);
}

INSTANTIATE_TEST_SUITE_P(Modes, LoadFaultTest,
                         ::testing::Combine(::testing::Values(1, 3),
                                            ::testing::ValuesIn(Movements())),
                         [](const auto& modes) {
                           return std::to_string(std::get<0>(modes.param)) + "Ranks" +
                                  std::get<1>(modes.param).name;
                         });

/// A checkpoint of three ranks in memory whose files can be damaged.
class DamageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SaveVersion(*storage_, 1, 3, 0, false);
    whole_ = ReadAll(*storage_);
    ASSERT_EQ(Names(*storage_), (std::vector<std::string>{"0.reshard", "0_0.safetensors",
                                                          "1_0.safetensors", "2_0.safetensors"}));
  }

  /// Loads on `ranks` ranks: all right, or one error.
  Result<LoadReport> LoadDamaged(int ranks = 1, Transfer transfer = Transfer::kDirect) {
    auto results = OnRanks(ranks, [&](ProcessGroup& group) {
      StateDict state = StateOf(0, group.rank(), ranks, false);
      LoadOptions options;
      options.transfer = transfer;
      options.threads = 1;
      auto report = Load(state, *storage_, group, options);
      if (report.ok()) {
        EXPECT_EQ(VersionIn(state), 1) << "wrong data with OK";
      }
      return report;
    });
    ExpectOneOutcome(results);
    return std::move(results[0]);
  }

  void ExpectFails(std::string_view reason, std::string_view file) {
    for (const Transfer transfer : {Transfer::kAuto, Transfer::kDirect, Transfer::kExchange}) {
      for (const int ranks : {1, 2}) {
        const auto report = LoadDamaged(ranks, transfer);
        ASSERT_FALSE(report.ok());
        EXPECT_EQ(report.error().reason, reason) << report.error().ToString() << " ranks " << ranks
                                                 << " transfer " << static_cast<int>(transfer);
        EXPECT_NE(report.error().message.find(file), std::string::npos)
            << report.error().ToString();
      }
    }
  }

  std::unique_ptr<Storage> storage_ = NewMemoryStorage();
  Contents whole_;
};

TEST_F(DamageTest, FlippedBytesAreFoundAndTheFileIsNamed) {
  std::uint64_t states = 0;
  std::uint64_t found = 0;
  for (const auto& [name, bytes] : whole_) {
    const bool catalog = name == "0.reshard";
    for (std::size_t at = 0; at < bytes.size(); at += catalog ? 5 : 37) {
      SCOPED_TRACE(name + " byte " + std::to_string(at));
      Bytes damaged = bytes;
      damaged[at] ^= std::byte{static_cast<unsigned char>(1U << (at % 8))};
      PutObject(*storage_, name, damaged);
      const auto report = LoadDamaged();
      ++states;
      if (!report.ok()) {
        ++found;
        const bool newer = report.error().reason == "NEWER_VERSION";
        EXPECT_TRUE(newer || report.error().code == ErrorCode::kCorruption)
            << report.error().ToString();
        EXPECT_NE(report.error().message.find(name), std::string::npos)
            << report.error().ToString();
      }
    }
    PutObject(*storage_, name, bytes);
  }
  EXPECT_EQ(found, states) << "each byte of this checkpoint is checked";
  RecordProperty("states", std::to_string(states));
}

TEST_F(DamageTest, TruncatedFilesAreFoundAndNamed) {
  for (const auto& [name, bytes] : whole_) {
    for (std::size_t size = 0; size < bytes.size(); size += size < 64 ? 9 : 97) {
      SCOPED_TRACE(name + " cut at " + std::to_string(size));
      PutObject(*storage_, name, ByteSpan(bytes).first(size));
      const auto report = LoadDamaged();
      ASSERT_FALSE(report.ok());
      EXPECT_EQ(report.error().code, ErrorCode::kCorruption) << report.error().ToString();
      if (name != "0.reshard") {
        EXPECT_EQ(report.error().reason, "FILE_SIZE");
      }
      EXPECT_NE(report.error().message.find(name), std::string::npos) << report.error().ToString();
    }
    PutObject(*storage_, name, bytes);
  }
}

TEST_F(DamageTest, LongerFileIsFound) {
  Bytes longer = whole_["1_0.safetensors"];
  longer.push_back(std::byte{0});
  PutObject(*storage_, "1_0.safetensors", longer);
  ExpectFails("FILE_SIZE", "1_0.safetensors");
}

TEST_F(DamageTest, MissingFileIsNamed) {
  ASSERT_OK(storage_->Remove("2_0.safetensors"));
  ExpectFails("FILE_MISSING", "2_0.safetensors");
}

TEST_F(DamageTest, SwappedFilesOfUnequalSizeAreFound) {
  ASSERT_NE(whole_["0_0.safetensors"].size(), whole_["1_0.safetensors"].size());
  PutObject(*storage_, "0_0.safetensors", whole_["1_0.safetensors"]);
  PutObject(*storage_, "1_0.safetensors", whole_["0_0.safetensors"]);
  ExpectFails("FILE_SIZE", "0_0.safetensors");
}

TEST_F(DamageTest, SwappedFilesOfEqualSizeAreFound) {
  ASSERT_EQ(whole_["1_0.safetensors"].size(), whole_["2_0.safetensors"].size());
  PutObject(*storage_, "1_0.safetensors", whole_["2_0.safetensors"]);
  PutObject(*storage_, "2_0.safetensors", whole_["1_0.safetensors"]);
  ExpectFails("FILE_HEAD", "1_0.safetensors");
}

TEST_F(DamageTest, FileOfAnotherSaveUnderTheNewNameIsFound) {
  const auto other = NewMemoryStorage();
  SaveVersion(*other, 2, 3, 0, false);  // same names and sizes, other elements
  const Bytes stale = ReadObject(*other, "1_0.safetensors");
  ASSERT_EQ(stale.size(), whole_["1_0.safetensors"].size());
  PutObject(*storage_, "1_0.safetensors", stale);
  ExpectFails("FILE_HEAD", "1_0.safetensors");
}

TEST_F(DamageTest, ForeignFileIsFound) {
  const Bytes foreign(whole_["1_0.safetensors"].size(), std::byte{'x'});
  PutObject(*storage_, "1_0.safetensors", foreign);
  ExpectFails("FILE_HEAD", "1_0.safetensors");
}

TEST_F(DamageTest, RenamedCatalogIsFound) {
  PutObject(*storage_, "7.reshard", whole_["0.reshard"]);
  const auto report = LoadDamaged();
  EXPECT_THAT(report, FailsWith("CATALOG_KIND"));
}

TEST_F(DamageTest, PayloadFlipIsFoundInEveryTransfer) {
  Bytes damaged = whole_["1_0.safetensors"];
  damaged[damaged.size() - 100] ^= std::byte{1};
  PutObject(*storage_, "1_0.safetensors", damaged);
  ExpectFails("BLOCK_CHECKSUM", "1_0.safetensors");
}

TEST_F(DamageTest, VerifyOffNeverCrashesOnDamage) {
  for (std::size_t at = 4096; at < whole_["0_0.safetensors"].size(); at += 211) {
    Bytes damaged = whole_["0_0.safetensors"];
    damaged[at] ^= std::byte{0xff};
    PutObject(*storage_, "0_0.safetensors", damaged);
    RunRanks(2, [&](ProcessGroup& group) {
      StateDict state = StateOf(0, group.rank(), 2, false);
      LoadOptions options;
      options.verify = false;
      EXPECT_OK(Load(state, *storage_, group, options));
    });
  }
}

TEST_F(DamageTest, StrayFilesOfEveryKindDoNotDisturbASave) {
  const Bytes junk(10, std::byte{7});
  for (const char* name : {"0_1.safetensors", "1_1.a1.safetensors", "1.a2.reshard.tmp",
                           "2_1.a3.safetensors", "notes.txt", "3.reshard.deleting"}) {
    PutObject(*storage_, name, junk);
  }
  SaveVersion(*storage_, 2, 3, 1, false);
  EXPECT_EQ(LoadedVersion(*storage_), 2);
  EXPECT_EQ(ReadObject(*storage_, "0_1.safetensors"), junk);
  EXPECT_EQ(ReadObject(*storage_, "notes.txt"), junk);
}

/// A store whose listing hides names, as the attribute cache of a network file system may.
class BlindStorage final : public Storage {
 public:
  BlindStorage(Storage& base, std::string hidden) : base_(base), hidden_(std::move(hidden)) {}

  const std::string& description() const override { return base_.description(); }

  Result<std::vector<ObjectInfo>> List() override {
    RESHARD_TRY_ASSIGN(std::vector<ObjectInfo> all, base_.List());
    std::erase_if(all, [this](const ObjectInfo& object) { return object.name == hidden_; });
    return all;
  }

  Result<std::unique_ptr<ReadableObject>> Open(std::string_view name) override {
    return base_.Open(name);
  }

  Result<std::unique_ptr<WritableObject>> Create(std::string_view name,
                                                 const CreateOptions& options) override {
    return base_.Create(name, options);
  }

  Result<Published> Publish(std::string_view from, std::string_view to, PublishMode mode) override {
    return base_.Publish(from, to, mode);
  }

  Status Rename(std::string_view from, std::string_view to) override {
    return base_.Rename(from, to);
  }

  Status Remove(std::string_view name) override { return base_.Remove(name); }

  Status SyncNames() override { return base_.SyncNames(); }

  Result<std::unique_ptr<StorageLock>> TryLock(std::string_view name) override {
    return base_.TryLock(name);
  }

  std::uint64_t Identity() const override { return base_.Identity(); }

 private:
  Storage& base_;
  std::string hidden_;
};

TEST_F(DamageTest, StrayThatNoListingShowsMakesAnotherAttempt) {
  const Bytes junk(10, std::byte{7});
  PutObject(*storage_, "2_1.safetensors", junk);
  BlindStorage blind(*storage_, "2_1.safetensors");
  RunRanks(3, [&](ProcessGroup& group) {
    const auto saved = Save(StateOf(2, group.rank(), 3), blind, group, SmallPlan(1, false));
    ASSERT_OK(saved);
    EXPECT_EQ(saved->attempt, 1U);
  });
  EXPECT_EQ(LoadedVersion(*storage_), 2);
  EXPECT_EQ(ReadObject(*storage_, "2_1.safetensors"), junk);
  // The first attempt's files are gone.
  const auto names = Names(*storage_);
  EXPECT_EQ(std::count(names.begin(), names.end(), "0_1.safetensors"), 0);
}

TEST_F(DamageTest, CommittedIdThatNoListingShowsIsNotReplaced) {
  BlindStorage blind(*storage_, "0.reshard");
  const auto results = OnRanks(3, [&](ProcessGroup& group) {
    return Save(StateOf(2, group.rank(), 3), blind, group, SmallPlan(0, false));
  });
  ExpectOneOutcome(results);
  EXPECT_THAT(results[0], FailsWith("LOST_RACE"));
  EXPECT_EQ(LoadedVersion(*storage_), 1);
  EXPECT_EQ(ReadAll(*storage_), whole_);
}

}  // namespace
}  // namespace reshard::testing
