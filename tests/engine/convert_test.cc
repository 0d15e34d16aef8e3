#include "reshard/engine/convert.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <tuple>

#include "reshard/engine/checkpoint.h"
#include "reshard/engine/convert_layout.h"
#include "reshard/engine/convert_state.h"
#include "reshard/engine/snapshot.h"
#include "reshard/engine/tensor_reader.h"
#include "reshard/engine/verify.h"
#include "reshard/engine/write_turns.h"
#include "reshard/storage/fault_storage.h"
#include "tests/support/random_state.h"
#include "tests/support/small_checkpoint.h"
#include "tests/support/states.h"

namespace reshard::testing {
namespace {

Result<ConvertReport> ConvertAll(Storage& from, Storage& to, const ConvertOptions& options = {}) {
  const Catalog catalog = ReadCatalog(from, ViewDirectory(from)->newest().value()).value();
  return Convert({catalog, from, {}}, to, options);
}

std::unique_ptr<Storage> SmallCheckpoint() {
  std::unique_ptr<Storage> storage = NewMemoryStorage();
  EXPECT_OK(SaveSmall(*storage, 7, 40));
  return storage;
}

Bytes ReadTensor(const Catalog& catalog, Storage& storage, TensorId tensor) {
  TensorReader reader(catalog, storage);
  Bytes bytes(catalog.num_bytes(tensor));
  EXPECT_OK(reader.ReadBox(tensor, WholeBox(catalog.shape(tensor)), bytes));
  return bytes;
}

std::size_t CountObjectKeys(const Catalog& catalog) {
  std::size_t keys = 0;
  for (std::size_t i = 0; i < catalog.num_objects();
       i = catalog.FindObjects(catalog.object_key(i)).second) {
    ++keys;
  }
  return keys;
}

/// Everything but the layout is the same.
void ExpectSame(const Catalog& a, Storage& from, const Catalog& b, Storage& to) {
  ASSERT_EQ(a.num_tensors(), b.num_tensors());
  for (TensorId t = 0; t < a.num_tensors(); ++t) {
    EXPECT_EQ(a.key(t), b.key(t));
    EXPECT_EQ(a.path(t), b.path(t)) << a.key(t);
    EXPECT_EQ(a.dtype(t), b.dtype(t)) << a.key(t);
    EXPECT_TRUE(std::ranges::equal(a.shape(t), b.shape(t))) << a.key(t);
    EXPECT_EQ(a.digest(t), b.digest(t)) << a.key(t);
    EXPECT_EQ(a.alias_of(t) == t, b.alias_of(t) == t) << a.key(t);
    EXPECT_EQ(ReadTensor(a, from, t), ReadTensor(b, to, t)) << a.key(t);
  }
  EXPECT_EQ(a.columns().object_keys, b.columns().object_keys);
  EXPECT_EQ(a.columns().object_paths, b.columns().object_paths);
  EXPECT_EQ(a.columns().object_ranks, b.columns().object_ranks);
  EXPECT_EQ(a.columns().object_values, b.columns().object_values);
}

/// A state dict of one of `ranks` ranks: the same nesting and values on each, and tensors of random
/// types and shapes, cut along a random axis.
StateDict RandomDict(std::uint64_t seed, int rank, int ranks) {
  RandomState random(seed);
  StateDict state = random.Dict(4);
  for (int i = 0; i < 3; ++i) {
    state[fmt::format("more{}", i)] = Tensor::Absent(DType::kFloat32, {});
  }
  std::mt19937_64 numbers(seed);
  const std::vector<MutableFlatEntry> leaves = Flatten(state).value();
  for (const MutableFlatEntry& entry : leaves) {
    if (auto* per_rank = entry.leaf->get_if<PerRank>()) {
      per_rank->value() = Value(rank * 1000);
    }
    if (entry.leaf->get_if<Tensor>() == nullptr) {
      continue;
    }
    const DTypeInfo& info = AllDTypes()[numbers() % AllDTypes().size()];
    Shape shape;
    for (std::uint64_t axes = numbers() % 4 + (info.unit_elements > 1 ? 1 : 0); axes > 0; --axes) {
      shape.push_back(numbers() % 12 == 0 ? 0 : 1 + numbers() % (axes == 1 ? 700 : 30));
    }
    if (info.unit_elements > 1) {
      shape.back() *= info.unit_elements;
    }
    const std::size_t axis = shape.empty() ? 0 : numbers() % shape.size();
    const bool cut = !shape.empty() && info.unit_elements == 1;
    const Box box = cut ? CutBox(shape, axis, rank, ranks) : WholeBox(shape);
    *entry.leaf = PatternTensor(info.dtype, shape, {box}, numbers());
  }
  return state;
}

bool HasPerRank(StateDict state) {
  const std::vector<MutableFlatEntry> leaves = Flatten(state).value();
  for (const MutableFlatEntry& entry : leaves) {
    if (entry.leaf->get_if<PerRank>() != nullptr) {
      return true;
    }
  }
  return false;
}

class ConvertRandomTest : public ::testing::TestWithParam<int> {};

TEST_P(ConvertRandomTest, KeepsEveryByteOnAnyNumberOfRanks) {
  const int ranks = GetParam();
  for (std::uint64_t seed = 1; seed <= 25; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const int savers = HasPerRank(RandomDict(seed, 0, 1)) ? ranks : 1 + static_cast<int>(seed % 4);
    const std::unique_ptr<Storage> from = NewMemoryStorage("from");
    RunRanks(savers, [&](ProcessGroup& group) {
      EXPECT_OK(Save(RandomDict(seed, group.rank(), savers), *from, group));
    });
    const std::unique_ptr<Storage> to = NewMemoryStorage("to");
    ConvertOptions options;
    options.layout.ranks = ranks;
    const Result<ConvertReport> report = ConvertAll(*from, *to, options);
    ASSERT_OK(report);
    const Catalog a = ReadCatalog(*from, 0).value();
    const Catalog b = ReadCatalog(*to, 0).value();
    ExpectSame(a, *from, b, *to);
    EXPECT_EQ(report->digests_equal, a.num_tensors());
    EXPECT_EQ(report->digests_new, 0U);
    EXPECT_EQ(b.info().world_size, static_cast<std::uint64_t>(ranks));
    const Result<VerifyReport> verdict = Verify(*to);
    ASSERT_OK(verdict);
    EXPECT_TRUE(verdict->whole());
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ConvertRandomTest, ::testing::Values(1, 2, 3, 5));

/// Every pair of formats, there and back.
class ConvertPairTest : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {};

/// Converts into a new storage, without what the format cannot hold.
std::unique_ptr<Storage> ConvertedTo(const std::string& format, Storage& from, bool& empty) {
  std::unique_ptr<Storage> to = NewMemoryStorage(format);
  const Result<OpenedCheckpoint> opened = ReadCheckpoint(from);
  EXPECT_OK(opened);
  EXPECT_TRUE(opened->faults.empty());
  ConvertOptions options;
  options.format = format;
  options.skip_unsupported = true;
  const Result<ConvertReport> report = Convert({opened->catalog, from, {}}, *to, options);
  EXPECT_OK(report);
  EXPECT_EQ(report->digests_new, 0U) << "every format has an index of ours";
  EXPECT_EQ(report->digests_equal, report->tensors);
  EXPECT_EQ(report->tensors + report->objects + report->skipped.size(),
            opened->catalog.num_tensors() + CountObjectKeys(opened->catalog));
  empty = report->tensors == 0;
  return to;
}

TEST_P(ConvertPairTest, WhatBothHoldComesBack) {
  const auto& [first, second] = GetParam();
  std::size_t compared = 0;
  for (std::uint64_t seed = 101; seed <= 104; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const std::unique_ptr<Storage> from = NewMemoryStorage("from");
    RunRanks(3, [&](ProcessGroup& group) {
      EXPECT_OK(Save(RandomDict(seed, group.rank(), 3), *from, group));
    });
    bool empty = false;
    const std::unique_ptr<Storage> a = ConvertedTo(first, *from, empty);
    const std::unique_ptr<Storage> b = empty ? nullptr : ConvertedTo(second, *a, empty);
    if (empty) {
      continue;  // nothing that both hold
    }
    const std::unique_ptr<Storage> back = ConvertedTo(first, *b, empty);
    const Result<OpenedCheckpoint> opened_a = ReadCheckpoint(*a);
    const Result<OpenedCheckpoint> opened_back = ReadCheckpoint(*back);
    ASSERT_OK(opened_a);
    ASSERT_OK(opened_back);
    const Catalog& before = opened_a->catalog;
    const Catalog& after = opened_back->catalog;
    for (TensorId t = 0; t < after.num_tensors(); ++t) {
      const std::optional<TensorId> same = before.Find(after.key(t));
      ASSERT_TRUE(same) << after.key(t);
      EXPECT_EQ(before.dtype(*same), after.dtype(t)) << after.key(t);
      EXPECT_TRUE(std::ranges::equal(before.shape(*same), after.shape(t))) << after.key(t);
      EXPECT_EQ(ReadTensor(before, *a, *same), ReadTensor(after, *back, t)) << after.key(t);
      ++compared;
    }
    for (std::size_t i = 0; i < after.num_objects(); ++i) {
      auto [begin, end] = before.FindObjects(after.object_key(i));
      while (begin < end && before.object_rank(begin) != after.object_rank(i)) {
        ++begin;
      }
      ASSERT_LT(begin, end) << after.object_key(i);
      EXPECT_EQ(Bytes(before.object_value(begin).begin(), before.object_value(begin).end()),
                Bytes(after.object_value(i).begin(), after.object_value(i).end()))
          << after.object_key(i);
    }
  }
  EXPECT_GT(compared, 10U);
}

INSTANTIATE_TEST_SUITE_P(
    Formats, ConvertPairTest,
    ::testing::Combine(::testing::Values("native", "torch", "paddle", "safetensors"),
                       ::testing::Values("native", "torch", "paddle", "safetensors")),
    [](const auto& pair) { return std::get<0>(pair.param) + "_" + std::get<1>(pair.param); });

TEST(ConvertTest, KeepsIdAliasesAndPerRankValues) {
  const std::unique_ptr<Storage> from = SmallCheckpoint();
  const std::unique_ptr<Storage> to = NewMemoryStorage();
  const Result<ConvertReport> report = ConvertAll(*from, *to);
  ASSERT_OK(report);
  EXPECT_EQ(report->unique_id, 7U);
  EXPECT_EQ(report->ranks, 2);  // rng has two values
  EXPECT_EQ(report->tensors, 6U);
  EXPECT_EQ(report->aliases, 1U);
  EXPECT_EQ(report->objects, 9U);
  EXPECT_EQ(report->digests_equal, 6U);
  const Catalog made = ReadCatalog(*to, 7).value();
  EXPECT_EQ(made.alias_of(made.Find("model.head").value()), made.Find("model.emb").value());
  ExpectSame(ReadCatalog(*from, 7).value(), *from, made, *to);
}

TEST(ConvertTest, CutsRowsEvenly) {
  const std::unique_ptr<Storage> from = SmallCheckpoint();
  const std::unique_ptr<Storage> to = NewMemoryStorage();
  ConvertOptions options;
  options.layout.ranks = 3;
  options.exclude = {"rng"};
  ASSERT_OK(ConvertAll(*from, *to, options));
  const Catalog made = ReadCatalog(*to, 7).value();
  const TensorId emb = made.Find("model.emb").value();
  ASSERT_EQ(made.num_chunks(emb), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    const Box box = made.chunk(emb, i).box.ToBox();
    EXPECT_EQ(box.extent, (Shape{i < 2 ? 22U : 20U, 32}));
  }
}

TEST(ConvertTest, RefusesAnotherNumberOfRanksThanPerRankValues) {
  const std::unique_ptr<Storage> from = SmallCheckpoint();
  const std::unique_ptr<Storage> to = NewMemoryStorage();
  ConvertOptions options;
  options.layout.ranks = 3;
  const Result<ConvertReport> report = ConvertAll(*from, *to, options);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().reason, "MISSING_PER_RANK");
  EXPECT_NE(report.error().message.find("'rng'"), std::string::npos);
  EXPECT_TRUE(Names(*to).empty());
}

TEST(ConvertTest, SelectsByKeyAndMakesListsWithHolesMaps) {
  const std::unique_ptr<Storage> from = NewMemoryStorage("from");
  StateDict state;
  state["layers"] = Value::List{FloatTensor({1, 2}), FloatTensor({3}), "text"};
  state["step"] = 5;
  ASSERT_OK(Save(state, *from, *SingleProcessGroup()));
  const std::unique_ptr<Storage> to = NewMemoryStorage("to");
  ConvertOptions options;
  options.include = {"layers.*"};
  options.exclude = {"*.0"};
  ASSERT_OK(ConvertAll(*from, *to, options));
  const Catalog made = ReadCatalog(*to, 0).value();
  ASSERT_EQ(made.num_tensors(), 1U);
  EXPECT_EQ(made.key(0), "layers.1");
  EXPECT_EQ(made.path(0), (Path{"layers", std::int64_t{1}}));
  ASSERT_EQ(made.num_objects(), 1U);
  EXPECT_EQ(made.object_key(0), "layers.2");
  options.include = {"nothing"};
  EXPECT_EQ(ConvertAll(*from, *to, options).error().reason, "NO_SUCH_KEY");
}

TEST(ConvertTest, ADryRunWritesNothing) {
  const std::unique_ptr<Storage> from = SmallCheckpoint();
  const std::unique_ptr<Storage> to = NewMemoryStorage();
  ConvertOptions options;
  options.dry_run = true;
  const Result<ConvertReport> report = ConvertAll(*from, *to, options);
  ASSERT_OK(report);
  EXPECT_EQ(report->tensors, 6U);
  EXPECT_TRUE(Names(*to).empty());
}

TEST(ConvertTest, NeedsOverwriteForADestinationWithACheckpoint) {
  const std::unique_ptr<Storage> from = SmallCheckpoint();
  const std::unique_ptr<Storage> to = NewMemoryStorage();
  ASSERT_OK(SaveSmall(*to, 7, 1));
  const Contents before = ReadAll(*to);
  EXPECT_EQ(ConvertAll(*from, *to).error().reason, "SNAPSHOT_EXISTS");
  EXPECT_EQ(ReadAll(*to), before);
  ConvertOptions options;
  options.overwrite = true;
  ASSERT_OK(ConvertAll(*from, *to, options));
  ExpectSame(ReadCatalog(*from, 7).value(), *from, ReadCatalog(*to, 7).value(), *to);
  EXPECT_EQ(ConvertAll(*from, *from, options).error().reason, "SAME_DIRECTORY");
}

TEST(ConvertTest, ListsTheFaultsOfTheSource) {
  const std::unique_ptr<Storage> from = SmallCheckpoint();
  const std::unique_ptr<Storage> to = NewMemoryStorage();
  ASSERT_OK(from->Remove("0_7.safetensors"));
  PutObject(*from, "1_7.safetensors", Bytes(10));
  const Result<ConvertReport> report = ConvertAll(*from, *to);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().reason, "SOURCE_FAULTS");
  EXPECT_NE(report.error().message.find("2 faults"), std::string::npos);
  EXPECT_NE(report.error().message.find("0_7.safetensors"), std::string::npos);
  EXPECT_NE(report.error().message.find("FILE_SIZE"), std::string::npos);
  EXPECT_TRUE(Names(*to).empty());
}

TEST(ConvertTest, FaultsOfExcludedTensorsDoNotMatter) {
  const std::unique_ptr<Storage> from = SmallCheckpoint();
  const std::unique_ptr<Storage> to = NewMemoryStorage();
  const Catalog catalog = ReadCatalog(*from, 7).value();
  const Error fault = {ErrorCode::kCorruption, "X", "damaged"};
  const ConvertSource source = {catalog, *from, {{fault, "f", {"model.w"}}}};
  EXPECT_EQ(Convert(source, *to).error().reason, "SOURCE_FAULTS");
  ConvertOptions options;
  options.exclude = {"model.w"};
  EXPECT_OK(Convert(source, *to, options));
}

TEST(ConvertTest, ADamagedBlockLeavesNothing) {
  const std::unique_ptr<Storage> from = SmallCheckpoint();
  const std::unique_ptr<Storage> to = NewMemoryStorage();
  Bytes bytes = ReadObject(*from, "1_7.safetensors");
  bytes[bytes.size() - 1000] ^= std::byte{8};
  PutObject(*from, "1_7.safetensors", bytes);
  const Result<ConvertReport> report = ConvertAll(*from, *to);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().reason, "BLOCK_CHECKSUM");
  EXPECT_NE(report.error().message.find("1_7.safetensors"), std::string::npos);
  EXPECT_TRUE(Names(*to).empty());
}

