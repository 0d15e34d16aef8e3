// Saving as safetensors: what is written, what is refused, and that a crash leaves the old or the
// new checkpoint.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "reshard/codec/crc64.h"
#include "reshard/engine/checkpoint.h"
#include "reshard/engine/foreign.h"
#include "reshard/engine/verify.h"
#include "reshard/format/safetensors/header.h"
#include "reshard/format/safetensors/index.h"
#include "reshard/storage/fault_storage.h"
#include "reshard/storage/memory_storage.h"
#include "tests/support/states.h"

namespace reshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kSingle = "model.safetensors";
const std::string kSetIndex = "model.safetensors.index.json";

SaveOptions Options(bool overwrite = false) {
  SaveOptions options;
  options.format = "safetensors";
  options.overwrite = overwrite;
  options.threads = 1;
  return options;
}

/// Whole tensors: each on one rank, one on all of them, one without elements.
StateDict StateOf(std::uint64_t salt, int rank, int size) {
  StateDict state;
  const auto add = [&](const std::string& key, DType dtype, const Shape& shape, std::uint64_t n,
                       int owner) {
    if (owner < 0 || owner % size == rank) {
      state["layer"][key] = PatternTensor(dtype, shape, {WholeBox(shape)}, salt + n);
    }
  };
  add("bias", DType::kBfloat16, {7}, 1, 0);
  add("weight", DType::kFloat32, {5, 9}, 2, 1);
  add("scale", DType::kFloat8E4m3fn, {3, 3}, 3, 2);
  add("index", DType::kInt64, {11}, 4, 0);
  state["same"] = PatternTensor(DType::kUint8, {}, {WholeBox(Shape{})}, salt + 5);
  state["none"] = PatternTensor(DType::kFloat16, {0, 4}, {}, 1);
  return state;
}

Result<SaveResult> SaveOn(int ranks, Storage& storage, std::uint64_t salt,
                          const SaveOptions& options = Options()) {
  auto results = OnRanks(ranks, [&](ProcessGroup& group) {
    return Save(StateOf(salt, group.rank(), ranks), storage, group, options);
  });
  ExpectOneOutcome(results);
  return std::move(results[0]);
}

/// Whether every tensor, read from the files, is that of `salt`.
bool Holds(Storage& storage, std::uint64_t salt, bool use_index) {
  ForeignOptions options;
  options.use_index = use_index;
  const auto opened = ReadCheckpoint(storage, std::nullopt, options);
  if (!opened.ok()) {
    ADD_FAILURE() << opened.error().ToString();
    return false;
  }
  EXPECT_TRUE(opened->faults.empty());
  const Catalog& catalog = opened->catalog;
  const std::map<std::string_view, std::uint64_t> salts = {
      {"layer.bias", 1}, {"layer.weight", 2}, {"layer.scale", 3}, {"layer.index", 4}, {"same", 5}};
  EXPECT_EQ(catalog.num_tensors(), 6U);
  std::uint64_t wrong = 0;
  for (TensorId t = 0; t < catalog.num_tensors(); ++t) {
    const auto shape = catalog.shape(t);
    if (catalog.num_chunks(t) == 0) {
      EXPECT_EQ(catalog.key(t), "none");
      EXPECT_THAT(shape, ElementsAre(0, 4));
      continue;
    }
    Tensor whole = TargetTensor(catalog.dtype(t), Shape(shape.begin(), shape.end()), {});
    const Chunk chunk = catalog.chunk(t, 0);
    whole.shards.push_back(AllocateShard(whole.dtype, chunk.box.ToBox()));
    const Bytes file = ReadObject(storage, catalog.files()[chunk.file].name);
    std::copy_n(file.begin() + static_cast<std::ptrdiff_t>(chunk.byte_offset),
                catalog.chunk_bytes(t, 0), whole.shards.back().view.data);
    wrong += CountWrong(whole, salt + salts.at(catalog.key(t)));
  }
  return wrong == 0;
}

void CheckAll(Storage& storage, std::uint64_t salt) {
  EXPECT_TRUE(Holds(storage, salt, true));
  EXPECT_TRUE(Holds(storage, salt, false));
  const auto opened = ReadCheckpoint(storage);
  ASSERT_OK(opened);
  EXPECT_TRUE(opened->has_checksums) << "no index that fits";
  EXPECT_TRUE(opened->notes.empty()) << opened->notes[0];
  const auto verified = Verify(storage);
  ASSERT_OK(verified);
  EXPECT_TRUE(verified->whole());
  EXPECT_FALSE(verified->snapshots.at(0).structure_only);
  EXPECT_TRUE(verified->notes.empty()) << verified->notes[0];
}

