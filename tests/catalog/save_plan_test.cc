#include "reshard/catalog/save_plan.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "tests/catalog/plan_ranks.h"
#include "tests/support/random_boxes.h"
#include "tests/support/status_matchers.h"

namespace reshard {
namespace {

using ::reshard::testing::ChunkTexts;
using ::reshard::testing::FailsWith;
using ::reshard::testing::ForEachElement;
using ::reshard::testing::PlanRanks;
using ::reshard::testing::RandomTiling;
using ::reshard::testing::TotalBytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint64_t kMiB = 1 << 20;

double Imbalance(const SavePlan& plan) {
  const std::uint64_t most =
      *std::max_element(plan.payload_bytes.begin(), plan.payload_bytes.end());
  return static_cast<double>(most) * static_cast<double>(plan.payload_bytes.size()) /
         static_cast<double>(TotalBytes(plan));
}

TEST(PlanSaveTest, AReplicatedTensorIsStoredOnce) {
  PlanRanks ranks(2);
  ranks.AddReplicated("w", DType::kFloat32, {4, 4});
  const auto plan = ranks.Plan();
  ASSERT_OK(plan);
  EXPECT_THAT(ChunkTexts(*plan), ElementsAre("w 0 [0:4, 0:4]"));
  EXPECT_THAT(plan->payload_bytes, ElementsAre(64, 0));
}

TEST(PlanSaveTest, AShardedTensorIsStoredByEveryRank) {
  PlanRanks ranks(2);
  ranks.Add(0, "w", DType::kFloat32, {4, 4}, {{0, 0}, {4, 2}});
  ranks.Add(1, "w", DType::kFloat32, {4, 4}, {{0, 2}, {4, 2}});
  const auto plan = ranks.Plan();
  ASSERT_OK(plan);
  EXPECT_THAT(ChunkTexts(*plan), ElementsAre("w 0 [0:4, 0:2]", "w 1 [0:4, 2:4]"));
}

TEST(PlanSaveTest, ReplicasGoToTheLeastLoadedHolderByBytes) {
  PlanRanks ranks(2);
  ranks.Add(0, "big", DType::kUint8, {200}, {{0}, {200}});
  ranks.AddReplicated("a", DType::kUint8, {100});
  ranks.AddReplicated("b", DType::kUint8, {60});
  ranks.AddReplicated("c", DType::kUint8, {50});
  const auto plan = ranks.Plan();
  ASSERT_OK(plan);
  EXPECT_THAT(plan->payload_bytes, ElementsAre(200, 210));
}

TEST(PlanSaveTest, HybridShardingIsBalancedAndWrittenOnce) {
  // Two replicas of four shards each, tensors of uneven sizes.
  PlanRanks ranks(8);
  std::mt19937_64 random(5);
  std::uint64_t bytes = 0;
  for (int t = 0; t < 40; ++t) {
    const Shape shape = {4 * (1 + random() % 700), 1 + random() % 500};
    bytes += NumBytes(shape, DType::kFloat32);
    for (std::uint64_t rank = 0; rank < 8; ++rank) {
      const std::uint64_t rows = shape[0] / 4;
      ranks.Add(rank, fmt::format("t{:02}", t), DType::kFloat32, shape,
                {{rank % 4 * rows, 0}, {rows, shape[1]}});
    }
  }
  const auto plan = ranks.Plan();
  ASSERT_OK(plan);
  EXPECT_EQ(TotalBytes(*plan), bytes);
  EXPECT_LE(Imbalance(*plan), 1.1);
}

TEST(PlanSaveTest, LargeReplicasAreCutOverTheirHolders) {
  PlanRanks ranks(4);
  ranks.AddReplicated("w", DType::kFloat32, {1024, 1024});  // 4 MiB
  const auto plan = ranks.Plan();
  ASSERT_OK(plan);
  EXPECT_THAT(ChunkTexts(*plan), ElementsAre("w 0 [0:256, 0:1024]", "w 1 [256:512, 0:1024]",
                                             "w 2 [512:768, 0:1024]", "w 3 [768:1024, 0:1024]"));
  EXPECT_THAT(plan->payload_bytes, ElementsAre(kMiB, kMiB, kMiB, kMiB));
}

TEST(PlanSaveTest, PiecesAreNeverSmallerThanTheLimit) {
  PlanRanks ranks(4);
  ranks.AddReplicated("w", DType::kUint8, {5 * kMiB / 2});
  const auto plan = ranks.Plan();
  ASSERT_OK(plan);
  EXPECT_EQ(plan->chunks.size(), 2U);
  const auto fine = ranks.Plan({.min_cut_bytes = 0});  // means 1
  ASSERT_OK(fine);
  EXPECT_EQ(fine->chunks.size(), 4U);
}

TEST(PlanSaveTest, CutsALaterAxisWhenTheFirstIsShort) {
  PlanRanks ranks(3);
  ranks.AddReplicated("w", DType::kUint8, {2, 30});
  const auto plan = ranks.Plan({.min_cut_bytes = 1});
  ASSERT_OK(plan);
  EXPECT_THAT(ChunkTexts(*plan),
              ElementsAre("w 0 [0:2, 0:10]", "w 1 [0:2, 10:20]", "w 2 [0:2, 20:30]"));
  PlanRanks narrow(8);
  narrow.AddReplicated("w", DType::kUint8, {2, 3});  // no axis is long enough: fewer pieces
  const auto few = narrow.Plan({.min_cut_bytes = 1});
  ASSERT_OK(few);
  EXPECT_THAT(ChunkTexts(*few), ElementsAre("w 0 [0:2, 0:1]", "w 1 [0:2, 1:2]", "w 2 [0:2, 2:3]"));
}

TEST(PlanSaveTest, SubByteTensorsAreCutOnUnits) {
  for (const DType dtype : {DType::kFloat4E2m1, DType::kFloat6E2m3}) {
    const std::uint64_t unit = Info(dtype).unit_elements;
    PlanRanks ranks(3);
    ranks.AddReplicated("w", dtype, {5 * unit});
    const auto plan = ranks.Plan({.min_cut_bytes = 1});
    ASSERT_OK(plan);
    ASSERT_EQ(plan->chunks.size(), 3U);
    for (const PlannedChunk& chunk : plan->chunks) {
      EXPECT_OK(CheckBox(plan->box(chunk), Shape{5 * unit}, dtype));
    }
  }
}

TEST(PlanSaveTest, UnevenAndEmptyShards) {
  // 5 rows over 4 ranks: 2, 2, 1, 0.
  PlanRanks ranks(4);
  const std::uint64_t begin[] = {0, 2, 4, 5, 5};
  for (std::size_t rank = 0; rank < 4; ++rank) {
    ranks.Add(rank, "w", DType::kInt16, {5, 3},
              {{begin[rank], 0}, {begin[rank + 1] - begin[rank], 3}});
  }
  ranks.AddReplicated("none", DType::kInt16, {0, 3});
  const auto plan = ranks.Plan();
  ASSERT_OK(plan);
  EXPECT_THAT(ChunkTexts(*plan), ElementsAre("w 0 [0:2, 0:3]", "w 1 [2:4, 0:3]", "w 2 [4:5, 0:3]"));
  ASSERT_EQ(plan->tensors.size(), 2U);
  EXPECT_EQ(plan->tensors[0].key, "none");
  EXPECT_EQ(plan->tensors[0].num_chunks, 0U);
}

TEST(PlanSaveTest, TensorsAbsentOnSomeRanks) {
  PlanRanks ranks(3);
  ranks.Add(2, "only2", DType::kInt8, {3}, {{0}, {3}});
  ranks.states[0]["both"] = Tensor::Absent(DType::kInt8, {2});
  ranks.Add(1, "both", DType::kInt8, {2}, {{0}, {2}});
  const auto plan = ranks.Plan();
  ASSERT_OK(plan);
  EXPECT_THAT(ChunkTexts(*plan), ElementsAre("both 1 [0:2]", "only2 2 [0:3]"));
}

TEST(PlanSaveTest, ChunksAreSortedByElementSizeInTheFile) {
  PlanRanks ranks(1);
  ranks.AddReplicated("a", DType::kUint8, {3});
  ranks.AddReplicated("b", DType::kFloat32, {1});
  ranks.AddReplicated("c", DType::kComplex128, {1});
  ranks.AddReplicated("d", DType::kFloat6E2m3, {4});
  ranks.AddReplicated("e", DType::kInt16, {1});
  ranks.AddReplicated("f", DType::kFloat32, {});
  const auto plan = ranks.Plan();
  ASSERT_OK(plan);
  std::string order;
  for (const std::uint32_t chunk : plan->by_writer[0]) {
    order += plan->tensors[plan->chunks[chunk].tensor].key;
  }
  EXPECT_EQ(order, "cbfead");
}

/// Gives `rank` the same memory under both keys.
void AddShared(PlanRanks& ranks, std::size_t rank, const std::string& a, const std::string& b) {
  ranks.Add(rank, a, DType::kFloat32, {4}, {{0}, {4}});
  Value tensor = *ranks.states[rank].Find(a);
  ranks.states[rank][b] = std::move(tensor);
}

TEST(PlanSaveTest, AnAliasOnAllHoldersIsStoredOnce) {
  PlanRanks ranks(3);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    AddShared(ranks, rank, "a", "b");
  }
  ranks.states[2]["b"] = Tensor::Absent(DType::kFloat32, {4});  // holds nothing: no objection
  const auto plan = ranks.Plan();
  ASSERT_OK(plan);
  EXPECT_THAT(ChunkTexts(*plan), ElementsAre("a 0 [0:4]"));
  EXPECT_EQ(plan->tensors[0].alias_of, 0U);
  EXPECT_EQ(plan->tensors[1].alias_of, 0U);
}

TEST(PlanSaveTest, AnAliasOnSomeHoldersIsStoredTwice) {
  for (const std::size_t shared : {0, 1}) {
    PlanRanks ranks(2);
    AddShared(ranks, shared, "a", "b");
    ranks.Add(1 - shared, "a", DType::kFloat32, {4}, {{0}, {4}});
    ranks.Add(1 - shared, "b", DType::kFloat32, {4}, {{0}, {4}});
    const auto plan = ranks.Plan();
    ASSERT_OK(plan);
    EXPECT_EQ(plan->chunks.size(), 2U);
    EXPECT_EQ(plan->tensors[1].alias_of, 1U);
  }
  PlanRanks ranks(2);  // rank 1 holds only one of the two
  AddShared(ranks, 0, "a", "b");
  ranks.Add(1, "a", DType::kFloat32, {4}, {{0}, {4}});
  const auto plan = ranks.Plan();
  ASSERT_OK(plan);
  EXPECT_EQ(plan->chunks.size(), 2U);
}

struct Disagreement {
  std::string reason;
  std::vector<std::string> parts;  ///< Of the message.
  PlanRanks ranks{2};
};

TEST(PlanSaveTest, DisagreementsNameKeyAndRanks) {
  std::vector<Disagreement> rows(6);
  rows[0] = {"DTYPE_MISMATCH", {"'w'", "float32 on rank 10", "int32 on rank 11"}};
  rows[0].ranks.Add(0, "w", DType::kFloat32, {4}, {{0}, {2}});
  rows[0].ranks.Add(1, "w", DType::kInt32, {4}, {{2}, {2}});
  rows[1] = {"SHAPE_MISMATCH", {"'w'", "(4) on rank 10", "(2) on rank 11"}};
  rows[1].ranks.Add(0, "w", DType::kInt8, {4}, {{0}, {2}});
  rows[1].ranks.Add(1, "w", DType::kInt8, {2}, {{0}, {2}});
  rows[2] = {"PATH_MISMATCH", {"ranks 10 and 11", "'a.b'"}};
  rows[2].ranks.Add(0, "a.b", DType::kInt8, {1}, {{0}, {1}});
  rows[2].ranks.states[1]["a"]["b"] = Value(*rows[2].ranks.states[0].Find("a.b"));
  rows[3] = {"OVERLAP", {"'w' (4)", "[0:3] of rank 10 and [2:4] of rank 11"}};
  rows[3].ranks.Add(0, "w", DType::kInt8, {4}, {{0}, {3}});
  rows[3].ranks.Add(1, "w", DType::kInt8, {4}, {{2}, {2}});
  rows[4] = {"COVERAGE", {"'w' (4)", "2 boxes", "3 of 4 elements"}};
  rows[4].ranks.Add(0, "w", DType::kInt8, {4}, {{0}, {2}});
  rows[4].ranks.Add(1, "w", DType::kInt8, {4}, {{3}, {1}});
  rows[5] = {"COVERAGE", {"'w' (4)", "0 of 4 elements"}};
  rows[5].ranks.states[1]["w"] = Tensor::Absent(DType::kInt8, {4});
  for (Disagreement& row : rows) {
    const auto plan = row.ranks.Plan();
    ASSERT_THAT(plan, FailsWith(row.reason));
    EXPECT_EQ(plan.error().code, ErrorCode::kInvalidArgument);
    for (const std::string& part : row.parts) {
      EXPECT_THAT(plan.error().message, HasSubstr(part));
    }
  }
}

TEST(PlanSaveTest, DamagedMessagesAreErrors) {
  PlanRanks ranks(1);
  ranks.AddReplicated("w", DType::kInt8, {2, 3});
  ASSERT_OK(ranks.Plan());
  const Bytes good = EncodeTensorDescriptions(ranks.described[0].tensors);
  for (std::size_t size = 0; size < good.size(); ++size) {
    const std::vector<ByteSpan> cut = {ByteSpan(good).first(size)};
    EXPECT_THAT(PlanSave(cut, ranks.global_ranks), FailsWith("BAD_MESSAGE")) << size;
  }
}

/// A random state over random ranks: tilings with replicas, aliases, absent tensors.
PlanRanks RandomRanks(std::mt19937_64& random) {
  PlanRanks ranks(1 + random() % 6);
  for (std::uint64_t t = random() % 8; t > 0; --t) {
    const DType dtype = AllDTypes()[random() % AllDTypes().size()].dtype;
    const std::uint64_t unit = Info(dtype).unit_elements;
    Shape shape(unit > 1 ? 1 + random() % 3 : random() % 4);
    std::generate(shape.begin(), shape.end(), [&] { return random() % 7; });
    if (!shape.empty()) {
      shape.back() *= unit;
    }
    const std::string key = fmt::format("t{}", t);
    for (const Box& box : RandomTiling(WholeBox(shape), 3, unit, random)) {
      const std::uint64_t holders = random() % 3 == 0 ? 1 : 1 + random() % ranks.states.size();
      const std::uint64_t first = random() % ranks.states.size();
      for (std::uint64_t i = 0; i < holders; ++i) {
        ranks.Add((first + i) % ranks.states.size(), key, dtype, shape, box);
      }
    }
    const bool tied = random() % 2 == 0;
    const bool on_all = random() % 4 != 0;
    for (Value& state : ranks.states) {
      const Value* leaf = state.Find(key);
      if (leaf != nullptr && tied) {
        Tensor twin = *leaf->get_if<Tensor>();
        if (!on_all && random() % 2 == 0 && !twin.shards.empty()) {
          twin.shards[0].view.data += 1 << 20;  // memory of its own here
        }
        state[key + ".tied"] = std::move(twin);
      } else if (leaf == nullptr && random() % 2 == 0) {
        state[key] = Tensor::Absent(dtype, shape);
      }
    }
  }
  return ranks;
}

/// Every element of every tensor written by exactly one rank, which holds it.
void CheckElements(const SavePlan& plan, const PlanRanks& ranks) {
  for (std::uint32_t t = 0; t < plan.tensors.size(); ++t) {
    const PlannedTensor& tensor = plan.tensors[t];
    if (tensor.alias_of != t) {
      ASSERT_EQ(tensor.num_chunks, 0U);
      ASSERT_EQ(plan.tensors[tensor.alias_of].alias_of, tensor.alias_of);
      ASSERT_EQ(plan.tensors[tensor.alias_of].shape, tensor.shape);
      continue;
    }
    std::vector<int> written(NumElements(tensor.shape), 0);
    for (std::uint64_t c = tensor.first_chunk; c < tensor.first_chunk + tensor.num_chunks; ++c) {
      const PlannedChunk& chunk = plan.chunks[c];
      ASSERT_EQ(chunk.tensor, t);
      ForEachElement(plan.box(chunk), tensor.shape, [&](std::uint64_t e) { ++written[e]; });
      const TensorDescription& held = ranks.described[chunk.writer].tensors[chunk.writer_tensor];
      ASSERT_EQ(held.key, tensor.key);
      ASSERT_TRUE(std::any_of(held.boxes.begin(), held.boxes.end(),
                              [&](const Box& b) { return Contains(b, plan.box(chunk)); }));
      ASSERT_OK(CheckBox(plan.box(chunk), tensor.shape, tensor.dtype));
    }
    ASSERT_TRUE(std::all_of(written.begin(), written.end(), [](int n) { return n == 1; }));
  }
}

/// Offsets without gaps, aligned to the unit, and the rank's own copy of its plan.
void CheckFiles(const SavePlan& plan, const PlanRanks& ranks) {
  std::set<std::uint32_t> seen;
  for (std::uint32_t writer = 0; writer < plan.by_writer.size(); ++writer) {
    const auto own = DecodeRankPlan(plan.EncodeFor(writer), ranks.described[writer].tensors);
    ASSERT_OK(own);
    ASSERT_EQ(own->payload_bytes, plan.payload_bytes[writer]);
    ASSERT_EQ(own->chunks.size(), plan.by_writer[writer].size());
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < own->chunks.size(); ++i) {
      const std::uint32_t number = plan.by_writer[writer][i];
      const PlannedChunk& chunk = plan.chunks[number];
      const DType dtype = plan.tensors[chunk.tensor].dtype;
      ASSERT_TRUE(seen.insert(number).second);
      ASSERT_EQ(chunk.writer, writer);
      ASSERT_EQ(chunk.payload_offset, at);
      const std::uint32_t unit = Info(dtype).unit_bytes;
      ASSERT_EQ(at % (unit == 3 ? 1 : unit), 0U);
      at += NumBytes(plan.box(chunk), dtype);
      ASSERT_EQ(own->chunks[i].payload_offset, chunk.payload_offset);
      ASSERT_EQ(own->chunks[i].tensor, chunk.writer_tensor);
      ASSERT_EQ(BoxView(own->chunks[i].box), plan.box(chunk));
    }
    ASSERT_EQ(at, plan.payload_bytes[writer]);
  }
  ASSERT_EQ(seen.size(), plan.chunks.size());
}