/// A copy of a catalog with other digests.
Catalog WithDigests(const Catalog& catalog, bool known) {
  CatalogColumns columns = catalog.columns();
  for (std::size_t i = 0; i < columns.digests.size(); ++i) {
    columns.digests[i] ^= known ? 1 : columns.digests[i];
    columns.has_digest[i] = known ? 1 : 0;
  }
  return Catalog::Create(std::move(columns)).value();
}

TEST(ConvertTest, AWrongDigestIsFoundBeforeTheCommit) {
  const std::unique_ptr<Storage> from = SmallCheckpoint();
  const std::unique_ptr<Storage> to = NewMemoryStorage();
  const Catalog wrong = WithDigests(ReadCatalog(*from, 7).value(), true);
  const Result<ConvertReport> report = Convert({wrong, *from, {}}, *to);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().reason, "TENSOR_DIGEST");
  EXPECT_TRUE(Names(*to).empty());
}

TEST(ConvertTest, SaysWhichDigestsAreNew) {
  const std::unique_ptr<Storage> from = SmallCheckpoint();
  const std::unique_ptr<Storage> to = NewMemoryStorage();
  const Catalog without = WithDigests(ReadCatalog(*from, 7).value(), false);
  const Result<ConvertReport> report = Convert({without, *from, {}}, *to);
  ASSERT_OK(report);
  EXPECT_EQ(report->digests_equal, 0U);
  EXPECT_EQ(report->digests_new, 6U);
  EXPECT_EQ(report->unverified, 0U);
}