TEST(SaveSafetensorsTest, OneRankWritesOneFile) {
  const auto storage = NewMemoryStorage();
  ASSERT_OK_AND_ASSIGN(const SaveResult saved, SaveOn(1, *storage, 100));
  EXPECT_EQ(saved.file_name, kSingle);
  EXPECT_THAT(Names(*storage), ElementsAre(kSingle, "model.safetensors.reshard"));
  CheckAll(*storage, 100);
  const Bytes bytes = ReadObject(*storage, kSingle);
  MemorySource source(bytes);
  ASSERT_OK_AND_ASSIGN(const safetensors::Header header, safetensors::ReadHeader(source));
  EXPECT_EQ(header.payload_offset % 8, 0U);
  EXPECT_THAT(header.metadata, ElementsAre(std::pair<std::string, std::string>("format", "pt")));
  std::vector<std::string> names;
  for (const safetensors::Entry& entry : header.entries) {
    names.push_back(entry.name);
    EXPECT_EQ(entry.bytes.offset % Info(entry.dtype).unit_bytes, 0U) << entry.name;
  }
  EXPECT_THAT(names, ElementsAre("layer.index", "layer.weight", "layer.bias", "layer.scale", "same",
                                 "none"));
}

TEST(SaveSafetensorsTest, SeveralRanksWriteASet) {
  const auto storage = NewMemoryStorage();
  ASSERT_OK_AND_ASSIGN(const SaveResult saved, SaveOn(3, *storage, 100));
  EXPECT_EQ(saved.file_name, "model-00001-of-00003.safetensors");
  EXPECT_THAT(Names(*storage),
              ElementsAre("model-00000-of-00003.safetensors", "model-00001-of-00003.safetensors",
                          "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors",
                          kSetIndex, "model.safetensors.index.json.reshard"));
  CheckAll(*storage, 100);
  const Bytes bytes = ReadObject(*storage, kSetIndex);
  MemorySource source(bytes);
  ASSERT_OK_AND_ASSIGN(const safetensors::SetIndex index, safetensors::DecodeIndex(source));
  EXPECT_EQ(index.total_size, 7U * 2 + 5 * 9 * 4 + 9 + 11 * 8 + 1);
  EXPECT_EQ(index.files[index.Find("none")->file], "model-00000-of-00003.safetensors");
  EXPECT_EQ(index.files[index.Find("layer.weight")->file], "model-00002-of-00003.safetensors");
}

TEST(SaveSafetensorsTest, BytesDependOnTheContentAlone) {
  for (const int ranks : {1, 3}) {
    const auto first = NewMemoryStorage();
    const auto second = NewMemoryStorage();
    ASSERT_OK(SaveOn(ranks, *first, 100));
    ASSERT_OK(SaveOn(ranks, *second, 100));
    for (const std::string& name : Names(*first)) {
      if (!name.ends_with(".reshard")) {  // it has times
        EXPECT_EQ(ReadObject(*first, name), ReadObject(*second, name)) << name;
      }
    }
  }
}

TEST(SaveSafetensorsTest, EveryDTypeOfTheFormat) {
  StateDict state;
  for (const DTypeInfo& info : AllDTypes()) {
    state[std::string(info.name)] = PatternTensor(info.dtype, {3, 4}, {WholeBox(Shape{3, 4})}, 40);
  }
  const auto storage = NewMemoryStorage();
  const auto group = SingleProcessGroup();
  SaveOptions options = Options();
  const auto refused = Save(state, *storage, *group, options);
  EXPECT_THAT(refused, FailsWith("UNSUPPORTED_BY_FORMAT"));
  EXPECT_THAT(refused.error().message, HasSubstr("complex128: safetensors has no complex128"));
  EXPECT_TRUE(Names(*storage).empty());
  options.skip_unsupported = true;
  ASSERT_OK_AND_ASSIGN(const SaveResult saved, Save(state, *storage, *group, options));
  EXPECT_EQ(saved.skipped.size(), 2U);
  StateDict target;
  for (const DTypeInfo& info : AllDTypes()) {
    if (!info.split_complex) {
      target[std::string(info.name)] = TargetTensor(info.dtype, {3, 4}, {WholeBox(Shape{3, 4})});
    }
  }
  ASSERT_OK(Load(target, *storage, *group));
  for (const auto& info : AllDTypes()) {
    if (!info.split_complex) {
      EXPECT_EQ(CountWrong(*target.Find(std::string(info.name))->get_if<Tensor>(), 40), 0U)
          << info.name;
    }
  }
}