TEST(PlanSaveTest, RandomPlansWriteEveryElementOnce) {
  std::size_t aliases = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    PlanRanks ranks = RandomRanks(random);
    const SavePlanOptions options = {.min_cut_bytes = 1 + random() % 20};
    const auto plan = ranks.Plan(options);
    ASSERT_OK(plan);
    ASSERT_NO_FATAL_FAILURE(CheckElements(*plan, ranks));
    ASSERT_NO_FATAL_FAILURE(CheckFiles(*plan, ranks));
    for (std::uint32_t t = 0; t < plan->tensors.size(); ++t) {
      aliases += plan->tensors[t].alias_of != t ? 1 : 0;
    }
    const auto again = ranks.Plan(options);
    ASSERT_OK(again);
    for (std::uint32_t writer = 0; writer < ranks.states.size(); ++writer) {
      ASSERT_EQ(again->EncodeFor(writer), plan->EncodeFor(writer));
    }
  }
  EXPECT_GT(aliases, 50U);
}

TEST(RankPlanTest, EveryCutIsAnError) {
  PlanRanks ranks(1);
  ranks.AddReplicated("w", DType::kInt8, {2, 3});
  const auto plan = ranks.Plan();
  ASSERT_OK(plan);
  const Bytes bytes = plan->EncodeFor(0);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THAT(DecodeRankPlan(ByteSpan(bytes).first(size), ranks.described[0].tensors),
                FailsWith("BAD_MESSAGE"));
  }
  EXPECT_THAT(DecodeRankPlan(bytes, {}), FailsWith("BAD_MESSAGE"));
}

}  // namespace
}  // namespace reshard
