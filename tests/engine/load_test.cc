// What a load does with keys, dtypes, shapes, per-rank values, names and sinks.

#include "reshard/engine/load.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/states.h"

namespace reshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr DType kF32 = DType::kFloat32;

class LoadTest : public ::testing::Test {
 protected:
  void SaveState(const StateDict& state) { ASSERT_OK(Save(state, *storage_, *group_)); }

  Result<LoadReport> LoadInto(StateDict& state, const LoadOptions& options = {}) {
    return Load(state, *storage_, *group_, options);
  }

  static std::vector<float> At(const StateDict& state, std::string_view key) {
    return Floats(*state.Find(key)->get_if<Tensor>());
  }

  std::unique_ptr<Storage> storage_ = NewMemoryStorage();
  std::unique_ptr<ProcessGroup> group_ = SingleProcessGroup();
};

TEST_F(LoadTest, StrictListsEveryMissingKeyAndTouchesNothing) {
  StateDict saved;
  saved["a"] = FloatTensor({1, 2});
  saved["b"] = FloatTensor({3});
  saved["step"] = 7;
  SaveState(saved);
  StateDict target;
  target["a"] = FloatTensor({-1, -1});
  target["nope"] = FloatTensor({-1});
  target["step"] = 0;
  target["gone"] = "old";
  const auto report = LoadInto(target);
  ASSERT_THAT(report, FailsWith("MISSING_KEYS"));
  EXPECT_EQ(report.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(report.error().message, HasSubstr("'nope'"));
  EXPECT_THAT(report.error().message, HasSubstr("'gone'"));
  EXPECT_THAT(At(target, "a"), ElementsAre(-1, -1));
  EXPECT_EQ(*target.Find("step")->get_if<std::int64_t>(), 0);
}

TEST_F(LoadTest, NonStrictLoadsTheRestAndReportsAllLists) {
  StateDict saved;
  saved["a"] = FloatTensor({1, 2});
  saved["b"] = FloatTensor({3});
  saved["c"] = FloatTensor({4, 5});
  saved["opt.master_weights.w"] = FloatTensor({6});
  saved["step"] = 7;
  SaveState(saved);
  StateDict target;
  target["a"] = FloatTensor({-1, -1});
  target["c"] = FloatTensor({-1});
  target["nope"] = FloatTensor({-1});
  target["opt.w_fp32_master_0"] = FloatTensor({-1});
  target["step"] = FloatTensor({-1});
  LoadOptions options;
  options.strict = false;
  const auto report = LoadInto(target, options);
  ASSERT_OK(report);
  EXPECT_THAT(At(target, "a"), ElementsAre(1, 2));
  EXPECT_THAT(At(target, "c"), ElementsAre(-1));
  EXPECT_THAT(At(target, "nope"), ElementsAre(-1));
  EXPECT_THAT(At(target, "opt.w_fp32_master_0"), ElementsAre(6));
  EXPECT_THAT(report->missing, ElementsAre("nope"));
  EXPECT_THAT(report->unexpected, ElementsAre("b"));
  ASSERT_EQ(report->mismatched.size(), 2U);
  EXPECT_EQ(report->mismatched[0].key, "c");
  EXPECT_THAT(report->mismatched[0].what, HasSubstr("(2)"));
  EXPECT_EQ(report->mismatched[1].key, "step");
  EXPECT_THAT(report->renamed, ElementsAre(Pair("opt.w_fp32_master_0", "opt.master_weights.w")));
}

TEST_F(LoadTest, NoKeyPresentIsAnErrorEvenIfNothingElseIsWrong) {
  StateDict saved;
  saved["a"] = FloatTensor({1});
  SaveState(saved);
  StateDict target;
  target["x"] = FloatTensor({0});
  target["y"] = FloatTensor({0});
  EXPECT_THAT(LoadInto(target), FailsWith("MISSING_KEYS"));
}

TEST_F(LoadTest, EmptyDirectoryAndUnknownIdSayWhatIsThere) {
  StateDict target;
  target["x"] = 1;
  EXPECT_THAT(LoadInto(target), FailsWith("NO_SNAPSHOT"));
  SaveState(target);
  LoadOptions options;
  options.unique_id = 10;
  EXPECT_THAT(LoadInto(target, options), FailsWith("NO_SNAPSHOT"));
  options.unique_id = 0;
  EXPECT_OK(LoadInto(target, options));
}

TEST_F(LoadTest, DTypeIsExactUnlessCastIsAsked) {
  StateDict saved;
  saved["w"] = FloatTensor({1.5F, 1e30F, -2.25F, std::numeric_limits<float>::infinity()});
  SaveState(saved);
  StateDict target;
  target["w"] = TargetTensor(DType::kFloat16, {4}, {WholeBox(Shape{4})});
  const auto exact = LoadInto(target);
  ASSERT_THAT(exact, FailsWith("MISMATCH"));
  EXPECT_THAT(exact.error().message, HasSubstr("float32"));
  EXPECT_THAT(exact.error().message, HasSubstr("float16"));
  LoadOptions options;
  options.dtype = DTypePolicy::kCast;
  const auto cast = LoadInto(target, options);
  ASSERT_OK(cast);
  EXPECT_EQ(cast->cast_overflows, 1U) << "1e30 became infinite, the infinity was one before";
  const auto* half = reinterpret_cast<const std::uint16_t*>(
      target.Find("w")->get_if<Tensor>()->shards[0].view.data);
  EXPECT_EQ(half[0], 0x3e00);
  EXPECT_EQ(half[1], 0x7c00);
  EXPECT_EQ(half[2], 0xc080);
  EXPECT_EQ(half[3], 0x7c00);
}

TEST_F(LoadTest, CastThatLosesMeaningIsAMismatch) {
  StateDict saved;
  saved["w"] = FloatTensor({1.5F});
  SaveState(saved);
  StateDict target;
  target["w"] = TargetTensor(DType::kInt32, {1}, {WholeBox(Shape{1})});
  LoadOptions options;
  options.dtype = DTypePolicy::kCast;
  EXPECT_THAT(LoadInto(target, options), FailsWith("MISMATCH"));
}

TEST_F(LoadTest, LargerTargetKeepsWhatLiesBeyond) {
  StateDict saved;
  saved["w"] = PatternTensor(kF32, {100, 4}, {WholeBox(Shape{100, 4})}, 5);
  SaveState(saved);
  StateDict target;
  target["w"] = TargetTensor(kF32, {128, 4}, {WholeBox(Shape{128, 4})});
  EXPECT_THAT(LoadInto(target), FailsWith("MISMATCH"));
  LoadOptions options;
  options.shape = ShapePolicy::kAllowLarger;
  ASSERT_OK(LoadInto(target, options));
  const Tensor& tensor = *target.Find("w")->get_if<Tensor>();
  const std::byte* data = tensor.shards[0].view.data;
  for (std::uint64_t at = 0; at < 128 * 16; ++at) {
    ASSERT_EQ(data[at], at < 1600 ? PatternByte(5, at) : std::byte{0xee}) << at;
  }
  StateDict smaller;
  smaller["w"] = TargetTensor(kF32, {99, 4}, {WholeBox(Shape{99, 4})});
  EXPECT_THAT(LoadInto(smaller, options), FailsWith("MISMATCH"));
  StateDict other_axes;
  other_axes["w"] = TargetTensor(kF32, {100, 4, 1}, {WholeBox(Shape{100, 4, 1})});
  EXPECT_THAT(LoadInto(other_axes, options), FailsWith("MISMATCH"));
}

TEST_F(LoadTest, ShardThatLiesBeyondTheStoredPartWantsNothing) {
  StateDict saved;
  saved["w"] = PatternTensor(kF32, {10, 4}, {WholeBox(Shape{10, 4})}, 5);
  SaveState(saved);
  LoadOptions options;
  options.shape = ShapePolicy::kAllowLarger;
  RunRanks(4, [&](ProcessGroup& group) {  // 16 rows: 4 4 2+2 none
    StateDict target;
    target["w"] = TargetTensor(kF32, {16, 4}, {CutBox({16, 4}, 0, group.rank(), 4)});
    const auto report = Load(target, *storage_, group, options);
    ASSERT_OK(report);
    const std::uint64_t rows = group.rank() < 2 ? 4 : group.rank() == 2 ? 2 : 0;
    EXPECT_EQ(report->bytes_needed, rows * 16);
  });
}

TEST_F(LoadTest, RenameRuleComesBeforeMasterWeights) {
  StateDict saved;
  saved["new.w"] = FloatTensor({1});
  saved["x.master_weights.w"] = FloatTensor({2});
  saved["step"] = 3;
  SaveState(saved);
  StateDict target;
  target["old.w"] = FloatTensor({0});
  target["x.w_fp32_master_0"] = FloatTensor({0});
  target["count"] = 0;
  LoadOptions options;
  options.rename = [](std::string_view key) -> std::optional<std::string> {
    if (key == "old.w") {
      return "new.w";
    }
    if (key == "count") {
      return "step";
    }
    return std::nullopt;
  };
  const auto report = LoadInto(target, options);
  ASSERT_OK(report);
  EXPECT_THAT(At(target, "old.w"), ElementsAre(1));
  EXPECT_THAT(At(target, "x.w_fp32_master_0"), ElementsAre(2));
  EXPECT_EQ(*target.Find("count")->get_if<std::int64_t>(), 3);
  EXPECT_EQ(report->renamed.size(), 3U);
  EXPECT_THAT(report->unexpected, IsEmpty());
}

TEST_F(LoadTest, MasterWeightsAreFoundBothWaysAndForBothNames) {
  StateDict saved;
  saved["opt"]["master_weights"]["linear_0.w_0"] = FloatTensor({1});
  saved["opt"]["b_0_fp32_master_0"] = FloatTensor({2});
  SaveState(saved);
  StateDict target;
  target["opt"]["linear_0.w_0_fp32_master_0"] = FloatTensor({0});
  target["opt"]["master_weights"]["linear_0.w_0"] = FloatTensor({0});  // both names at once
  target["opt"]["master_weights"]["b_0"] = FloatTensor({0});
  ASSERT_OK(LoadInto(target));
  EXPECT_THAT(At(*target.Find("opt"), "linear_0.w_0_fp32_master_0"), ElementsAre(1));
  EXPECT_THAT(At(*target.Find("opt")->Find("master_weights"), "linear_0.w_0"), ElementsAre(1));
  EXPECT_THAT(At(*target.Find("opt")->Find("master_weights"), "b_0"), ElementsAre(2));
  // Another missing key after one that was resolved is still missing, and named.
  target["unrelated"] = FloatTensor({0});
  const auto report = LoadInto(target);
  ASSERT_THAT(report, FailsWith("MISSING_KEYS"));
  EXPECT_THAT(report.error().message, HasSubstr("'unrelated'"));
  EXPECT_THAT(report.error().message, ::testing::Not(HasSubstr("fp32_master")));
  LoadOptions off;
  off.mw_name_compatibility = false;
  EXPECT_THAT(LoadInto(target, off), FailsWith("MISSING_KEYS"));
}

void SavePerRank(Storage& storage, int ranks) {
  RunRanks(ranks, [&](ProcessGroup& group) {
    StateDict state;
    state["rng"] = PerRank(Value(group.rank() * 100));
    state["step"] = 1;
    ASSERT_OK(Save(state, storage, group));
  });
}

std::int64_t PerRankInt(const StateDict& state) {
  return *state.Find("rng")->get_if<PerRank>()->value().get_if<std::int64_t>();
}

TEST_F(LoadTest, PerRankValuesGoBackToTheirRanks) {
  SavePerRank(*storage_, 4);
  RunRanks(4, [&](ProcessGroup& group) {
    StateDict state;
    state["rng"] = PerRank(Value(-1));
    state["step"] = 0;
    const auto report = Load(state, *storage_, group);
    ASSERT_OK(report);
    EXPECT_EQ(PerRankInt(state), group.rank() * 100);
    EXPECT_THAT(report->unexpected, IsEmpty());
  });
}

TEST_F(LoadTest, PerRankValuesOnAnotherNumberOfRanksAskForAPolicy) {
  SavePerRank(*storage_, 4);
  RunRanks(2, [&](ProcessGroup& group) {
    StateDict state;
    state["rng"] = PerRank(Value(-1));
    state["step"] = 0;
    const auto exact = Load(state, *storage_, group);
    ASSERT_THAT(exact, FailsWith("MISMATCH"));
    EXPECT_THAT(exact.error().message, HasSubstr("'rng'"));
    EXPECT_THAT(exact.error().message, HasSubstr("4 ranks"));
    EXPECT_THAT(exact.error().message, HasSubstr("by 2"));
    EXPECT_EQ(PerRankInt(state), -1);
    LoadOptions options;
    options.per_rank = PerRankPolicy::kSameRank;
    const auto same = Load(state, *storage_, group, options);
    ASSERT_OK(same);
    EXPECT_EQ(PerRankInt(state), group.rank() * 100);
    EXPECT_THAT(same->unexpected, ElementsAre("rng (rank 2)", "rng (rank 3)"));
    options.per_rank = PerRankPolicy::kAll;
    const auto all = Load(state, *storage_, group, options);
    ASSERT_OK(all);
    const auto* list = state.Find("rng")->get_if<PerRank>()->value().get_if<Value::List>();
    ASSERT_NE(list, nullptr);
    ASSERT_EQ(list->size(), 4U);
    EXPECT_EQ(*(*list)[3].get_if<std::int64_t>(), 300);
    EXPECT_THAT(all->unexpected, IsEmpty());
  });
}

TEST_F(LoadTest, SameRankPolicyOnMoreRanksIsMissingOnTheNewOnes) {
  SavePerRank(*storage_, 2);
  RunRanks(3, [&](ProcessGroup& group) {
    StateDict state;
    state["rng"] = PerRank(Value(-1));
    LoadOptions options;
    options.per_rank = PerRankPolicy::kSameRank;
    options.strict = false;
    const auto report = Load(state, *storage_, group, options);
    ASSERT_OK(report);
    EXPECT_EQ(PerRankInt(state), group.rank() < 2 ? group.rank() * 100 : -1);
    EXPECT_EQ(report->missing.size(), group.rank() < 2 ? 0U : 1U);
  });
}

/// Collects what a sink gets, checking the contract.
struct SinkLog {
  Bytes bytes;
  std::uint64_t next = 0;
  std::uint64_t largest = 0;
  bool in_order = true;

  TensorSink Sink(std::uint64_t size) {
    bytes.assign(size, std::byte{0xee});
    return [this](std::uint64_t offset, ByteSpan data) -> Status {
      in_order = in_order && offset >= next && offset + data.size() <= bytes.size();
      next = offset + data.size();
      largest = std::max<std::uint64_t>(largest, data.size());
      std::copy(data.begin(), data.end(), bytes.begin() + static_cast<std::ptrdiff_t>(offset));
      return OkStatus();
    };
  }
};

TEST_F(LoadTest, SinksGetEachByteOnceInOrderWithinTheMemoryBound) {
  const Shape shape = {300, 7000};  // 8.4 MB
  StateDict saved;
  saved["w"] = PatternTensor(kF32, shape, {WholeBox(shape)}, 9);
  SaveState(saved);
  for (const Transfer transfer : {Transfer::kDirect, Transfer::kExchange}) {
    for (const std::size_t axis : {0, 1}) {
      RunRanks(2, [&](ProcessGroup& group) {
        const Box box = CutBox(shape, axis, group.rank(), 2);
        SinkLog log;
        StateDict target;
        Tensor tensor{kF32, shape, {}};
        tensor.shards.push_back({box, {}, log.Sink(NumBytes(box, kF32)), {}});
        target["w"] = std::move(tensor);
        LoadOptions options;
        options.transfer = transfer;
        options.memory_bytes = 2 << 20;
        ASSERT_OK(Load(target, *storage_, group, options));
        EXPECT_TRUE(log.in_order);
        EXPECT_EQ(log.next, log.bytes.size());
        EXPECT_LE(log.largest, options.memory_bytes / 4);
        Tensor seen{kF32, shape, {}};
        seen.shards.push_back({box, DenseView(log.bytes.data(), kF32, box.extent), {}, {}});
        EXPECT_EQ(CountWrong(seen, 9), 0U);
      });
    }
  }
}

TEST_F(LoadTest, SinkWithCastAndLargerShape) {
  StateDict saved;
  saved["w"] = FloatTensor({1, 2, 3});
  SaveState(saved);
  SinkLog log;
  StateDict target;
  Tensor tensor{DType::kFloat64, {5}, {}};
  tensor.shards.push_back({{{1}, {4}}, {}, log.Sink(32), {}});
  target["w"] = std::move(tensor);
  LoadOptions options;
  options.dtype = DTypePolicy::kCast;
  options.shape = ShapePolicy::kAllowLarger;
  const auto report = LoadInto(target, options);
  ASSERT_OK(report);
  EXPECT_EQ(log.next, 16U);
  double values[2];
  std::memcpy(values, log.bytes.data(), sizeof(values));
  EXPECT_EQ(values[0], 2);
  EXPECT_EQ(values[1], 3);
}

TEST_F(LoadTest, ClippedSinkOfTwoAxesGetsRunsOfTheStoredPart) {
  StateDict saved;
  saved["w"] = PatternTensor(kF32, {3, 2}, {WholeBox(Shape{3, 2})}, 4);
  SaveState(saved);
  SinkLog log;
  StateDict target;
  Tensor tensor{kF32, {4, 5}, {}};
  tensor.shards.push_back({WholeBox(Shape{4, 5}), {}, log.Sink(80), {}});
  target["w"] = std::move(tensor);
  LoadOptions options;
  options.shape = ShapePolicy::kAllowLarger;
  ASSERT_OK(LoadInto(target, options));
  EXPECT_TRUE(log.in_order);
  for (std::uint64_t row = 0; row < 4; ++row) {
    for (std::uint64_t at = 0; at < 20; ++at) {
      const bool stored = row < 3 && at < 8;
      EXPECT_EQ(log.bytes[row * 20 + at], stored ? PatternByte(4, row * 8 + at) : std::byte{0xee});
    }
  }
}

TEST_F(LoadTest, StridedAndOverlongTargetsAndTwoTargetsOfOneKey) {
  const Shape shape = {40, 50};
  StateDict saved;
  saved["w"] = PatternTensor(kF32, shape, {WholeBox(shape)}, 3);
  SaveState(saved);
  StateDict target;
  Tensor strided{kF32, shape, {}};
  strided.shards.push_back(
      AllocateShard(kF32, WholeBox(shape), {1, 0}, 3));  // column-major, padded
  target["w"] = std::move(strided);
  target["again"] = TargetTensor(kF32, shape, {CutBox(shape, 1, 1, 3), CutBox(shape, 1, 0, 3)});
  LoadOptions options;
  options.rename = [](std::string_view) { return std::optional<std::string>("w"); };
  ASSERT_OK(LoadInto(target, options));
  EXPECT_EQ(CountWrong(*target.Find("w")->get_if<Tensor>(), 3), 0U);
  EXPECT_EQ(CountWrong(*target.Find("again")->get_if<Tensor>(), 3), 0U);
}

TEST_F(LoadTest, ZeroElementsAbsentTensorsAndScalarsRoundTrip) {
  StateDict saved;
  saved["first"] = TargetTensor(kF32, {0, 4}, {WholeBox(Shape{0, 4})});
  saved["middle"] = PatternTensor(kF32, {6}, {WholeBox(Shape{6})}, 1);
  saved["scalar"] = PatternTensor(DType::kInt64, {}, {WholeBox(Shape{})}, 2);
  saved["zero"] = TargetTensor(DType::kBool, {3, 0}, {WholeBox(Shape{3, 0})});
  SaveState(saved);
  RunRanks(4, [&](ProcessGroup& group) {  // 6 over 4: 2 2 2 0
    StateDict target;
    target["first"] = TargetTensor(kF32, {0, 4}, {WholeBox(Shape{0, 4})});
    target["middle"] = group.rank() == 3
                           ? Tensor::Absent(kF32, {6})
                           : TargetTensor(kF32, {6}, {CutBox({6}, 0, group.rank(), 3)});
    target["scalar"] = TargetTensor(DType::kInt64, {}, {WholeBox(Shape{})});
    target["zero"] = Tensor::Absent(DType::kBool, {3, 0});
    const auto report = Load(target, *storage_, group);
    ASSERT_OK(report);
    EXPECT_THAT(report->unexpected, IsEmpty());
    EXPECT_EQ(CountWrong(*target.Find("middle")->get_if<Tensor>(), 1), 0U);
    EXPECT_EQ(CountWrong(*target.Find("scalar")->get_if<Tensor>(), 2), 0U);
  });
}

TEST_F(LoadTest, BadTargetsAreRefusedWithTheKey) {
  StateDict saved;
  saved["w"] = FloatTensor({1, 2, 3});
  SaveState(saved);
  StateDict target;
  target["w"] = FloatTensor({0, 0, 0});
  Tensor& tensor = *target["w"].get_if<Tensor>();
  const TensorShard good = tensor.shards[0];
  const auto expect = [&](std::string_view reason) {
    const auto report = LoadInto(target);
    EXPECT_THAT(report, FailsWith(reason));
    EXPECT_THAT(report.error().message, HasSubstr("'w'"));
    tensor.shards[0] = good;
  };
  tensor.shards[0].view.data = nullptr;
  expect("BAD_VIEW");
  tensor.shards[0].view.dtype = DType::kInt32;
  expect("SHARD_SHAPE");
  tensor.shards[0].box.extent = {2};
  expect("SHARD_SHAPE");
  tensor.shards[0].box.offset = {1};
  expect("BOX_OUT_OF_SHAPE");
  tensor.shards[0].box.offset = {0, 0};
  expect("BOX_RANK");
}

}  // namespace
}  // namespace reshard::testing