TEST(SaveSafetensorsTest, WhatItCannotHoldIsListedBeforeAnythingIsWritten) {
  const auto storage = NewMemoryStorage();
  SaveOptions options = Options();
  const auto save = [&] {
    return OnRanks(2, [&](ProcessGroup& group) {
      StateDict state;
      state["cut"] = PatternTensor(DType::kFloat32, {4}, {CutBox({4}, 0, group.rank(), 2)}, 1);
      state["c32"] = PatternTensor(DType::kComplex32, {4}, {WholeBox(Shape{4})}, 1);
      state["__metadata__"] = PatternTensor(DType::kUint8, {4}, {WholeBox(Shape{4})}, 1);
      state["bad\xff"] = PatternTensor(DType::kUint8, {4}, {WholeBox(Shape{4})}, 1);
      state["bell\x07"] = PatternTensor(DType::kUint8, {4}, {WholeBox(Shape{4})}, 1);
      state["step"] = 7;
      state["rng"] = PerRank(Value(group.rank()));
      state["w"] = PatternTensor(DType::kUint8, {4}, {WholeBox(Shape{4})}, 1);
      return Save(state, *storage, group, options);
    });
  };
  const auto refused = save();
  ASSERT_THAT(refused[1], FailsWith("UNSUPPORTED_BY_FORMAT"));
  for (const char* part :
       {"7 of the keys", "cut: cut over ranks", "c32: safetensors has no complex32",
        "step: safetensors holds no objects", "__metadata__: a name that safetensors gives"}) {
    EXPECT_THAT(refused[0].error().message, HasSubstr(part));
  }
  EXPECT_TRUE(Names(*storage).empty());
  options.skip_unsupported = true;
  const auto saved = save();
  ASSERT_OK(saved[0]);
  EXPECT_EQ(saved[0]->skipped.size(), 7U);
  const auto opened = ReadCheckpoint(*storage);
  ASSERT_OK(opened);
  EXPECT_EQ(opened->catalog.num_tensors(), 1U);
}

TEST(SaveSafetensorsTest, AliasesAreStoredTwice) {
  const auto storage = NewMemoryStorage();
  StateDict state;
  state["a"] = PatternTensor(DType::kUint8, {4}, {WholeBox(Shape{4})}, 1);
  Value tied = *state.Find("a");
  state["b"] = std::move(tied);
  const auto group = SingleProcessGroup();
  ASSERT_OK(Save(state, *storage, *group, Options()));
  const Bytes bytes = ReadObject(*storage, kSingle);
  MemorySource source(bytes);
  ASSERT_OK_AND_ASSIGN(const safetensors::Header header, safetensors::ReadHeader(source));
  ASSERT_EQ(header.entries.size(), 2U);
  EXPECT_EQ(bytes.size(), header.payload_offset + 8);
}

TEST(SaveSafetensorsTest, OnlyTensorsWithoutElements) {
  for (const int ranks : {1, 2}) {
    const auto storage = NewMemoryStorage();
    const auto results = OnRanks(ranks, [&](ProcessGroup& group) {
      StateDict state;
      state["none"] = PatternTensor(DType::kFloat16, {0, 4}, {}, 1);
      return Save(state, *storage, group, Options());
    });
    ASSERT_OK(results[0]);
    const auto opened = ReadCheckpoint(*storage);
    ASSERT_OK(opened);
    ASSERT_EQ(opened->catalog.num_tensors(), 1U);
    EXPECT_EQ(opened->catalog.key(0), "none");
  }
}