TEST(ConvertTest, FailuresOfTheDestinationLeaveItEmpty) {
  const std::unique_ptr<Storage> from = SmallCheckpoint();
  const Catalog catalog = ReadCatalog(*from, 7).value();
  std::uint64_t operations = 0;
  {
    const std::unique_ptr<Storage> to = NewMemoryStorage();
    FaultStorage counted(*to, [](auto, auto, auto) { return FaultAction::kNone; });
    ASSERT_OK(Convert({catalog, *from, {}}, counted));
    operations = counted.operations();
  }
  ASSERT_GT(operations, 10U);
  for (std::uint64_t k = 0; k < operations; ++k) {
    const std::unique_ptr<Storage> to = NewMemoryStorage();
    FaultStorage faulty(*to, [k](std::uint64_t count, StorageOp, std::string_view) {
      return count == k ? FaultAction::kFail : FaultAction::kNone;
    });
    const Result<ConvertReport> report = Convert({catalog, *from, {}}, faulty);
    if (!report.ok() && report.error().code != ErrorCode::kIndeterminate) {
      EXPECT_FALSE(ViewDirectory(*to)->newest()) << k << report.error().ToString();
      EXPECT_TRUE(Names(*to).empty()) << k << report.error().ToString();
    } else {
      EXPECT_TRUE(ViewDirectory(*to)->newest()) << k;
    }
  }
}

