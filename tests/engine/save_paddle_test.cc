// Saving in Paddle's format: what is written, what is refused, and that a crash leaves the old or
// the new checkpoint.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "reshard/codec/crc64.h"
#include "reshard/engine/foreign.h"
#include "reshard/format/native/catalog_codec.h"
#include "reshard/format/paddle/metadata.h"
#include "reshard/format/paddle/names.h"
#include "reshard/storage/fault_storage.h"
#include "tests/support/states.h"

namespace reshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kMetadata = paddle::MetadataName(0);
const std::string kIndex = paddle::IndexName(0);

SaveOptions PaddleOptions(bool overwrite = false) {
  SaveOptions options;
  options.format = "paddle";
  options.overwrite = overwrite;
  options.threads = 1;
  return options;
}

/// One tensor cut by rows, one by columns into two boxes per rank, one that all have.
StateDict StateOf(std::uint64_t salt, int rank, int size) {
  const Shape columns = {6, 40};
  StateDict state;
  const Shape rows = {23, 8};
  state["model"]["rows"] =
      PatternTensor(DType::kFloat32, rows, {CutBox(rows, 0, rank, size)}, salt + 1);
  state["model"]["columns"] = PatternTensor(
      DType::kBfloat16, columns,
      {CutBox(columns, 1, rank, 2 * size), CutBox(columns, 1, rank + size, 2 * size)}, salt + 2);
  state["opt"]["same"] = PatternTensor(DType::kInt64, {31}, {WholeBox(Shape{31})}, salt + 3);
  state["step"] = PatternTensor(DType::kUint8, {}, {WholeBox(Shape{})}, salt + 4);
  return state;
}

std::vector<Result<SaveResult>> SaveOn(int ranks, Storage& storage, std::uint64_t salt,
                                       const SaveOptions& options = PaddleOptions()) {
  auto results = OnRanks(ranks, [&](ProcessGroup& group) {
    return Save(StateOf(salt, group.rank(), ranks), storage, group, options);
  });
  ExpectOneOutcome(results);
  return results;
}

/// Saves `state` on one rank.
Result<SaveResult> SaveOne(const StateDict& state, Storage& storage, const SaveOptions& options) {
  const auto group = SingleProcessGroup();
  return Save(state, storage, *group, options);
}

Catalog IndexOf(Storage& storage) {
  auto index = ReadIndex(storage, {"paddle", kMetadata, 0});
  EXPECT_OK(index);
  EXPECT_TRUE(index->catalog.has_value()) << "no index that fits";
  return std::move(*index->catalog);
}

/// Checks every element of a tensor against its pattern, by the index.
void CheckTensor(Storage& storage, const Catalog& catalog, std::string_view key,
                 std::uint64_t salt) {
  const TensorId t = catalog.Find(key).value();
  const auto shape = catalog.shape(t);
  Tensor whole = TargetTensor(catalog.dtype(t), Shape(shape.begin(), shape.end()), {});
  for (std::size_t c = 0; c < catalog.num_chunks(t); ++c) {
    const Chunk chunk = catalog.chunk(t, c);
    whole.shards.push_back(AllocateShard(whole.dtype, chunk.box.ToBox()));
    const Bytes file = ReadObject(storage, catalog.files()[chunk.file].name);
    std::copy_n(file.begin() + static_cast<std::ptrdiff_t>(chunk.byte_offset),
                catalog.chunk_bytes(t, c), whole.shards.back().view.data);
  }
  EXPECT_EQ(CountWrong(whole, salt), 0U) << key;
  EXPECT_OK(catalog.CheckCoverage(t));
  Tensor dense =
      PatternTensor(whole.dtype, whole.global_shape, {WholeBox(whole.global_shape)}, salt);
  EXPECT_EQ(catalog.digest(t), Crc64({dense.shards[0].view.data, catalog.num_bytes(t)})) << key;
}

void CheckAll(Storage& storage, std::uint64_t salt) {
  const Catalog catalog = IndexOf(storage);
  CheckTensor(storage, catalog, "model.rows", salt + 1);
  CheckTensor(storage, catalog, "model.columns", salt + 2);
  CheckTensor(storage, catalog, "opt.same", salt + 3);
  CheckTensor(storage, catalog, "step", salt + 4);
  for (std::uint32_t f = 0; f < catalog.files().size(); ++f) {
    const FileEntry& file = catalog.files()[f];
    const Bytes bytes = ReadObject(storage, file.name);
    EXPECT_EQ(file.size, bytes.size());
    EXPECT_EQ(file.payload_offset, 0U);
    for (std::uint64_t b = 0; b < file.num_blocks(); ++b) {
      const ByteRange range = file.Block(b);
      EXPECT_EQ(catalog.BlockChecksum(f, b),
                Crc64(ByteSpan(bytes).subspan(range.offset, range.size)));
    }
  }
}

