// Several writers, and readers while a snapshot is replaced; directories of a real file system,
// read-only and full.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "reshard/storage/posix_storage.h"
#include "tests/support/states.h"

namespace reshard::testing {
namespace {

constexpr DType kF32 = DType::kFloat32;
const Shape kShape = {90, 100};

StateDict VersionOf(int version, int rank, int size) {
  StateDict state;
  state["w"] = PatternTensor(kF32, kShape, {CutBox(kShape, 0, rank, size)},
                             static_cast<std::uint64_t>(version));
  state["version"] = version;
  return state;
}

/// Loads by columns; the version, -1 when it is not whole, or the error.
Result<int> LoadVersion(ProcessGroup& group, Storage& storage, const LoadOptions& options = {}) {
  StateDict state;
  state["w"] = TargetTensor(kF32, kShape, {CutBox(kShape, 1, group.rank(), group.size())});
  state["version"] = -1;
  RESHARD_TRY(Load(state, storage, group, options));
  const auto version = *state.Find("version")->get_if<std::int64_t>();
  const bool whole =
      CountWrong(*state.Find("w")->get_if<Tensor>(), static_cast<std::uint64_t>(version)) == 0;
  return whole ? static_cast<int>(version) : -1;
}

/// A directory that is gone afterwards.
class Scratch {
 public:
  Scratch() {
    const char* base = std::getenv("TMPDIR");
    path_ = fmt::format("{}/reshard_race_XXXXXX", base != nullptr ? base : "/tmp");
    ok_ = ::mkdtemp(path_.data()) != nullptr;
  }

  ~Scratch() {
    const auto storage = OpenPosixStorage(path_);
    if (storage.ok()) {
      for (const std::string& name : Names(**storage)) {
        static_cast<void>((*storage)->Remove(name).ok());
      }
    }
    ::rmdir(path_.c_str());
  }

  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::string& path() const { return path_; }

  bool ok() const { return ok_; }

