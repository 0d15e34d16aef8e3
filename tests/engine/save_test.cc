// What a save stores and refuses, on memory storage.

#include "reshard/engine/save.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "reshard/engine/snapshot.h"
#include "tests/support/states.h"

namespace reshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr DType kF32 = DType::kFloat32;

class SaveTest : public ::testing::Test {
 protected:
  /// Saves what `make(group)` gives on every rank.
  template <typename Make>
  std::vector<Result<SaveResult>> SaveAll(int ranks, const Make& make,
                                          const SaveOptions& options = {}) {
    auto results = OnRanks(
        ranks, [&](ProcessGroup& group) { return Save(make(group), *storage_, group, options); });
    ExpectOneOutcome(results);
    return results;
  }

  /// The first rank's outcome, which is everybody's.
  template <typename Make>
  Result<SaveResult> SaveFirst(int ranks, const Make& make, const SaveOptions& options = {}) {
    return SaveAll(ranks, make, options)[0];
  }

  std::uint64_t Digest(std::uint64_t id, std::string_view key) {
    const auto catalog = ReadCatalog(*storage_, id);
    EXPECT_OK(catalog);
    return *catalog->digest(*catalog->Find(key));
  }

  std::unique_ptr<Storage> storage_ = NewMemoryStorage();
};

StateDict OneFloat(float value) {
  StateDict state;
  state["w"] = FloatTensor({value});
  return state;
}

TEST_F(SaveTest, ReplicasAreStoredOnceShardsByEach) {
  const Shape shape = {1000};
  const auto results = SaveAll(2, [&](ProcessGroup& group) {
    StateDict state;
    state["replicated"] = PatternTensor(kF32, shape, {WholeBox(shape)}, 1);
    state["sharded"] = PatternTensor(kF32, shape, {CutBox(shape, 0, group.rank(), 2)}, 2);
    return state;
  });
  ASSERT_OK(results[0]);
  EXPECT_EQ(results[0]->bytes_total, 8000U);
  const auto catalog = ReadCatalog(*storage_, 0);
  ASSERT_OK(catalog);
  EXPECT_EQ(catalog->num_chunks(*catalog->Find("replicated")), 1U);
  EXPECT_EQ(catalog->num_chunks(*catalog->Find("sharded")), 2U);
  std::uint64_t payload = 0;
  for (const FileEntry& file : catalog->files()) {
    payload += file.size - file.payload_offset;
  }
  EXPECT_EQ(payload, 8000U);
  EXPECT_EQ(results[0]->bytes_written + results[1]->bytes_written,
            catalog->files()[0].size + catalog->files()[1].size);
}

TEST_F(SaveTest, NextIdFollowsTheLargestCommitted) {
  EXPECT_EQ(SaveAll(2, [](ProcessGroup&) { return OneFloat(1); })[1]->unique_id, 0U);
  SaveOptions options;
  options.unique_id = 41;
  EXPECT_EQ(SaveAll(
                2, [](ProcessGroup&) { return OneFloat(2); }, options)[1]
                ->unique_id,
            41U);
  EXPECT_EQ(SaveAll(2, [](ProcessGroup&) { return OneFloat(3); })[1]->unique_id, 42U);
  // Neither data files nor claims of a save that died count.
  PutObject(*storage_, "0_99.safetensors", Bytes(3));
  PutObject(*storage_, "98.a0.reshard.tmp", Bytes(3));
  EXPECT_EQ(SaveAll(2, [](ProcessGroup&) { return OneFloat(4); })[1]->unique_id, 43U);
  // A damaged commit record does: its id is taken.
  PutObject(*storage_, "60.reshard", Bytes(3));
  EXPECT_EQ(SaveAll(2, [](ProcessGroup&) { return OneFloat(5); })[1]->unique_id, 61U);
}

TEST_F(SaveTest, LargestIdOfAllHasNoNext) {
  PutObject(*storage_, "18446744073709551615.reshard", Bytes(3));
  const auto results = SaveAll(2, [](ProcessGroup&) { return OneFloat(5); });
  EXPECT_THAT(results[0], FailsWith("SNAPSHOT_EXISTS"));
}