TEST(SavePaddleTest, EveryByteIsWhereTheIndexSays) {
  for (const int ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(ranks);
    const auto storage = NewMemoryStorage();
    const auto results = SaveOn(ranks, *storage, 100);
    ASSERT_OK(results[0]);
    EXPECT_EQ(results[0]->unique_id, 0U);
    EXPECT_EQ(results[0]->attempt, 0U);
    EXPECT_EQ(results[0]->file_name, "0_0.distcp");
    CheckAll(*storage, 100);
    const Catalog catalog = IndexOf(*storage);
    EXPECT_EQ(catalog.info().format, "paddle");
    EXPECT_EQ(catalog.info().world_size, static_cast<std::uint64_t>(ranks));
    EXPECT_EQ(catalog.files().size(), 2U * static_cast<std::uint64_t>(ranks))
        << "two pieces of a key on each rank are two files";
    EXPECT_EQ(catalog.num_chunks(catalog.Find("opt.same").value()), 1U) << "replicas are not cut";
  }
}

TEST(SavePaddleTest, TheMetadataIsThatOfItsPieces) {
  const auto storage = NewMemoryStorage();
  StateDict state;
  state["m"]["w"] =
      PatternTensor(DType::kFloat32, {2, 3}, {Box{{0, 0}, {1, 3}}, Box{{1, 0}, {1, 3}}}, 1);
  Value tied = *state["m"].Find("w");
  state["m"]["tied"] = std::move(tied);
  for (const std::string format : {"paddle", "paddle:3.1"}) {
    SaveOptions options = PaddleOptions(true);
    options.format = format;
    ASSERT_OK_AND_ASSIGN(const SaveResult saved, SaveOne(state, *storage, options));
    const auto file = [&saved](std::uint64_t part) {
      return paddle::DataFileName(0, part, 0, saved.attempt);
    };
    paddle::Metadata expected;
    expected.files = {file(0), file(1)};
    if (saved.attempt > 0) {  // sorted by name: "0_a1_0" before "0_p1_a1_0"
      EXPECT_LT(file(0), file(1));
    }
    for (const char* key : {"m.tied", "m.w"}) {  // no alias
      paddle::MetadataTensor tensor;
      tensor.key = key;
      tensor.dtype = DType::kFloat32;
      tensor.shape = Shape{2, 3};
      tensor.pieces = {{{0, 0}, {1, 3}, std::nullopt, 0, 0}, {{1, 0}, {1, 3}, std::nullopt, 1, 0}};
      expected.tensors.push_back(std::move(tensor));
      expected.flat_mapping.emplace_back(key,
                                         Path{PathPart("m"), PathPart(std::string(key).substr(2))});
    }
    expected.has_flat_mapping = true;
    EXPECT_TRUE(ReadObject(*storage, kMetadata) ==
                EncodeMetadata(expected, format == "paddle" ? paddle::Flavour::kFlex
                                                            : paddle::Flavour::kLegacy));
  }
}

TEST(SavePaddleTest, AnOverwriteLeavesOnlyTheNewFiles) {
  const auto storage = NewMemoryStorage();
  ASSERT_OK(SaveOn(3, *storage, 100)[0]);
  const auto again = SaveOn(1, *storage, 200, PaddleOptions(true));
  ASSERT_OK(again[0]);
  EXPECT_EQ(again[0]->attempt, 1U);
  EXPECT_THAT(Names(*storage), ElementsAre(kMetadata, kIndex, "0_a1_0.distcp", "0_p1_a1_0.distcp"));
  CheckAll(*storage, 200);
}

TEST(SavePaddleTest, ASecondSaveIsRefusedUntouched) {
  const auto storage = NewMemoryStorage();
  ASSERT_OK(SaveOn(1, *storage, 100)[0]);
  const Contents before = ReadAll(*storage);
  EXPECT_THAT(SaveOn(2, *storage, 200)[0], FailsWith("SNAPSHOT_EXISTS"));
  SaveOptions other = PaddleOptions();
  other.unique_id = 1;
  EXPECT_THAT(SaveOn(2, *storage, 200, other)[0], FailsWith("ONE_ID_PER_DIRECTORY"));
  other.unique_id = 10;
  other.overwrite = true;
  EXPECT_THAT(SaveOn(2, *storage, 200, other)[0], FailsWith("ID_CLASH"));
  SaveOptions native;
  EXPECT_THAT(SaveOn(2, *storage, 200, native)[0], FailsWith("FOREIGN_DIRECTORY"));
  EXPECT_EQ(ReadAll(*storage), before);
  other.unique_id = 1;
  ASSERT_OK(SaveOn(1, *storage, 300, other)[0]);
  CheckAll(*storage, 100);  // beside it, nothing deleted
}