 private:
  std::string path_;
  bool ok_ = false;
};

TEST(RaceTest, OfTwoWritersOfOneIdExactlyOneWins) {
  int lost_races = 0;
  for (int round = 0; round < 60; ++round) {
    const auto storage = NewMemoryStorage();
    std::vector<std::vector<Result<SaveResult>>> outcomes(2);
    std::vector<std::thread> writers;
    for (int writer = 0; writer < 2; ++writer) {
      writers.emplace_back([&, writer] {
        outcomes[static_cast<std::size_t>(writer)] = OnRanks(2, [&](ProcessGroup& group) {
          SaveOptions options;
          options.unique_id = 7;
          options.coordinator_rank = writer;
          return Save(VersionOf(writer, group.rank(), 2), *storage, group, options);
        });
      });
    }
    for (std::thread& thread : writers) {
      thread.join();
    }
    int winner = -1;
    for (int writer = 0; writer < 2; ++writer) {
      const auto& results = outcomes[static_cast<std::size_t>(writer)];
      ExpectOneOutcome(results);
      if (results[0].ok()) {
        EXPECT_EQ(winner, -1) << "both won";
        winner = writer;
      } else {
        EXPECT_EQ(results[0].error().code, ErrorCode::kAlreadyExists)
            << results[0].error().ToString();
        lost_races += results[0].error().reason == "LOST_RACE" ? 1 : 0;
      }
    }
    ASSERT_NE(winner, -1);
    const auto versions =
        OnRanks(3, [&](ProcessGroup& group) { return LoadVersion(group, *storage); });
    for (const auto& version : versions) {
      ASSERT_OK(version);
      EXPECT_EQ(*version, winner);
    }
    EXPECT_EQ(Names(*storage).size(), 3U) << "the loser removed its files";
  }
  RecordProperty("lost_races", lost_races);
}

TEST(RaceTest, OfTwoOverwritersTheLastWinsAndBothSucceed) {
  for (int round = 0; round < 30; ++round) {
    const auto storage = NewMemoryStorage();
    std::vector<std::thread> writers;
    for (int writer = 1; writer <= 2; ++writer) {
      writers.emplace_back([&, writer] {
        RunRanks(2, [&](ProcessGroup& group) {
          SaveOptions options;
          options.unique_id = 0;
          options.overwrite = true;
          options.coordinator_rank = writer - 1;
          EXPECT_OK(Save(VersionOf(writer, group.rank(), 2), *storage, group, options));
        });
      });
    }
    for (std::thread& thread : writers) {
      thread.join();
    }
    const auto group = SingleProcessGroup();
    const auto version = LoadVersion(*group, *storage);
    ASSERT_OK(version);
    EXPECT_GE(*version, 1);
    EXPECT_EQ(Names(*storage).size(), 3U);
  }
}

TEST(RaceTest, ReadersSeeOldOrNewWholeDuringOverwrites) {
  const Scratch scratch;
  ASSERT_TRUE(scratch.ok());
  constexpr int kOverwrites = 50;
  std::atomic<int> committed = -1;
  std::atomic<bool> done = false;
  std::thread writer([&] {
    RunRanks(2, [&](ProcessGroup& group) {
      for (int version = 0; version <= kOverwrites; ++version) {
        SaveOptions options;
        options.unique_id = 0;
        options.overwrite = true;
        ASSERT_OK(Save(VersionOf(version, group.rank(), 2), scratch.path(), group, options));
        committed = version;
      }
    });
    done = true;
  });
  while (committed < 0 && !done) {
    std::this_thread::yield();
  }
  int loads = 0;
  for (int i = 0; !done || i < 3; ++i) {
    LoadOptions options;
    options.transfer = i % 2 == 0 ? Transfer::kAuto : Transfer::kExchange;
    const int before = committed;
    const auto versions = OnRanks(2, [&](ProcessGroup& group) -> Result<int> {
      RESHARD_TRY_ASSIGN(const auto storage, OpenPosixStorage(scratch.path()));
      return LoadVersion(group, *storage, options);
    });
    for (const auto& version : versions) {
      EXPECT_OK(version);
      if (version.ok()) {
        EXPECT_GE(*version, before);
        EXPECT_EQ(*version, *versions[0]);
      }
    }
    ++loads;
    if (::testing::Test::HasFailure()) {
      break;
    }
  }
  writer.join();
  RecordProperty("loads", loads);
  EXPECT_GE(loads, 3);
}

TEST(RaceTest, EqualSavesIntoTwoDirectoriesGiveEqualFiles) {
  const Scratch a;
  const Scratch b;
  std::vector<Contents> contents;
  for (const Scratch* scratch : {&a, &b}) {
    RunRanks(3, [&](ProcessGroup& group) {
      ASSERT_OK(Save(VersionOf(4, group.rank(), 3), scratch->path(), group));
    });
    const auto storage = OpenPosixStorage(scratch->path());
    ASSERT_OK(storage);
    contents.push_back(ReadAll(**storage));
  }
  EXPECT_EQ(contents[0], contents[1]);
  EXPECT_EQ(contents[0].size(), 4U);
}

TEST(RaceTest, PathThatCannotBeMadeIsOneErrorOnAllRanks) {
  const Scratch scratch;
  const auto storage = OpenPosixStorage(scratch.path());
  ASSERT_OK(storage);
  PutObject(**storage, "plain", Bytes(3));
  const auto results = OnRanks(3, [&](ProcessGroup& group) {
    // Only rank 1's directory cannot be.
    const std::string path = scratch.path() + (group.rank() == 1 ? "/plain/deep" : "");
    return Save(VersionOf(1, group.rank(), 3), path, group);
  });
  ExpectOneOutcome(results);
  ASSERT_FALSE(results[0].ok());
  EXPECT_THAT(results[0].error().message, ::testing::HasSubstr("rank 1: "));
  EXPECT_THAT(Names(**storage), ::testing::ElementsAre("plain"));
  RunRanks(2, [&](ProcessGroup& group) {
    StateDict state;
    EXPECT_THAT(Load(state, scratch.path() + "/nowhere", group), FailsWith("DIRECTORY_MISSING"));
  });
}

TEST(RaceTest, LoadTakesASnapshotsNameAsTheCommandLineDoes) {
  const Scratch scratch;
  const std::string path = scratch.path() + "/run";
  RunRanks(2, [&](ProcessGroup& group) {
    const auto version_of = [&](const std::string& name,
                                const LoadOptions& options) -> Result<int> {
      StateDict state;
      state["version"] = -1;
      RESHARD_TRY(Load(state, name, group, options));
      return static_cast<int>(*state.Find("version")->get_if<std::int64_t>());
    };
    const auto save = [&](int version, const std::string& name) {
      StateDict state;
      state["version"] = version;
      SaveOptions options;
      options.unique_id = static_cast<std::uint64_t>(version);
      ASSERT_OK(Save(state, name, group, options));
    };
    LoadOptions same;
    same.unique_id = 3;
    LoadOptions other;
    other.unique_id = 4;
    save(3, path);
    save(4, path);
    EXPECT_EQ(*version_of(path + "@3", {}), 3);
    EXPECT_EQ(*version_of(path + "@3", same), 3);
    EXPECT_THAT(version_of(path + "@3", other), FailsWith("DIRECTORY_MISSING"));
    EXPECT_THAT(version_of(path + "@03", {}), FailsWith("DIRECTORY_MISSING"));
    EXPECT_THAT(version_of(path + "@5", {}), FailsWith("NO_SNAPSHOT"));
    save(7, path + "@3");  // a directory of that very name wins
    EXPECT_EQ(*version_of(path + "@3", {}), 7);
  });
}

TEST(RaceTest, ARefusedStateLeavesNoDirectory) {
  const Scratch scratch;
  const std::string path = scratch.path() + "/run";
  RunRanks(2, [&](ProcessGroup& group) {
    StateDict state;
    state["version"] = group.rank();  // differs, and is not per-rank
    EXPECT_THAT(Save(state, path, group), FailsWith("OBJECT_MISMATCH"));
  });
  const auto storage = OpenPosixStorage(path);
  EXPECT_THAT(storage, FailsWith("DIRECTORY_MISSING"));
}

/// A small file system of its own, in memory; needs root.
class Tmpfs {
 public:
  Tmpfs(const std::string& path, const char* options)
      : path_(path), mounted_(::mount("tmpfs", path.c_str(), "tmpfs", 0, options) == 0) {}