TEST(ConvertTest, ACancelledConversionLeavesNothing) {
  const std::unique_ptr<Storage> from = SmallCheckpoint();
  const std::unique_ptr<Storage> to = NewMemoryStorage();
  ConvertOptions options;
  options.progress = [](const Progress&) {
    return Status(MakeError(ErrorCode::kCancelled, "CANCELLED", "enough"));
  };
  EXPECT_EQ(ConvertAll(*from, *to, options).error().code, ErrorCode::kCancelled);
  EXPECT_TRUE(Names(*to).empty());
}

/// Large and small tensors, 40 MiB, cut by rows over three ranks.
std::unique_ptr<Storage> MixedCheckpoint() {
  std::unique_ptr<Storage> storage = NewMemoryStorage();
  RunRanks(3, [&](ProcessGroup& group) {
    StateDict state;
    for (std::uint64_t i = 0; i < 120; ++i) {
      const Shape shape = i % 12 == 0 ? Shape{1000, 1024} : Shape{10 + i, 30};
      state["layers"][fmt::format("{}", i)] =
          PatternTensor(DType::kFloat32, shape, {CutBox(shape, 0, group.rank(), group.size())}, i);
    }
    EXPECT_OK(Save(state, *storage, group));
  });
  return storage;
}

TEST(ConvertTest, ReadsRowsAboutOnce) {
  const std::unique_ptr<Storage> from = MixedCheckpoint();
  for (const int ranks : {1, 2, 3, 5, 8}) {
    for (const std::uint64_t mib : {64, 512}) {
      const std::unique_ptr<Storage> to = NewMemoryStorage();
      ConvertOptions options;
      options.layout.ranks = ranks;
      options.memory_bytes = mib << 20;
      const Result<ConvertReport> report = ConvertAll(*from, *to, options);
      ASSERT_OK(report);
      const double ratio =
          static_cast<double>(report->bytes_read) / static_cast<double>(report->bytes);
      RecordProperty(fmt::format("ratio_{}_ranks_{}_mib", ranks, mib),
                     fmt::format("{:.3f}", ratio));
      EXPECT_LE(ratio, 1.10) << ranks << " ranks, " << mib << " MiB";
      EXPECT_EQ(report->digests_equal, 120U);
    }
  }
}