TEST(SavePaddleTest, OtherFormatsDirectoriesAreRefused) {
  for (const char* name : {"3.reshard", "0_0.a1.safetensors", "x.metadata", "__0_0.distcp",
                           "model.safetensors", "model.safetensors.index.json"}) {
    const auto storage = NewMemoryStorage();
    PutObject(*storage, name, AsBytes("x"));
    EXPECT_THAT(SaveOn(1, *storage, 1)[0], FailsWith("FOREIGN_DIRECTORY")) << name;
    EXPECT_THAT(Names(*storage), ElementsAre(name));
  }
}

TEST(SavePaddleTest, StraysOfACrashDoNotDisturb) {
  const auto storage = NewMemoryStorage();
  for (const char* name : {"0_0.distcp", "0_a3_0.distcp", "0.metadata.a1.tmp", "7_p2_0.distcp",
                           "0.metadata.lock", "0.metadata.reshard"}) {
    PutObject(*storage, name, AsBytes("stray"));
  }
  const auto saved = SaveOn(2, *storage, 100);
  ASSERT_OK(saved[0]);
  EXPECT_EQ(saved[0]->attempt, 4U);
  CheckAll(*storage, 100);
  EXPECT_EQ(AsText(ReadObject(*storage, "0_0.distcp")), "stray");
  EXPECT_EQ(AsText(ReadObject(*storage, "0_a3_0.distcp")), "stray");
}

TEST(SavePaddleTest, MetadataOfUnknownFilesDeletesNothing) {
  const auto storage = NewMemoryStorage();
  PutObject(*storage, kMetadata, AsBytes("no pickle"));
  PutObject(*storage, "0_0.distcp", AsBytes("theirs"));
  const auto saved = SaveOn(1, *storage, 100, PaddleOptions(true));
  ASSERT_OK(saved[0]);
  EXPECT_EQ(saved[0]->attempt, 1U);
  CheckAll(*storage, 100);
  EXPECT_EQ(AsText(ReadObject(*storage, "0_0.distcp")), "theirs");
}

TEST(SavePaddleTest, WhatPaddleCannotHoldIsListedBeforeAnythingIsWritten) {
  const auto state_of = [](int rank) {
    StateDict state;
    state["w"] = PatternTensor(DType::kFloat32, {4}, {WholeBox(Shape{4})}, 1);
    state["u16"] = PatternTensor(DType::kUint16, {4}, {WholeBox(Shape{4})}, 1);
    state["f4"] = PatternTensor(DType::kFloat4E2m1, {4}, {WholeBox(Shape{4})}, 1);
    state["c32"] = PatternTensor(DType::kComplex32, {4}, {WholeBox(Shape{4})}, 1);
    state["e8"] = PatternTensor(DType::kFloat8E8m0fnu, {4}, {WholeBox(Shape{4})}, 1);
    state["none"]["at_all"] = PatternTensor(DType::kFloat32, {0, 5}, {}, 1);
    state["UnpackBigParamInfor@@"] = PatternTensor(DType::kFloat32, {1}, {WholeBox(Shape{1})}, 1);
    state["bad\xff"] = PatternTensor(DType::kFloat32, {1}, {WholeBox(Shape{1})}, 1);
    state["rng"] = PerRank(Value(rank));
    state["StructuredToParameterName@@"]["w"] = "w_0";
    if (rank == 1) {
      state["lr"] = 0.5;
    }
    return state;
  };
  const auto storage = NewMemoryStorage();
  SaveOptions options = PaddleOptions();
  const auto save = [&] {
    auto results = OnRanks(2, [&](ProcessGroup& group) {
      return Save(state_of(group.rank()), *storage, group, options);
    });
    ExpectOneOutcome(results);
    return results;
  };
  const auto refused = save();
  ASSERT_THAT(refused[0], FailsWith("UNSUPPORTED_BY_FORMAT"));
  EXPECT_EQ(refused[0].error().code, ErrorCode::kUnsupported);
  for (const char* part : {"9 of the keys", "c32: Paddle has no complex32", "e8: ", "f4: ",
                           "lr: no tensor", "none.at_all: a tensor without elements",
                           "rng: a value per rank", "u16: Paddle has no uint16"}) {
    EXPECT_THAT(refused[1].error().message, HasSubstr(part));
  }
  EXPECT_TRUE(Names(*storage).empty());

  options.skip_unsupported = true;
  const auto saved = save();
  ASSERT_OK(saved[0]);
  EXPECT_EQ(saved[0]->skipped.size(), 9U);
  EXPECT_EQ(saved[0]->skipped, saved[1]->skipped);
  EXPECT_EQ(saved[0]->skipped[0],
            "UnpackBigParamInfor@@: a name that Paddle gives a meaning of "
            "its own");
  const Catalog catalog = IndexOf(*storage);
  ASSERT_EQ(catalog.num_tensors(), 1U);
  EXPECT_EQ(catalog.key(0), "w");
  EXPECT_EQ(catalog.num_objects(), 0U);
  const Bytes metadata = ReadObject(*storage, kMetadata);
  EXPECT_NE(AsText(metadata).find("at_all"), std::string_view::npos)
      << "the key of an empty tensor stays in the flat mapping";
  EXPECT_EQ(AsText(metadata).find("u16"), std::string_view::npos);
}