TEST(SaveSafetensorsTest, AnOverwriteLeavesOnlyTheNewFiles) {
  const auto storage = NewMemoryStorage();
  ASSERT_OK(SaveOn(3, *storage, 100));
  EXPECT_THAT(SaveOn(2, *storage, 200), FailsWith("SNAPSHOT_EXISTS"));
  CheckAll(*storage, 100);
  ASSERT_OK_AND_ASSIGN(const SaveResult again, SaveOn(2, *storage, 200, Options(true)));
  EXPECT_EQ(again.attempt, 1U);
  EXPECT_THAT(Names(*storage), ElementsAre("model-00000-of-00002.a1.safetensors",
                                           "model-00001-of-00002.a1.safetensors",
                                           "model-00002-of-00002.a1.safetensors", kSetIndex,
                                           "model.safetensors.index.json.reshard"));
  CheckAll(*storage, 200);
  const Contents before = ReadAll(*storage);
  EXPECT_THAT(SaveOn(1, *storage, 300, Options(true)), FailsWith("OTHER_LAYOUT"));
  EXPECT_EQ(ReadAll(*storage), before);

  const auto single = NewMemoryStorage();
  ASSERT_OK(SaveOn(1, *single, 100));
  ASSERT_OK(SaveOn(1, *single, 200, Options(true)));
  EXPECT_THAT(Names(*single), ElementsAre(kSingle, "model.safetensors.reshard"));
  CheckAll(*single, 200);
  EXPECT_THAT(SaveOn(2, *single, 300, Options(true)), FailsWith("OTHER_LAYOUT"));
  CheckAll(*single, 200);
}

TEST(SaveSafetensorsTest, AnOverwriteOfWhatOthersWrote) {
  const auto storage = NewMemoryStorage();
  ASSERT_OK(SaveOn(2, *storage, 100));
  ASSERT_OK(storage->Remove("model.safetensors.index.json.reshard"));
  ASSERT_OK(SaveOn(2, *storage, 200, Options(true)));
  CheckAll(*storage, 200);
  EXPECT_EQ(Names(*storage).size(), 5U) << "the older files are those that its index names";
}

TEST(SaveSafetensorsTest, OtherDirectoriesAreRefused) {
  for (const char* name : {"3.reshard", "0_0.safetensors", "0.metadata", "__0_0.distcp",
                           "other.safetensors", "diffusion_pytorch_model.safetensors.index.json"}) {
    const auto storage = NewMemoryStorage();
    PutObject(*storage, name, AsBytes("x"));
    EXPECT_THAT(SaveOn(1, *storage, 1), FailsWith("FOREIGN_DIRECTORY")) << name;
    EXPECT_THAT(Names(*storage), ElementsAre(name));
  }
  const auto storage = NewMemoryStorage();
  ASSERT_OK(SaveOn(1, *storage, 1));
  EXPECT_THAT(SaveOn(1, *storage, 1, SaveOptions()), FailsWith("FOREIGN_DIRECTORY"));
}

TEST(SaveSafetensorsTest, StraysOfACrashDoNotDisturb) {
  const auto storage = NewMemoryStorage();
  for (const char* name :
       {"model-00001-of-00002.safetensors", "model.safetensors.a2.tmp",
        "model-00009-of-00009.a3.safetensors", "model.safetensors.data.a1.tmp"}) {
    PutObject(*storage, name, AsBytes("stray"));
  }
  EXPECT_TRUE(ListCheckpoints(*storage)->empty()) << "parts of an unfinished save are none";
  ASSERT_OK_AND_ASSIGN(const SaveResult saved, SaveOn(2, *storage, 100));
  EXPECT_EQ(saved.attempt, 4U);
  EXPECT_TRUE(Holds(*storage, 100, true));
  EXPECT_TRUE(Holds(*storage, 100, false));
  EXPECT_EQ(AsText(ReadObject(*storage, "model-00001-of-00002.safetensors")), "stray");
}

TEST(SaveSafetensorsTest, RandomStatesComeBack) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 20; ++round) {
    const int ranks = 1 + static_cast<int>(random() % 4);
    const std::size_t count = 1 + random() % 12;
    std::vector<std::pair<DType, Shape>> tensors;
    for (std::size_t i = 0; i < count; ++i) {
      DType dtype = AllDTypes()[random() % AllDTypes().size()].dtype;
      if (Info(dtype).split_complex) {
        dtype = DType::kFloat32;
      }
      Shape shape;
      for (std::uint64_t a = random() % 4; a > 0; --a) {
        shape.push_back(random() % 7);
      }
      if (Info(dtype).unit_elements > 1) {
        shape.push_back(Info(dtype).unit_elements * (1 + random() % 5));
      }
      tensors.emplace_back(dtype, shape);
    }
    const auto storage = NewMemoryStorage();
    const auto state_of = [&](int rank, bool fill) {
      StateDict state = Value::Map();
      for (std::size_t i = 0; i < count; ++i) {
        const auto& [dtype, shape] = tensors[i];
        const std::vector<Box> boxes =
            NumElements(shape) == 0 ? std::vector<Box>() : std::vector<Box>{WholeBox(shape)};
        if (rank < 0 || i % static_cast<std::size_t>(ranks) == static_cast<std::size_t>(rank)) {
          state[fmt::format("t{}", i)] =
              fill ? PatternTensor(dtype, shape, boxes, i) : TargetTensor(dtype, shape, boxes);
        }
      }
      return state;
    };
    const auto results = OnRanks(ranks, [&](ProcessGroup& group) {
      return Save(state_of(group.rank(), true), *storage, group, Options());
    });
    ASSERT_OK(results[0]);
    StateDict target = state_of(-1, false);
    const auto group = SingleProcessGroup();
    ASSERT_OK(Load(target, *storage, *group));
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_EQ(CountWrong(*target.Find(fmt::format("t{}", i))->get_if<Tensor>(), i), 0U) << i;
    }
  }
}