TEST(ConvertTest, ToPaddleAndBackKeepsTheBytes) {
  const std::unique_ptr<Storage> from = SmallCheckpoint();
  const std::unique_ptr<Storage> paddle = NewMemoryStorage("paddle");
  ConvertOptions options;
  options.format = "paddle";
  options.layout.ranks = 3;  // the per-rank value is left out
  EXPECT_EQ(ConvertAll(*from, *paddle, options).error().reason, "MISSING_PER_RANK");
  options.layout.ranks = 2;
  EXPECT_EQ(ConvertAll(*from, *paddle, options).error().reason, "UNSUPPORTED_BY_FORMAT");
  options.dry_run = true;
  EXPECT_EQ(ConvertAll(*from, *paddle, options).error().reason, "UNSUPPORTED_BY_FORMAT");
  EXPECT_TRUE(Names(*paddle).empty());
  options.dry_run = false;
  options.skip_unsupported = true;
  options.layout.ranks = 3;
  const Result<ConvertReport> report = ConvertAll(*from, *paddle, options);
  ASSERT_OK(report);
  EXPECT_EQ(report->unique_id, 0U);
  EXPECT_EQ(report->skipped.size(), 10U);
  EXPECT_EQ(report->digests_equal, 5U);
  EXPECT_EQ(report->aliases, 0U);
  EXPECT_EQ(report->objects, 0U);
  const OpenedCheckpoint opened = ReadCheckpoint(*paddle).value();
  const std::unique_ptr<Storage> back = NewMemoryStorage("back");
  const Result<ConvertReport> again = Convert({opened.catalog, *paddle, opened.faults}, *back);
  ASSERT_OK(again);
  EXPECT_EQ(again->digests_equal, 5U);
  const Catalog a = ReadCatalog(*from, 7).value();
  const Catalog b = ReadCatalog(*back, 0).value();
  for (TensorId t = 0; t < b.num_tensors(); ++t) {
    EXPECT_EQ(ReadTensor(b, *back, t), ReadTensor(a, *from, a.Find(b.key(t)).value())) << b.key(t);
  }
}

TEST(ConvertTest, APaddleSourceWithoutAnIndexIsReadUnverified) {
  const std::unique_ptr<Storage> from = SmallCheckpoint();
  const std::unique_ptr<Storage> paddle = NewMemoryStorage("paddle");
  ConvertOptions options;
  options.format = "paddle";
  options.skip_unsupported = true;
  ASSERT_OK(ConvertAll(*from, *paddle, options));
  ASSERT_OK(paddle->Remove("0.metadata.reshard"));
  const OpenedCheckpoint opened = ReadCheckpoint(*paddle).value();
  const std::unique_ptr<Storage> back = NewMemoryStorage("back");
  const Result<ConvertReport> report = Convert({opened.catalog, *paddle, opened.faults}, *back);
  ASSERT_OK(report);
  EXPECT_EQ(report->digests_new, 5U);
  EXPECT_EQ(report->unverified, 5U);
  const Catalog a = ReadCatalog(*from, 7).value();
  const Catalog b = ReadCatalog(*back, 0).value();
  for (TensorId t = 0; t < b.num_tensors(); ++t) {
    EXPECT_EQ(b.digest(t), a.digest(a.Find(b.key(t)).value())) << b.key(t);
  }
}

Tensor Whole(DType dtype, const Shape& shape, std::uint64_t salt) {
  return PatternTensor(dtype, shape, {WholeBox(shape)}, salt);
}

std::unique_ptr<Storage> Saved(const StateDict& state) {
  std::unique_ptr<Storage> storage = NewMemoryStorage("from");
  EXPECT_OK(Save(state, *storage, *SingleProcessGroup()));
  return storage;
}

/// Where the chunks of a tensor begin, and who wrote each.
std::vector<std::pair<Index, std::uint64_t>> Holders(const Catalog& catalog, std::string_view key) {
  std::vector<std::pair<Index, std::uint64_t>> out;
  const TensorId tensor = catalog.Find(key).value();
  for (std::size_t i = 0; i < catalog.num_chunks(tensor); ++i) {
    const Chunk chunk = catalog.chunk(tensor, i);
    out.emplace_back(chunk.box.ToBox().offset, catalog.files()[chunk.file].rank);
  }
  return out;
}

