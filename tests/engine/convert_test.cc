#include "reshard/engine/convert.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "reshard/engine/checkpoint.h"
#include "reshard/engine/snapshot.h"
#include "reshard/engine/tensor_reader.h"
#include "reshard/engine/verify.h"
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