TEST_F(SaveTest, CommittedIdIsRefusedWithoutOverwrite) {
  SaveOptions options;
  options.unique_id = 5;
  ASSERT_OK(SaveFirst(
      2, [](ProcessGroup&) { return OneFloat(1); }, options));
  const Contents before = ReadAll(*storage_);
  const auto refused = SaveAll(
      2, [](ProcessGroup&) { return OneFloat(2); }, options);
  ASSERT_THAT(refused[1], FailsWith("SNAPSHOT_EXISTS"));
  EXPECT_EQ(refused[1].error().code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(ReadAll(*storage_), before);
  options.overwrite = true;
  const auto over = SaveAll(
      2, [](ProcessGroup&) { return OneFloat(2); }, options);
  ASSERT_OK(over[0]);
  EXPECT_EQ(over[0]->attempt, 1U);
  // Only the new files are left.
  EXPECT_EQ(Names(*storage_).size(), 2U);
  EXPECT_EQ(Names(*storage_)[1], "5.reshard");
}

TEST_F(SaveTest, OverwriteOfADamagedRecordAndOfNothing) {
  SaveOptions options;
  options.unique_id = 3;
  options.overwrite = true;
  ASSERT_OK(SaveFirst(
      2, [](ProcessGroup&) { return OneFloat(1); }, options));
  PutObject(*storage_, "3.reshard", Bytes(100));
  ASSERT_OK(SaveFirst(
      2, [](ProcessGroup&) { return OneFloat(2); }, options));
  StateDict target = OneFloat(0);
  const auto group = SingleProcessGroup();
  ASSERT_OK(Load(target, *storage_, *group));
  EXPECT_THAT(Floats(*target.Find("w")->get_if<Tensor>()), ElementsAre(2));
}

TEST_F(SaveTest, EqualInputGivesEqualBytes) {
  const auto make = [](ProcessGroup& group) {
    StateDict state;
    for (int i = 0; i < 16; ++i) {
      const Shape shape = {40, 30};
      state[fmt::format("k{}", i * 7 % 16)] =
          PatternTensor(kF32, shape, {CutBox(shape, 0, group.rank() / 2, 2)}, 3);
      state[fmt::format("o{}", i)] = i;
    }
    return state;
  };
  ASSERT_OK(SaveFirst(4, make));
  const Contents first = ReadAll(*storage_);
  storage_ = NewMemoryStorage();
  ASSERT_OK(SaveFirst(4, make));
  EXPECT_EQ(ReadAll(*storage_), first);
}

TEST_F(SaveTest, ForeignDirectoryIsRefused) {
  for (const char* name :
       {"0.metadata", "__0_0.distcp", "model.safetensors.index.json", "model.safetensors"}) {
    storage_ = NewMemoryStorage();
    PutObject(*storage_, name, Bytes(3));
    const auto results = SaveAll(2, [](ProcessGroup&) { return OneFloat(1); });
    EXPECT_THAT(results[1], FailsWith("FOREIGN_DIRECTORY")) << name;
    EXPECT_THAT(results[1].error().message, HasSubstr(name));
    EXPECT_EQ(Names(*storage_).size(), 1U);
  }
}

TEST_F(SaveTest, AnyCoordinatorOfTheGroupAndNoOther) {
  SaveOptions options;
  options.coordinator_rank = 2;
  ASSERT_OK(SaveFirst(
      3, [](ProcessGroup&) { return OneFloat(1); }, options));
  EXPECT_EQ(ReadCatalog(*storage_, 0)->info().coordinator_rank, 2U);
  for (const int outside : {3, -1}) {
    options.coordinator_rank = outside;
    EXPECT_THAT(SaveAll(
                    3, [](ProcessGroup&) { return OneFloat(1); }, options)[0],
                FailsWith("BAD_COORDINATOR"));
    RunRanks(3, [&](ProcessGroup& group) {
      StateDict target = OneFloat(0);
      LoadOptions load;
      load.coordinator_rank = outside;
      EXPECT_THAT(Load(target, *storage_, group, load), FailsWith("BAD_COORDINATOR"));
      load.coordinator_rank = 1;
      EXPECT_OK(Load(target, *storage_, group, load));
    });
  }
}

TEST_F(SaveTest, SubgroupKeepsGlobalRanksInNames) {
  RunRanks(4, [&](ProcessGroup& world) {
    const std::vector<int> odd = {3, 1};
    auto made = world.Subgroup(odd);
    ASSERT_OK(made);
    if (*made == nullptr) {
      return;
    }
    ProcessGroup& group = **made;
    const Shape shape = {10};
    SaveOptions options;
    options.coordinator_rank = 1;
    StateDict state;
    state["w"] = PatternTensor(kF32, shape, {CutBox(shape, 0, group.rank(), 2)}, 1);
    state["rng"] = PerRank(Value(group.global_rank()));
    const auto saved = Save(state, *storage_, group, options);
    ASSERT_OK(saved);
    EXPECT_EQ(saved->file_name, std::to_string(group.global_rank()) + "_0.safetensors");
    options.coordinator_rank = 0;  // in the world, not in the group
    EXPECT_THAT(Save(state, *storage_, group, options), FailsWith("BAD_COORDINATOR"));
    StateDict target;
    target["w"] = TargetTensor(kF32, shape, {WholeBox(shape)});
    target["rng"] = PerRank(Value(-1));
    LoadOptions load;
    load.coordinator_rank = 3;
    ASSERT_OK(Load(target, *storage_, group, load));
    EXPECT_EQ(CountWrong(*target.Find("w")->get_if<Tensor>(), 1), 0U);
    EXPECT_EQ(target.Find("rng")->get_if<PerRank>()->value(), Value(group.global_rank()));
  });
  EXPECT_THAT(Names(*storage_), ElementsAre("0.reshard", "1_0.safetensors", "3_0.safetensors"));
}

TEST_F(SaveTest, PlanCacheIsUsedWhenEveryRankDescribesTheSame) {
  const Shape shape = {100};
  RunRanks(3, [&](ProcessGroup& group) {
    SavePlanCache cache;
    SaveOptions options;
    options.plan_cache = &cache;
    Tensor tensor = PatternTensor(kF32, shape, {CutBox(shape, 0, group.rank(), 3)}, 1);
    const auto save = [&](std::uint64_t salt) {
      FillPattern(tensor, salt);
      StateDict state;
      state["w"] = tensor;
      state["step"] = static_cast<int>(salt);
      EXPECT_OK(Save(state, *storage_, group, options));
      StateDict target;
      target["w"] = TargetTensor(kF32, shape, {WholeBox(shape)});
      target["step"] = 0;
      EXPECT_OK(Load(target, *storage_, group));
      EXPECT_EQ(CountWrong(*target.Find("w")->get_if<Tensor>(), salt), 0U);
      EXPECT_EQ(target.Find("step")->get_if<std::int64_t>()[0], static_cast<int>(salt));
    };
    save(1);
    save(2);
    EXPECT_EQ(cache.hits(), group.rank() == 0 ? 1U : 0U);
    save(3);
    EXPECT_EQ(cache.hits(), group.rank() == 0 ? 2U : 0U);
    // Another layout: a miss, and right.
    tensor = PatternTensor(kF32, shape, {CutBox(shape, 0, 2 - group.rank(), 3)}, 1);
    save(4);
    EXPECT_EQ(cache.hits(), group.rank() == 0 ? 2U : 0U);
    // One rank's object changes its kind into a tensor that the plan knows elsewhere: found
    // although descriptions of tensors may be cached.
    StateDict state;
    state["w"] = tensor;
    state["step"] = group.rank() == 1 ? 7 : 8;
    EXPECT_THAT(Save(state, *storage_, group, options), FailsWith("OBJECT_MISMATCH"));
  });
}

TEST_F(SaveTest, DisagreementsAreErrorsOnEveryRank) {
  const Shape shape = {12};

  struct Case {
    const char* reason;
    std::function<void(StateDict&, int)> change;
  };

  const std::vector<Case> cases = {
      {"OBJECT_MISMATCH", [](StateDict& s, int rank) { s["o"] = rank == 2 ? 1 : 0; }},
      {"KEY_KIND",
       [](StateDict& s, int rank) { s["k"] = rank == 1 ? Value(1) : Value(FloatTensor({1})); }},
      {"DTYPE_MISMATCH",
       [&](StateDict& s, int rank) {
         s["w"] =
             TargetTensor(rank == 1 ? DType::kInt32 : kF32, shape, {CutBox(shape, 0, rank, 3)});
       }},
      {"SHAPE_MISMATCH",
       [&](StateDict& s, int rank) {
         const Shape other = {rank == 2 ? std::uint64_t{13} : 12};
         s["w"] = TargetTensor(kF32, other, {CutBox(shape, 0, rank, 3)});
       }},
      {"COVERAGE",
       [&](StateDict& s, int rank) {
         s["w"] = rank == 1 ? Tensor::Absent(kF32, shape)
                            : TargetTensor(kF32, shape, {CutBox(shape, 0, rank, 3)});
       }},
      {"OVERLAP",
       [&](StateDict& s, int rank) {
         Box box = CutBox(shape, 0, rank, 3);
         box.extent[0] += rank == 0 ? 1 : 0;
         s["w"] = TargetTensor(kF32, shape, {box});
       }},
      {"MISSING_PER_RANK",
       [](StateDict& s, int rank) {
         if (rank != 1) {
           s["p"] = PerRank(Value(rank));
         }
       }},
      {"SINK_ON_SAVE",
       [&](StateDict& s, int rank) {
         if (rank == 2) {
           s["w"].get_if<Tensor>()->shards[0].sink = [](std::uint64_t, ByteSpan) {
             return OkStatus();
           };
         }
       }},
      {"DUPLICATE_FLAT_KEY",
       [](StateDict& s, int rank) {
         if (rank == 2) {
           s["a"]["b"] = 1;
           s["a.b"] = 2;
         }
       }},
  };
  for (const Case& c : cases) {
    const auto results = SaveAll(3, [&](ProcessGroup& group) {
      StateDict state;
      state["w"] = TargetTensor(kF32, shape, {CutBox(shape, 0, group.rank(), 3)});
      c.change(state, group.rank());
      return state;
    });
    EXPECT_THAT(results[0], FailsWith(c.reason)) << results[0].error().ToString();
    EXPECT_EQ(results[0].error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(Names(*storage_), ElementsAre()) << c.reason;
  }
}

TEST_F(SaveTest, KeysOfOneRankOnlyAreStored) {
  ASSERT_OK(SaveFirst(3, [](ProcessGroup& group) {
    StateDict state;
    if (group.rank() == 1) {
      state["only"] = FloatTensor({5});
      state["note"] = "here";
    }
    return state;
  }));
  StateDict target;
  target["only"] = FloatTensor({0});
  target["note"] = "";
  const auto group = SingleProcessGroup();
  ASSERT_OK(Load(target, *storage_, *group));
  EXPECT_THAT(Floats(*target.Find("only")->get_if<Tensor>()), ElementsAre(5));
  EXPECT_EQ(*target.Find("note"), Value("here"));
}

TEST_F(SaveTest, SharedMemoryIsStoredOnceOverlapsTwice) {
  const auto results = SaveAll(2, [](ProcessGroup&) {
    StateDict state;
    const Tensor tensor = FloatTensor({1, 2, 3, 4});
    state["a"] = tensor;
    state["b"] = tensor;
    Tensor part = FloatTensor({0, 0});
    part.shards[0].view.data = tensor.shards[0].view.data + 4;
    part.shards[0].owner = tensor.shards[0].owner;
    state["part"] = part;
    return state;
  });
  ASSERT_OK(results[0]);
  const auto catalog = ReadCatalog(*storage_, 0);
  std::uint64_t payload = 0;
  for (const FileEntry& file : catalog->files()) {
    payload += file.size - file.payload_offset;
  }
  EXPECT_EQ(payload, 24U) << "a and b share 16 bytes, part has its own 8";
  StateDict target;
  target["a"] = FloatTensor({0, 0, 0, 0});
  target["b"] = FloatTensor({0, 0, 0, 0});
  target["part"] = FloatTensor({0, 0});
  const auto group = SingleProcessGroup();
  ASSERT_OK(Load(target, *storage_, *group));
  EXPECT_THAT(Floats(*target.Find("a")->get_if<Tensor>()), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(Floats(*target.Find("b")->get_if<Tensor>()), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(Floats(*target.Find("part")->get_if<Tensor>()), ElementsAre(2, 3));
  EXPECT_EQ(Digest(0, "a"), Digest(0, "b"));
}

TEST_F(SaveTest, SharedMemoryOnOneRankAloneIsNoAlias) {
  ASSERT_OK(SaveFirst(2, [](ProcessGroup& group) {
    const Shape shape = {2};
    StateDict state;
    Tensor a = PatternTensor(kF32, shape, {CutBox(shape, 0, group.rank(), 2)}, 1);
    state["a"] = a;
    state["b"] = group.rank() == 0 ? a : PatternTensor(kF32, shape, {CutBox(shape, 0, 1, 2)}, 2);
    return state;
  }));
  StateDict target;
  target["b"] = TargetTensor(kF32, {2}, {WholeBox(Shape{2})});
  const auto group = SingleProcessGroup();
  ASSERT_OK(Load(target, *storage_, *group));
  const std::byte* data = target.Find("b")->get_if<Tensor>()->shards[0].view.data;
  EXPECT_EQ(data[0], PatternByte(1, 0));
  EXPECT_EQ(data[4], PatternByte(2, 4));
}

TEST_F(SaveTest, EmptyStatesAndObjectsAlone) {
  ASSERT_OK(SaveFirst(3, [](ProcessGroup&) { return StateDict(Value::Map()); }));
  EXPECT_THAT(Names(*storage_), ElementsAre("0.reshard"));
  ASSERT_OK(SaveFirst(3, [](ProcessGroup&) {
    StateDict state;
    state["big"] = Bytes(5 << 20, std::byte{3});
    state["not utf-8"] = std::string("\xff\xfe\0z", 4);
    state["\xff\xfe"] = 1;
    state["empty"] = Value::List();
    return state;
  }));
  StateDict target;
  target["big"] = Bytes();
  target["not utf-8"] = "";
  target["\xff\xfe"] = 0;
  target["empty"] = Value();
  const auto group = SingleProcessGroup();
  ASSERT_OK(Load(target, *storage_, *group));
  EXPECT_EQ(target.Find("big")->get_if<Bytes>()->size(), 5U << 20);
  EXPECT_EQ(*target.Find("not utf-8"), Value(std::string("\xff\xfe\0z", 4)));
  EXPECT_EQ(*target.Find("\xff\xfe"), Value(1));
}

TEST_F(SaveTest, StridedAndBroadcastMemoryIsGathered) {
  const Shape shape = {3, 4};
  float row[4] = {1, 2, 3, 4};
  ASSERT_OK(SaveFirst(1, [&](ProcessGroup&) {
    StateDict state;
    Tensor tensor = Tensor::Whole(DenseView(reinterpret_cast<std::byte*>(row), kF32, shape));
    tensor.shards[0].view.strides = {0, 1};  // an expanded row
    state["w"] = tensor;
    Tensor reversed = Tensor::Whole(DenseView(reinterpret_cast<std::byte*>(row + 3), kF32, {4}));
    reversed.shards[0].view.strides = {-1};
    state["r"] = reversed;
    return state;
  }));
  StateDict target;
  target["w"] = TargetTensor(kF32, shape, {WholeBox(shape)});
  target["r"] = FloatTensor({0, 0, 0, 0});
  const auto group = SingleProcessGroup();
  ASSERT_OK(Load(target, *storage_, *group));
  EXPECT_THAT(Floats(*target.Find("w")->get_if<Tensor>()),
              ElementsAre(1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4));
  EXPECT_THAT(Floats(*target.Find("r")->get_if<Tensor>()), ElementsAre(4, 3, 2, 1));
}

}  // namespace
}  // namespace reshard::testing