TEST(ConvertTest, PlacesTensorsOnAMesh) {
  StateDict state;
  state["qkv"] = Whole(DType::kFloat32, {8, 12}, 1);
  state["out"] = Whole(DType::kFloat32, {8, 12}, 2);
  state["rest"] = Whole(DType::kFloat32, {8}, 3);
  state["scale"] = Whole(DType::kFloat32, {}, 4);
  const std::unique_ptr<Storage> from = Saved(state);
  const std::unique_ptr<Storage> to = NewMemoryStorage("to");
  ConvertOptions options;
  options.layout.mesh = ProcessMesh::Parse("dp=2,tp=4").value();
  options.layout.placements = {{"q*", ParsePlacements("replicate,shard(1)").value()},
                               {"q*", ParsePlacements("replicate,shard(0)").value()},
                               {"out", ParsePlacements("shard(-1), replicate").value()}};
  EXPECT_EQ(ConvertAll(*from, *to, options).error().reason, "UNUSED_RULE");  // the second one
  options.layout.placements.erase(options.layout.placements.begin() + 1);
  const Result<ConvertReport> report = ConvertAll(*from, *to, options);
  ASSERT_OK(report);
  EXPECT_EQ(report->ranks, 8);
  const Catalog made = ReadCatalog(*to, 0).value();
  EXPECT_EQ(made.info().world_size, 8U);
  const auto qkv = Holders(made, "qkv");
  ASSERT_EQ(qkv.size(), 4U);
  for (std::uint64_t tp = 0; tp < 4; ++tp) {
    EXPECT_EQ(qkv[tp].first, (Index{0, 3 * tp}));
    EXPECT_EQ(qkv[tp].second % 4, tp);  // either of the two that hold it
  }
  const auto out = Holders(made, "out");
  ASSERT_EQ(out.size(), 2U);
  EXPECT_EQ(out[1].first, (Index{0, 6}));
  EXPECT_LT(out[0].second, 4U);
  EXPECT_GE(out[1].second, 4U);
  const auto rest = Holders(made, "rest");
  ASSERT_EQ(rest.size(), 8U);
  for (std::uint64_t rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(rest[rank], std::pair(Index{rank}, rank));
  }
  EXPECT_EQ(Holders(made, "scale").size(), 1U);
  ExpectSame(ReadCatalog(*from, 0).value(), *from, made, *to);
}

TEST(ConvertTest, RefusesALayoutThatDoesNotFit) {
  StateDict state;
  state["model"]["b"] = Whole(DType::kFloat32, {8}, 1);
  const std::unique_ptr<Storage> from = Saved(state);
  const std::unique_ptr<Storage> to = NewMemoryStorage("to");
  const auto refusal = [&](const LayoutOptions& layout) {
    ConvertOptions options;
    options.layout = layout;
    options.dry_run = true;
    return ConvertAll(*from, *to, options).error();
  };
  LayoutOptions layout;
  layout.placements = {{"model.b", {Replicate{}, Shard{1}}}};
  EXPECT_EQ(refusal(layout).reason, "CONVERT_LAYOUT");  // no mesh
  layout.mesh = ProcessMesh::Parse("dp=2,tp=2").value();
  const Error axis = refusal(layout);
  EXPECT_EQ(axis.reason, "BAD_AXIS");
  EXPECT_NE(
      axis.message.find("the placement rule 'model.b=replicate,shard(1)' for tensor 'model.b'"),
      std::string::npos)
      << axis.message;
  EXPECT_NE(axis.message.find("before it, such as 'model.b=replicate,replicate'"),
            std::string::npos)
      << axis.message;
  layout.placements[0].placements.pop_back();
  EXPECT_EQ(refusal(layout).reason, "PLACEMENT_COUNT");
  layout.placements = {{"nothing", {Replicate{}, Replicate{}}}};
  EXPECT_EQ(refusal(layout).reason, "UNUSED_RULE");
  layout.placements.clear();
  layout.ranks = 2;
  EXPECT_EQ(refusal(layout).reason, "CONVERT_LAYOUT");
  layout = {};
  layout.max_file_bytes = 5;
  EXPECT_EQ(refusal(layout).reason, "CONVERT_LAYOUT");
  EXPECT_EQ(ParsePlacements("replicate;shard(0)").error().reason, "BAD_PLACEMENT");
  EXPECT_EQ(ParsePlacements("shard()").error().reason, "BAD_PLACEMENT");
  EXPECT_EQ(ToString(ParsePlacements("replicate, shard( -2 )").value()), "replicate,shard(-2)");
}