TEST(SavePaddleTest, LongListsAreCut) {
  StateDict state;
  for (int i = 0; i < 25; ++i) {
    state[fmt::format("k{:02}", i)] = i;
  }
  const auto storage = NewMemoryStorage();
  const auto refused = SaveOne(state, *storage, PaddleOptions());
  ASSERT_THAT(refused, FailsWith("UNSUPPORTED_BY_FORMAT"));
  EXPECT_THAT(refused.error().message, HasSubstr("25 of the keys"));
  EXPECT_THAT(refused.error().message, HasSubstr("k19: no tensor; ..."));
  EXPECT_EQ(refused.error().message.find("k20"), std::string::npos);
}

TEST(SavePaddleTest, OptionsAreCheckedAlike) {
  const auto storage = NewMemoryStorage();
  StateDict state;
  state["w"] = FloatTensor({1, 2});
  SaveOptions options;
  for (const char* format : {"", "torch", "Paddle", "paddle "}) {
    options.format = format;
    EXPECT_THAT(SaveOne(state, *storage, options), FailsWith("BAD_FORMAT")) << format;
  }
  for (const char* format : {"paddle:", "paddle:4.0", "paddle:x"}) {
    options.format = format;
    EXPECT_THAT(SaveOne(state, *storage, options), FailsWith("BAD_RELEASE")) << format;
  }
  const auto differ = OnRanks(2, [&](ProcessGroup& group) {
    SaveOptions own;
    own.format = group.rank() == 0 ? "paddle" : "native";
    return Save(state, *storage, group, own);
  });
  ExpectOneOutcome(differ);
  EXPECT_THAT(differ[0], FailsWith("OPTIONS_MISMATCH"));
  EXPECT_TRUE(Names(*storage).empty());
}

TEST(SavePaddleTest, EveryRankHasItsOwnDisk) {
  std::vector<std::unique_ptr<Storage>> disks;
  for (int i = 0; i < 3; ++i) {
    disks.push_back(NewMemoryStorage(fmt::format("disk{}", i)));
  }
  const auto save = [&](std::uint64_t salt, int coordinator) {
    SaveOptions options = PaddleOptions(true);
    options.coordinator_rank = coordinator;
    const auto results = OnRanks(3, [&](ProcessGroup& group) {
      return Save(StateOf(salt, group.rank(), 3), *disks[static_cast<std::size_t>(group.rank())],
                  group, options);
    });
    ExpectOneOutcome(results);
    ASSERT_OK(results[0]);
  };
  save(100, 0);
  EXPECT_THAT(Names(*disks[0]), ElementsAre(kMetadata, kIndex, "0_0.distcp", "0_p1_0.distcp"));
  EXPECT_THAT(Names(*disks[2]), ElementsAre("2_0.distcp", "2_p1_0.distcp"));
  save(200, 2);
  EXPECT_THAT(Names(*disks[0]), ElementsAre("0_a1_0.distcp", "0_p1_a1_0.distcp"));
  EXPECT_THAT(Names(*disks[1]), ElementsAre("1_a1_0.distcp", "1_p1_a1_0.distcp"));
  EXPECT_THAT(Names(*disks[2]),
              ElementsAre(kMetadata, kIndex, "2_a1_0.distcp", "2_p1_a1_0.distcp"));
}