/// One fault: what happens at the k-th operation of one rank.
struct Fault {
  FaultAction action = FaultAction::kNone;
  int rank = 0;
  std::uint64_t at = 0;
};

class SaveSafetensorsFaultTest : public ::testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  void SetUp() override { std::tie(ranks_, overwrite_) = GetParam(); }

  std::unique_ptr<Storage> Before() const {
    auto base = NewMemoryStorage();
    if (overwrite_) {
      EXPECT_OK(SaveOn(ranks_, *base, 100));
    }
    return base;
  }

  /// False: the save has no such operation.
  bool RunOne(const Fault& fault) {
    SCOPED_TRACE(fmt::format("action {} at operation {} of rank {}", static_cast<int>(fault.action),
                             fault.at, fault.rank));
    const auto base = Before();
    before_ = ReadAll(*base);
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
      return Save(StateOf(200, rank, ranks_), faulty, group, Options(overwrite_));
    });
    ExpectOneOutcome(results);
    Check(*base, results,
          fault.action == FaultAction::kFail ||
              (fault.action == FaultAction::kFailAfter && hit.load() != StorageOp::kCreate &&
               hit.load() != StorageOp::kRename));
    EXPECT_OK(SaveOn(ranks_, *base, 300, Options(true)));
    EXPECT_TRUE(Holds(*base, 300, true));
    EXPECT_TRUE(Holds(*base, 300, false));
    return happened;
  }

  void Check(Storage& base, const std::vector<Result<SaveResult>>& results, bool cleans) {
    bool any_ok = false;
    bool unknown = false;
    for (const auto& result : results) {
      any_ok = any_ok || result.ok();
      unknown = unknown || (!result.ok() && result.error().code == ErrorCode::kIndeterminate);
    }
    const Contents now = ReadAll(base);
    const bool there = now.count(ranks_ == 1 ? kSingle : kSetIndex) != 0;
    ASSERT_TRUE(there || !overwrite_) << "nothing is left";
    const bool is_new = there && (!overwrite_ || Holds(base, 200, false));
    EXPECT_EQ(there, !ListCheckpoints(base)->empty());
    if (there) {  // with the index and without, and what it says is true
      const std::uint64_t salt = is_new ? 200 : 100;
      EXPECT_TRUE(Holds(base, salt, true));
      EXPECT_TRUE(Holds(base, salt, false));
      const auto verified = Verify(base);
      ASSERT_OK(verified);
      EXPECT_TRUE(verified->whole());
    }
    if (any_ok) {
      EXPECT_TRUE(is_new);
    } else if (!unknown) {
      EXPECT_FALSE(is_new) << "every rank said that it failed, but the checkpoint is there";
      if (cleans) {
        EXPECT_EQ(now, before_) << "the failed save left files behind";
      }
    }
  }

  int ranks_ = 1;
  bool overwrite_ = false;
  Contents before_;
};

TEST_P(SaveSafetensorsFaultTest, OldOrNewAtEveryOperation) {
  for (const FaultAction action :
       {FaultAction::kFail, FaultAction::kFailAfter, FaultAction::kCrash}) {
    for (int rank = 0; rank < ranks_; ++rank) {
      std::uint64_t k = 0;
      while (RunOne({action, rank, k}) && !HasFailure()) {
        ++k;
      }
      EXPECT_GE(k, rank == 0 ? 14U : 6U) << "too few operations to be true";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, SaveSafetensorsFaultTest,
                         ::testing::Combine(::testing::Values(1, 2), ::testing::Bool()),
                         [](const auto& modes) {
                           return fmt::format("{}Ranks{}", std::get<0>(modes.param),
                                              std::get<1>(modes.param) ? "Overwrite" : "New");
                         });

}  // namespace
}  // namespace reshard::testing