std::vector<std::uint16_t> Halves(const Catalog& catalog, Storage& storage, std::string_view key) {
  const Bytes bytes = ReadTensor(catalog, storage, catalog.Find(key).value());
  std::vector<std::uint16_t> out(bytes.size() / 2);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

TEST(ConvertTest, RoundsToNearestEvenAndCountsOverflow) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  StateDict state;
  state["w"] = FloatTensor({1.00390625F, 1.01171875F, -0.0F, 3.4e38F, -inf, nan, -3.4e38F});
  state["keep"] = FloatTensor({1.00390625F});
  state["count"] = Whole(DType::kInt64, {3}, 5);
  const std::unique_ptr<Storage> from = Saved(state);
  const std::unique_ptr<Storage> to = NewMemoryStorage("to");
  ConvertOptions options;
  options.layout.dtype = DType::kBfloat16;
  options.layout.dtypes = {{"k*", DType::kFloat32}};
  const Result<ConvertReport> report = ConvertAll(*from, *to, options);
  ASSERT_OK(report);
  EXPECT_EQ(report->digests_cast, 1U);
  EXPECT_EQ(report->digests_equal, 2U);
  ASSERT_EQ(report->overflows.size(), 1U);
  EXPECT_EQ(report->overflows[0].key, "w");
  EXPECT_EQ(report->overflows[0].from, DType::kFloat32);
  EXPECT_EQ(report->overflows[0].to, DType::kBfloat16);
  EXPECT_EQ(report->overflows[0].elements, 2U);
  const Catalog made = ReadCatalog(*to, 0).value();
  EXPECT_EQ(made.dtype(made.Find("keep").value()), DType::kFloat32);
  EXPECT_EQ(made.dtype(made.Find("count").value()), DType::kInt64);
  std::vector<std::uint16_t> w = Halves(made, *to, "w");
  EXPECT_EQ(w[5] & 0x7FC0, 0x7FC0);
  w[5] = 0;
  EXPECT_EQ(w, (std::vector<std::uint16_t>{0x3F80, 0x3F82, 0x8000, 0x7F80, 0xFF80, 0, 0xFF80}));
}

TEST(ConvertTest, CountsEachOverflowOnceHoweverTheBuffersLie) {
  std::vector<float> values(1000003, 0.5F);
  for (std::size_t i = 0; i < values.size(); i += 7) {
    values[i] = 1e6F;
  }
  StateDict state;
  state["a"] = FloatTensor({1, 2, 3});
  state["w"] = FloatTensor(values);
  const std::unique_ptr<Storage> from = Saved(state);
  for (const std::string format : {"native", "paddle"}) {
    for (const int ranks : {1, 3}) {
      const std::unique_ptr<Storage> to = NewMemoryStorage("to");
      ConvertOptions options;
      options.format = format;
      options.memory_bytes = std::uint64_t{5} << 20;
      options.layout.ranks = ranks;
      options.layout.dtypes = {{"w", DType::kFloat16}};
      const Result<ConvertReport> report = ConvertAll(*from, *to, options);
      ASSERT_OK(report);
      ASSERT_EQ(report->overflows.size(), 1U);
      EXPECT_EQ(report->overflows[0].elements, (values.size() + 6) / 7);
      const OpenedCheckpoint made = ReadCheckpoint(*to).value();
      const std::vector<std::uint16_t> w = Halves(made.catalog, *to, "w");
      ASSERT_EQ(w.size(), values.size());
      for (std::size_t i = 0; i < w.size(); ++i) {
        ASSERT_EQ(w[i], i % 7 == 0 ? 0x7C00 : 0x3800) << i;
      }
    }
  }
}

TEST(ConvertTest, AliasesStayAliasesUnlessTheirDTypesPart) {
  const std::unique_ptr<Storage> from = SmallCheckpoint();
  ConvertOptions options;
  options.layout.dtype = DType::kFloat32;
  const std::unique_ptr<Storage> together = NewMemoryStorage();
  ASSERT_OK(ConvertAll(*from, *together, options));
  const Catalog same = ReadCatalog(*together, 7).value();
  EXPECT_EQ(same.alias_of(same.Find("model.head").value()), same.Find("model.emb").value());
  options.layout.dtypes = {{"model.head", DType::kBfloat16}};
  const std::unique_ptr<Storage> apart = NewMemoryStorage();
  const Result<ConvertReport> report = ConvertAll(*from, *apart, options);
  ASSERT_OK(report);
  EXPECT_EQ(report->aliases, 0U);
  const Catalog made = ReadCatalog(*apart, 7).value();
  const TensorId head = made.Find("model.head").value();
  EXPECT_EQ(made.alias_of(head), head);
  const Catalog before = ReadCatalog(*from, 7).value();
  EXPECT_EQ(made.digest(head), before.digest(before.Find("model.head").value()));
}

TEST(ConvertTest, RefusesDTypeRulesThatCannotBeMeant) {
  StateDict state;
  state["n"] = Whole(DType::kInt32, {4}, 1);
  state["w"] = Whole(DType::kFloat32, {4}, 2);
  state["q"] = Whole(DType::kFloat4E2m1, {4}, 3);
  const std::unique_ptr<Storage> from = Saved(state);
  const std::unique_ptr<Storage> to = NewMemoryStorage("to");
  const auto convert = [&](std::optional<DType> all, std::vector<DTypeRule> rules) {
    ConvertOptions options;
    options.layout.dtype = all;
    options.layout.dtypes = std::move(rules);
    options.dry_run = true;
    return ConvertAll(*from, *to, options);
  };
  EXPECT_EQ(convert({}, {{"n", DType::kBfloat16}}).error().reason, "UNUSED_RULE");
  EXPECT_EQ(convert({}, {{"x*", DType::kBfloat16}}).error().reason, "UNUSED_RULE");
  EXPECT_EQ(convert({}, {{"w", DType::kFloat16}, {"w", DType::kBfloat16}}).error().reason,
            "UNUSED_RULE");
  EXPECT_EQ(convert({}, {{"w", DType::kInt32}}).error().reason, "CAST");
  EXPECT_EQ(convert(DType::kFloat4E2m1, {}).error().reason, "CAST");
  const Error packed = convert({}, {{"*", DType::kBfloat16}}).error();
  EXPECT_EQ(packed.reason, "CAST");
  EXPECT_NE(packed.message.find("tensor 'q'"), std::string::npos);
  EXPECT_OK(convert({}, {{"q", DType::kFloat4E2m1}, {"*", DType::kBfloat16}}));
  EXPECT_OK(convert(DType::kBfloat16, {}));  // leaves n and q as they are
}