  ~Tmpfs() {
    if (mounted_) {
      ::umount2(path_.c_str(), MNT_DETACH);
    }
  }

  Tmpfs(const Tmpfs&) = delete;
  Tmpfs& operator=(const Tmpfs&) = delete;

  bool mounted() const { return mounted_; }

  bool MakeReadOnly() const {
    return ::mount("tmpfs", path_.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, nullptr) == 0;
  }

 private:
  std::string path_;
  bool mounted_;
};

TEST(RaceTest, FullDiskIsAnErrorAndGivesItsSpaceBack) {
  const Scratch scratch;
  const Tmpfs disk(scratch.path(), "size=200k");
  if (!disk.mounted()) {
    GTEST_SKIP() << "cannot mount a tmpfs: not root, or not allowed";
  }
  const auto storage = OpenPosixStorage(scratch.path());
  ASSERT_OK(storage);
  RunRanks(2, [&](ProcessGroup& group) {
    ASSERT_OK(Save(VersionOf(1, group.rank(), 2), **storage, group));
  });
  const auto before = Names(**storage);
  const Shape big = {100000};
  const auto results = OnRanks(2, [&](ProcessGroup& group) {
    StateDict state;
    state["w"] = TargetTensor(kF32, big, {CutBox(big, 0, group.rank(), 2)});
    return Save(state, **storage, group);
  });
  ExpectOneOutcome(results);
  ASSERT_THAT(results[0], FailsWith("NO_SPACE"));
  EXPECT_EQ(results[0].error().code, ErrorCode::kIo);
  EXPECT_EQ(Names(**storage), before);
  // There is room again for what fits.
  RunRanks(2, [&](ProcessGroup& group) {
    ASSERT_OK(Save(VersionOf(2, group.rank(), 2), **storage, group));
    const auto version = LoadVersion(group, **storage);
    ASSERT_OK(version);
    EXPECT_EQ(*version, 2);
  });
}

TEST(RaceTest, ReadOnlyDirectoryLoadsButRefusesToSave) {
  const Scratch scratch;
  const Tmpfs disk(scratch.path(), "size=1m");
  if (!disk.mounted()) {
    GTEST_SKIP() << "cannot mount a tmpfs: not root, or not allowed";
  }
  const auto storage = OpenPosixStorage(scratch.path());
  ASSERT_OK(storage);
  RunRanks(2, [&](ProcessGroup& group) {
    ASSERT_OK(Save(VersionOf(1, group.rank(), 2), **storage, group));
  });
  ASSERT_TRUE(disk.MakeReadOnly());
  const auto results = OnRanks(2, [&](ProcessGroup& group) {
    return Save(VersionOf(2, group.rank(), 2), scratch.path(), group);
  });
  ExpectOneOutcome(results);
  EXPECT_THAT(results[0], FailsWith("READ_ONLY"));
  RunRanks(2, [&](ProcessGroup& group) {
    const auto version = LoadVersion(group, **storage);
    ASSERT_OK(version);
    EXPECT_EQ(*version, 1);
  });
}

}  // namespace
}  // namespace reshard::testing
