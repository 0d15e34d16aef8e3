// Saving in Paddle's format: what is written and what is refused. Crashes:
// save_foreign_fault_test.cc.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "reshard/engine/verify.h"
#include "reshard/format/paddle/metadata.h"
#include "reshard/format/paddle/names.h"
#include "tests/support/foreign_saves.h"
#include "tests/support/golden_file.h"

namespace reshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kMetadata = paddle::MetadataName(0);
const std::string kIndex = paddle::IndexName(0);
const ForeignRef kRef = {"paddle", kMetadata, 0};

SaveOptions PaddleOptions(bool overwrite = false) { return ForeignOptionsOf("paddle", overwrite); }

TEST(SavePaddleTest, EveryByteIsWhereTheIndexSays) {
  for (const int ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(ranks);
    const auto storage = NewMemoryStorage();
    const auto results = SaveOn(ranks, *storage, 100, PaddleOptions());
    ASSERT_OK(results);
    EXPECT_EQ(results->unique_id, 0U);
    EXPECT_EQ(results->attempt, 0U);
    EXPECT_EQ(results->file_name, "0_0.distcp");
    CheckAll(*storage, kRef, 100);
    const Catalog catalog = IndexOf(*storage, kRef);
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
  ASSERT_OK(SaveOn(3, *storage, 100, PaddleOptions()));
  const auto again = SaveOn(1, *storage, 200, PaddleOptions(true));
  ASSERT_OK(again);
  EXPECT_EQ(again->attempt, 1U);
  EXPECT_THAT(Names(*storage), ElementsAre(kMetadata, kIndex, "0_a1_0.distcp", "0_p1_a1_0.distcp"));
  CheckAll(*storage, kRef, 200);
}

TEST(SavePaddleTest, ASecondSaveIsRefusedUntouched) {
  const auto storage = NewMemoryStorage();
  ASSERT_OK(SaveOn(1, *storage, 100, PaddleOptions()));
  const Contents before = ReadAll(*storage);
  EXPECT_THAT(SaveOn(2, *storage, 200, PaddleOptions()), FailsWith("SNAPSHOT_EXISTS"));
  SaveOptions other = PaddleOptions();
  other.unique_id = 1;
  EXPECT_THAT(SaveOn(2, *storage, 200, other), FailsWith("ONE_ID_PER_DIRECTORY"));
  other.unique_id = 10;
  other.overwrite = true;
  EXPECT_THAT(SaveOn(2, *storage, 200, other), FailsWith("ID_CLASH"));
  SaveOptions native;
  EXPECT_THAT(SaveOn(2, *storage, 200, native), FailsWith("FOREIGN_DIRECTORY"));
  EXPECT_EQ(ReadAll(*storage), before);
  other.unique_id = 1;
  ASSERT_OK(SaveOn(1, *storage, 300, other));
  CheckAll(*storage, kRef, 100);  // beside it, nothing deleted
}

TEST(SavePaddleTest, OtherFormatsDirectoriesAreRefused) {
  for (const char* name : {"3.reshard", "0_0.a1.safetensors", "x.metadata", "__0_0.distcp",
                           "model.safetensors", "model.safetensors.index.json"}) {
    const auto storage = NewMemoryStorage();
    PutObject(*storage, name, AsBytes("x"));
    EXPECT_THAT(SaveOn(1, *storage, 1, PaddleOptions()), FailsWith("FOREIGN_DIRECTORY")) << name;
    EXPECT_THAT(Names(*storage), ElementsAre(name));
  }
}

TEST(SavePaddleTest, StraysOfACrashDoNotDisturb) {
  const auto storage = NewMemoryStorage();
  for (const char* name : {"0_0.distcp", "0_a3_0.distcp", "0.metadata.a1.tmp", "7_p2_0.distcp",
                           "0.metadata.lock", "0.metadata.reshard"}) {
    PutObject(*storage, name, AsBytes("stray"));
  }
  const auto saved = SaveOn(2, *storage, 100, PaddleOptions());
  ASSERT_OK(saved);
  EXPECT_EQ(saved->attempt, 4U);
  CheckAll(*storage, kRef, 100);
  EXPECT_EQ(AsText(ReadObject(*storage, "0_0.distcp")), "stray");
  EXPECT_EQ(AsText(ReadObject(*storage, "0_a3_0.distcp")), "stray");
}

TEST(SavePaddleTest, MetadataOfUnknownFilesDeletesNothing) {
  const auto storage = NewMemoryStorage();
  PutObject(*storage, kMetadata, AsBytes("no pickle"));
  PutObject(*storage, "0_0.distcp", AsBytes("theirs"));
  const auto saved = SaveOn(1, *storage, 100, PaddleOptions(true));
  ASSERT_OK(saved);
  EXPECT_EQ(saved->attempt, 1U);
  CheckAll(*storage, kRef, 100);
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
  const Catalog catalog = IndexOf(*storage, kRef);
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
  for (const char* format : {"", "pytorch", "Paddle", "paddle "}) {
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
        ASSERT_OK(SaveOn(1, *storage, 50, PaddleOptions()));
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
      const auto index = ReadIndex(*storage, kRef);
      ASSERT_OK(index);
      EXPECT_TRUE(overwrite || index->catalog.has_value());
      if (index->catalog) {
        const std::uint64_t attempt = index->catalog->info().attempt;
        const bool first = results[0]->ok() && (*results[0])->attempt == attempt;
        CheckAll(*storage, kRef, first ? 100 : 200);
      }
    }
  }
}