TEST(ConvertTest, DividesWholeTensorsByTheSizeOfFiles) {
  StateDict state;
  for (const char* key : {"a", "b", "c", "e"}) {
    state[key] = Whole(DType::kFloat32, {10}, 1);
  }
  const Tensor big = Whole(DType::kFloat32, {100}, 1);
  state["d"] = big;
  state["f"] = big;  // the same memory
  const std::unique_ptr<Storage> from = Saved(state);
  const Catalog catalog = ReadCatalog(*from, 0).value();
  const ConvertSelection selection = SelectKeys(catalog, {}, {});
  LayoutLimits limits;
  limits.cut_tensors = false;
  LayoutOptions options;
  const auto ranks = [&](const ConvertLayout& layout) {
    std::vector<int> out;
    for (const TensorId tensor : selection.tensors) {
      for (int rank = 0; rank < layout.ranks(); ++rank) {
        if (const auto box = layout.BoxOf(tensor, rank)) {
          EXPECT_EQ(*box, WholeBox(catalog.shape(tensor)));
          out.push_back(rank);
        }
      }
    }
    return out;
  };
  const ConvertLayout one = ConvertLayout::Create(catalog, selection, options, limits).value();
  EXPECT_TRUE(one.whole());
  EXPECT_EQ(one.ranks(), 1);
  options.max_file_bytes = 80;
  const ConvertLayout layout = ConvertLayout::Create(catalog, selection, options, limits).value();
  EXPECT_EQ(layout.ranks(), 4);
  EXPECT_EQ(ranks(layout), (std::vector<int>{0, 0, 1, 2, 3, 2}));  // f with d
  limits.aliases = false;
  EXPECT_EQ(ranks(ConvertLayout::Create(catalog, selection, options, limits).value()),
            (std::vector<int>{0, 0, 1, 2, 3, 4}));
  options.ranks = 2;
  const Error error = ConvertLayout::Create(catalog, selection, options, limits).error();
  EXPECT_EQ(error.reason, "CONVERT_LAYOUT");
  EXPECT_NE(error.message.find("whole"), std::string::npos);
}

TEST(ConvertTest, FewRanksWriteAtOnceWhenMemoryIsLittle) {
  const std::unique_ptr<Storage> from = MixedCheckpoint();
  const std::unique_ptr<Storage> to = NewMemoryStorage("to");
  ConvertOptions options;
  options.memory_bytes = std::uint64_t{5} << 20;
  options.layout.ranks = 40;
  const Result<ConvertReport> report = ConvertAll(*from, *to, options);
  ASSERT_OK(report);
  EXPECT_EQ(report->digests_equal, 120U);
  ExpectSame(ReadCatalog(*from, 0).value(), *from, ReadCatalog(*to, 0).value(), *to);
}

TEST(WriteTurnsTest, BoundsTheWritersAndGoesByRank) {
  WriteTurns turns(2);
  std::atomic<int> writing = 0;
  std::atomic<int> most = 0;
  Mutex mutex;
  std::vector<int> order;
  ASSERT_OK(turns.Begin(100, [] {}));
  ASSERT_OK(turns.Begin(101, [] {}));
  std::vector<std::thread> threads;
  std::atomic<int> waiting = 0;
  for (const int rank : {5, 3, 4, 1, 2}) {
    threads.emplace_back([&, rank] {
      ++waiting;
      ASSERT_OK(turns.Begin(rank, [] {}));
      most = std::max(most.load(), ++writing);
      {
        MutexLock lock(mutex);
        order.push_back(rank);
      }
      --writing;
      turns.End(OkStatus());
    });
  }
  while (waiting < 5) {
    std::this_thread::yield();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  turns.End(OkStatus());  // one turn left for all five: strictly by rank
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4, 5}));
  EXPECT_EQ(most, 1);
  turns.End(MakeError(ErrorCode::kIo, "NO_SPACE", "full"));
  EXPECT_EQ(turns.Begin(6, [] {}).error().reason, "NO_SPACE");
}

TEST(ConvertTest, RefusesTooLittleMemory) {
  const std::unique_ptr<Storage> from = SmallCheckpoint();
  const std::unique_ptr<Storage> to = NewMemoryStorage();
  ConvertOptions options;
  options.memory_bytes = std::uint64_t{4} << 20;
  const Result<ConvertReport> report = ConvertAll(*from, *to, options);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().reason, "MEMORY_TOO_SMALL");
}

}  // namespace
}  // namespace reshard::testing