TEST(SavePaddleTest, OfTwoWritersOneWinsOrBothDoWhole) {
  for (const bool overwrite : {false, true}) {
    for (int round = 0; round < 20; ++round) {
      const auto storage = NewMemoryStorage();
      if (overwrite) {
        ASSERT_OK(SaveOn(1, *storage, 50)[0]);
      }
      std::vector<std::optional<Result<SaveResult>>> results(2);
      std::vector<std::thread> threads;
      for (std::size_t i = 0; i < 2; ++i) {
        threads.emplace_back([&, i] {
          results[i].emplace(
              SaveOne(StateOf(100 * (i + 1), 0, 1), *storage, PaddleOptions(overwrite)));
        });
      }
      for (std::thread& thread : threads) {
        thread.join();
      }
      int won = 0;
      for (const auto& result : results) {
        won += result->ok() ? 1 : 0;
        if (!result->ok()) {
          const std::string& reason = result->error().reason;
          EXPECT_TRUE(!overwrite && (reason == "LOST_RACE" || reason == "SNAPSHOT_EXISTS"))
              << result->error().ToString();
        }
      }
      EXPECT_TRUE(overwrite ? won == 2 : won == 1) << won;
      // An index that was exchanged between does not fit, and readers ignore it.
      const auto index = ReadIndex(*storage, {"paddle", kMetadata, 0});
      ASSERT_OK(index);
      EXPECT_TRUE(overwrite || index->catalog.has_value());
      if (index->catalog) {
        const std::uint64_t attempt = index->catalog->info().attempt;
        const bool first = results[0]->ok() && (*results[0])->attempt == attempt;
        CheckAll(*storage, first ? 100 : 200);
      }
    }
  }
}

/// One fault: what happens at the k-th operation of one rank.
struct Fault {
  FaultAction action = FaultAction::kNone;
  int rank = 0;
  std::uint64_t at = 0;
};

class SavePaddleFaultTest : public ::testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  void SetUp() override {
    std::tie(ranks_, overwrite_) = GetParam();
    const auto base = Before();
    ASSERT_OK(SaveOn(ranks_, *base, 200, PaddleOptions(overwrite_))[0]);
    after_ = ReadAll(*base);
  }

  std::unique_ptr<Storage> Before() const {
    auto base = NewMemoryStorage();
    if (overwrite_) {
      EXPECT_OK(SaveOn(ranks_, *base, 100)[0]);
    }
    return base;
  }

  /// All files of a checkpoint, the index apart, are in `now`.
  static void ExpectWhole(const Contents& now, const Contents& checkpoint) {
    for (const auto& [name, bytes] : checkpoint) {
      if (name != kIndex) {
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
      return Save(StateOf(200, rank, ranks_), faulty, group, PaddleOptions(overwrite_));
    });
    ExpectOneOutcome(results);
    Check(*base, results,
          fault.action == FaultAction::kFail ||
              (fault.action == FaultAction::kFailAfter && hit.load() != StorageOp::kCreate));
    const auto again = SaveOn(ranks_, *base, 300, PaddleOptions(true));
    EXPECT_OK(again[0]);
    CheckAll(*base, 300);
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
    const auto metadata = now.find(kMetadata);
    const bool is_new = metadata != now.end() && metadata->second == after_.at(kMetadata);
    const bool is_old = overwrite_
                            ? metadata != now.end() && metadata->second == before_.at(kMetadata)
                            : metadata == now.end();
    EXPECT_TRUE(is_new || is_old) << "the metadata is neither the old nor the new one";
    ExpectWhole(now, is_new ? after_ : before_);
    if (any_ok) {
      EXPECT_TRUE(is_new);
      CheckAll(base, 200);
    } else if (!unknown) {
      EXPECT_TRUE(is_old) << "every rank said that it failed, but the checkpoint is there";
      if (cleans) {
        EXPECT_EQ(now, before_) << "the failed save left files behind";
      }
    }
  }

  int ranks_ = 1;
  bool overwrite_ = false;
  Contents before_;
  Contents after_;
};

TEST_P(SavePaddleFaultTest, OldOrNewAtEveryOperation) {
  for (const FaultAction action :
       {FaultAction::kFail, FaultAction::kFailAfter, FaultAction::kCrash}) {
    for (int rank = 0; rank < ranks_; ++rank) {
      std::uint64_t k = 0;
      while (RunOne({action, rank, k}) && !HasFailure()) {
        ++k;
      }
      EXPECT_GE(k, rank == 0 ? 16U : 8U) << "too few operations to be true";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, SavePaddleFaultTest,
                         ::testing::Combine(::testing::Values(1, 2), ::testing::Bool()),
                         [](const auto& modes) {
                           return fmt::format("{}Ranks{}", std::get<0>(modes.param),
                                              std::get<1>(modes.param) ? "Overwrite" : "New");
                         });

}  // namespace
}  // namespace reshard::testing