TEST(SavePaddleTest, LoadsWithAndWithoutItsIndex) {
  for (const int ranks : {1, 3}) {
    for (const char* format : {"paddle", "paddle:2.6"}) {
      SCOPED_TRACE(fmt::format("{} ranks, {}", ranks, format));
      const auto storage = NewMemoryStorage();
      SaveOptions options = PaddleOptions();
      options.format = format;
      ASSERT_OK(SaveOn(ranks, *storage, 100, options));
      ASSERT_OK_AND_ASSIGN(const VerifyReport verified, Verify(*storage));
      ASSERT_EQ(verified.snapshots.size(), 1U);
      EXPECT_TRUE(verified.snapshots[0].faults.empty());
      EXPECT_FALSE(verified.snapshots[0].structure_only);
      ExpectLoads(2, *storage, 100);
      ASSERT_OK(storage->Remove(kIndex));
      ExpectLoads(4, *storage, 100);
    }
  }
}

TEST(SavePaddleTest, ThePicklesSayWhatTheIndexSays) {
  const auto storage = NewMemoryStorage();
  ASSERT_OK(SaveOn(3, *storage, 100, PaddleOptions()));
  const Catalog index = IndexOf(*storage, kRef);
  ForeignOptions options;
  options.use_index = false;
  ASSERT_OK_AND_ASSIGN(const ForeignCheckpoint read, OpenForeign(*storage, kRef, options));
  EXPECT_TRUE(read.content.faults.empty());
  const Catalog& catalog = read.content.catalog;
  EXPECT_EQ(catalog.columns().keys, index.columns().keys);
  EXPECT_EQ(catalog.columns().shapes, index.columns().shapes);
  EXPECT_EQ(catalog.columns().dtypes, index.columns().dtypes);
  EXPECT_EQ(catalog.columns().paths, index.columns().paths);
  EXPECT_EQ(catalog.columns().chunk_files, index.columns().chunk_files);
  EXPECT_EQ(catalog.columns().chunk_offsets, index.columns().chunk_offsets);
  EXPECT_EQ(catalog.columns().chunk_boxes, index.columns().chunk_boxes);
}

TEST(SavePaddleTest, AnOverwriteWithoutAnIndexFindsTheOldFiles) {
  const auto storage = NewMemoryStorage();
  ASSERT_OK(SaveOn(3, *storage, 100, PaddleOptions()));
  ASSERT_OK(storage->Remove(kIndex));
  ASSERT_OK(SaveOn(1, *storage, 200, PaddleOptions(true)));
  EXPECT_THAT(Names(*storage), ElementsAre(kMetadata, kIndex, "0_a1_0.distcp", "0_p1_a1_0.distcp"));
}

/// What tests/golden/paddle_handmade holds, as its README says.
StateDict GoldenState(int rank) {
  StateDict state;
  const auto cut = [rank](const Shape& shape, std::size_t axis) {
    return std::vector<Box>{CutBox(shape, axis, rank, 2)};
  };
  state["model"]["row"] = PatternTensor(DType::kFloat32, {4, 3}, cut({4, 3}, 0), 1);
  state["model"]["col"] = PatternTensor(DType::kFloat64, {2, 6}, cut({2, 6}, 1), 2);
  state["model"]["bf16"] = PatternTensor(DType::kBfloat16, {6, 2}, cut({6, 2}, 0), 3);
  state["model"]["f8"] = PatternTensor(DType::kFloat8E5m2, {5, 2}, cut({5, 2}, 0), 4);
  state["model"]["scalar"] = PatternTensor(DType::kInt64, {}, {WholeBox(Shape{})}, 5);
  state["optimizer"]["master_weights"]["linear_0.w_0"] =
      PatternTensor(DType::kFloat32, {2, 3}, {WholeBox(Shape{2, 3})}, 6);
  return state;
}

TEST(SavePaddleTest, BytesAreThoseOfTheGoldenFiles) {
  for (const bool legacy : {false, true}) {
    const auto storage = NewMemoryStorage();
    SaveOptions options = PaddleOptions();
    options.format = legacy ? "paddle:3.1" : "paddle:3.3";
    const auto saved = OnRanks(2, [&](ProcessGroup& group) {
      return Save(GoldenState(group.rank()), *storage, group, options);
    });
    ASSERT_OK(saved[0]);
    ASSERT_OK(storage->Remove(kIndex));  // it has times
    for (const std::string& name : Names(*storage)) {
      const Bytes bytes = ReadObject(*storage, name);
      const std::string golden =
          name == kMetadata ? (legacy ? "legacy.metadata" : "flex.metadata") : name;
      ExpectGolden(fmt::format("{}/tests/golden/paddle_handmade/{}", RESHARD_SOURCE_DIR, golden),
                   bytes);
    }
    EXPECT_EQ(Names(*storage).size(), 3U);
  }
}

}  // namespace
}  // namespace reshard::testing
