#include "reshard/engine/diff.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>

#include "reshard/engine/checkpoint.h"
#include "reshard/engine/convert.h"
#include "reshard/engine/diff_values.h"
#include "reshard/storage/fault_storage.h"
#include "tests/support/small_checkpoint.h"
#include "tests/support/states.h"

namespace reshard::testing {
namespace {

Result<DiffReport> DiffOf(Storage& a, Storage& b, const DiffOptions& options = {}) {
  const OpenedCheckpoint x = ReadCheckpoint(a).value();
  const OpenedCheckpoint y = ReadCheckpoint(b).value();
  return Diff({x.catalog, a, x.faults}, {y.catalog, b, y.faults}, options);
}

std::unique_ptr<Storage> Saved(const StateDict& state, const std::string& name = "memory") {
  std::unique_ptr<Storage> storage = NewMemoryStorage(name);
  EXPECT_OK(Save(state, *storage, *SingleProcessGroup()));
  return storage;
}

std::unique_ptr<Storage> Small(std::uint64_t salt) {
  std::unique_ptr<Storage> storage = NewMemoryStorage("small");
  EXPECT_OK(SaveSmall(*storage, 7, salt));
  return storage;
}

std::unique_ptr<Storage> Converted(Storage& from, const ConvertOptions& options) {
  std::unique_ptr<Storage> to = NewMemoryStorage("converted");
  const OpenedCheckpoint opened = ReadCheckpoint(from).value();
  EXPECT_OK(Convert({opened.catalog, from, opened.faults}, *to, options));
  return to;
}

/// "KEY: KIND" of each.
std::vector<std::string> Texts(const DiffReport& report) {
  std::vector<std::string> out;
  for (const Difference& difference : report.differences) {
    out.push_back(fmt::format("{}: {}", difference.key, ToString(difference.kind)));
  }
  return out;
}

TEST(DiffTest, EqualOverOtherRanksWithoutOpeningDataFiles) {
  const std::unique_ptr<Storage> a = Small(1);
  ConvertOptions options;
  options.layout.mesh = ProcessMesh::Parse("dp=1,tp=2").value();
  options.layout.placements = {{"model.w", {Replicate{}, Shard{1}}}};
  const std::unique_ptr<Storage> b = Converted(*a, options);
  std::vector<std::string> opened;
  const auto watch = [&opened](std::uint64_t, StorageOp, std::string_view name) {
    opened.emplace_back(name);
    return FaultAction::kNone;
  };
  FaultStorage watched_a(*a, watch);
  FaultStorage watched_b(*b, watch);
  const Result<DiffReport> report = DiffOf(watched_a, watched_b);
  ASSERT_OK(report);
  EXPECT_TRUE(report->equal()) << ::testing::PrintToString(Texts(*report));
  EXPECT_EQ(report->tensors, 6U);
  EXPECT_EQ(report->objects, 9U);
  EXPECT_EQ(report->by_digest, 6U);
  EXPECT_EQ(report->by_reading, 0U);
  EXPECT_EQ(report->bytes_read, 0U);
  EXPECT_FALSE(opened.empty());
  for (const std::string& name : opened) {
    EXPECT_FALSE(name.ends_with(".safetensors")) << name;
  }
}

TEST(DiffTest, ReadsTheSideThatHasNoDigests) {
  const std::unique_ptr<Storage> a = Small(1);
  ConvertOptions options;
  options.format = "paddle";
  options.exclude = {"rng", "train.*", "layers.*", "model.none"};
  options.layout.ranks = 3;
  const std::unique_ptr<Storage> b = Converted(*a, options);
  DiffOptions keys;
  keys.keys = {"model.[a-m]*", "model.w", "opt.*"};
  Result<DiffReport> report = DiffOf(*a, *b, keys);
  ASSERT_OK(report);
  EXPECT_TRUE(report->equal()) << ::testing::PrintToString(Texts(*report));
  EXPECT_EQ(report->by_digest, 5U);
  ASSERT_OK(b->Remove("0.metadata.reshard"));
  report = DiffOf(*a, *b, keys);
  ASSERT_OK(report);
  EXPECT_TRUE(report->equal()) << ::testing::PrintToString(Texts(*report));
  EXPECT_EQ(report->by_digest, 0U);
  EXPECT_EQ(report->by_reading, 5U);
  const std::uint64_t once = report->bytes_read;
  EXPECT_LT(once, 1300U * 1024);  // one side
  report = DiffOf(*b, *b, keys);
  ASSERT_OK(report);
  EXPECT_TRUE(report->equal());
  EXPECT_GE(report->bytes_read, 2 * std::uint64_t{1200} * 1024);
  const std::unique_ptr<Storage> other = Small(2);
  for (const bool values : {false, true}) {
    keys.values = values;
    report = DiffOf(*other, *b, keys);
    ASSERT_OK(report);
    EXPECT_EQ(Texts(*report), (std::vector<std::string>{"model.bias: content", "model.emb: content",
                                                        "model.head: content", "model.w: content",
                                                        "opt.step: content"}));
  }
}

TEST(DiffTest, NamesWhatDiffersInStructure) {
  StateDict one;
  one["a"] = FloatTensor({1, 2});
  one["b"] = FloatTensor({1, 2});
  one["c"] = FloatTensor({1});
  one["d"] = 5;
  one["e"] = 5;
  one["list"] = Value::List{FloatTensor({1})};
  one["x"] = FloatTensor({});
  StateDict two;
  two["a"] = FloatTensor({1, 2});
  two["b"] = FloatTensor({1, 2, 3});
  two["c"] = PatternTensor(DType::kInt32, {1}, {WholeBox(Shape{1})}, 1);
  two["d"] = FloatTensor({5});
  two["e"] = 6;
  two["list"][MapKey(std::int64_t{0})] = FloatTensor({1});
  two["y"] = "new";
  const Result<DiffReport> report = DiffOf(*Saved(one), *Saved(two));
  ASSERT_OK(report);
  EXPECT_EQ(Texts(*report),
            (std::vector<std::string>{"b: shape", "c: dtype", "d: kind", "e: object",
                                      "list.0: path", "x: only in A", "y: only in B"}));
  EXPECT_EQ(report->differences[0].a, "(2)");
  EXPECT_EQ(report->differences[0].b, "(3)");
  EXPECT_EQ(report->differences[1].a, "float32");
  EXPECT_EQ(report->differences[3].object_b, Value(6));
  EXPECT_EQ(report->differences[4].a, "['list'][#0]");
}

TEST(DiffTest, FindsTheOneElementThatDiffers) {
  const Shape shape = {700, 1000};
  Tensor tensor = PatternTensor(DType::kInt32, shape, {WholeBox(shape)}, 3);
  StateDict state;
  state["w"] = tensor;
  const std::unique_ptr<Storage> a = Saved(state);
  std::int32_t before = 0;
  std::byte* at = tensor.shards[0].view.data + 4 * (613 * 1000 + 77);
  std::memcpy(&before, at, 4);
  const std::int32_t after = before ^ 16;
  std::memcpy(at, &after, 4);
  const std::unique_ptr<Storage> b = NewMemoryStorage("b");
  RunRanks(3, [&](ProcessGroup& group) {  // columns over three ranks
    StateDict own;
    const Box box = CutBox(shape, 1, group.rank(), 3);
    TensorView view = tensor.shards[0].view;
    view.data += 4 * box.offset[1];
    view.shape = box.extent;
    own["w"] = Tensor::Sharded(shape, box, view);
    EXPECT_OK(Save(own, *b, group));
  });
  DiffOptions options;
  options.values = true;
  options.reading.memory_bytes = std::uint64_t{3} << 20;
  const Result<DiffReport> report = DiffOf(*a, *b, options);
  ASSERT_OK(report);
  ASSERT_EQ(Texts(*report), std::vector<std::string>{"w: content"});
  const ValueDifference& values = report->differences[0].values.value();
  EXPECT_EQ(values.elements, 1U);
  EXPECT_EQ(values.max_abs, 16);
  EXPECT_EQ(values.first, 613U * 1000 + 77);
  EXPECT_EQ(values.first_a, fmt::format("{}", before));
  EXPECT_EQ(values.first_b, fmt::format("{}", after));
  EXPECT_EQ(report->by_reading, 1U);
}

TEST(DiffTest, WhatCannotBeReadIsUnknown) {
  const std::unique_ptr<Storage> a = Small(1);
  const std::unique_ptr<Storage> b = Small(2);
  Bytes bytes = ReadObject(*b, "1_7.safetensors");
  bytes[bytes.size() - 1000] ^= std::byte{8};
  PutObject(*b, "1_7.safetensors", bytes);
  DiffOptions options;
  options.values = true;
  options.keys = {"model.*"};
  const Result<DiffReport> report = DiffOf(*a, *b, options);
  ASSERT_OK(report);
  ASSERT_FALSE(report->faults.empty());
  EXPECT_EQ(report->faults[0].error.reason, "BLOCK_CHECKSUM");
  EXPECT_NE(report->faults[0].error.message.find("1_7.safetensors"), std::string::npos);
  EXPECT_FALSE(report->equal());
  const OpenedCheckpoint opened = ReadCheckpoint(*a).value();
  const Error lost = {ErrorCode::kNotFound, "X", "lost"};
  const Result<DiffReport> faulty =
      Diff({opened.catalog, *a, {}}, {opened.catalog, *a, {{lost, "f", {"model.gone"}}}});
  ASSERT_OK(faulty);
  EXPECT_TRUE(faulty->differences.empty());
  EXPECT_FALSE(faulty->equal());
  ASSERT_EQ(faulty->faults.size(), 1U);
  EXPECT_EQ(faulty->faults[0].key, "model.gone");
}

TEST(DiffTest, RefusesPatternsThatMatchNothingAndTooLittleMemory) {
  const std::unique_ptr<Storage> a = Small(1);
  DiffOptions options;
  options.keys = {"nothing"};
  EXPECT_EQ(DiffOf(*a, *a, options).error().reason, "NO_SUCH_KEY");
  options.keys = {};
  options.values = true;
  options.reading.memory_bytes = 1 << 20;
  EXPECT_EQ(DiffOf(*a, *Small(2), options).error().reason, "MEMORY_TOO_SMALL");
}

template <typename T>
ByteSpan BytesOf(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

TEST(CompareValuesTest, FloatsByTheirBits) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> a = {1, 0.0F, nan, nan, 2, inf};
  const std::vector<float> b = {1, -0.0F, nan, std::bit_cast<float>(0x7FC00001U), 2.5F, inf};
  const ValueDifference found =
      CompareValues(DType::kFloat32, BytesOf(a), DType::kFloat32, BytesOf(b), 100);
  EXPECT_EQ(found.elements, 3U);
  EXPECT_EQ(found.nans, 1U);
  EXPECT_EQ(found.max_abs, 0.5);
  EXPECT_EQ(found.first, 101U);
  EXPECT_EQ(found.first_a, "0");
  EXPECT_EQ(found.first_b, "-0");
}

TEST(CompareValuesTest, FloatsOfTwoTypesByTheirValues) {
  const std::vector<float> a = {1, 1.00390625F, std::numeric_limits<float>::quiet_NaN()};
  const std::vector<std::uint16_t> b = {0x3F80, 0x3F80, 0xFFC1};
  const ValueDifference found =
      CompareValues(DType::kFloat32, BytesOf(a), DType::kBfloat16, BytesOf(b), 0);
  EXPECT_EQ(found.elements, 1U);
  EXPECT_EQ(found.first, 1U);
  EXPECT_EQ(found.max_abs, 0.00390625);
  EXPECT_EQ(found.first_b, "1");
}

TEST(CompareValuesTest, IntegersExactlyAndBools) {
  const std::vector<std::int64_t> a = {(std::int64_t{1} << 60) + 1, -3,
                                       std::numeric_limits<std::int64_t>::min()};
  std::vector<std::int64_t> b = a;
  b[0] -= 1;
  ValueDifference found = CompareValues(DType::kInt64, BytesOf(a), DType::kInt64, BytesOf(b), 0);
  EXPECT_EQ(found.elements, 1U);
  EXPECT_EQ(found.max_abs, 1);
  EXPECT_EQ(found.first_a, "1152921504606846977");
  const std::vector<std::int8_t> narrow = {1, -3, 0};
  found = CompareValues(DType::kInt64, BytesOf(a), DType::kInt8, BytesOf(narrow), 0);
  EXPECT_EQ(found.elements, 2U);
  EXPECT_EQ(found.max_abs, 9223372036854775808.0);
  const std::vector<std::uint8_t> x = {0, 1};
  const std::vector<std::uint8_t> y = {0, 0};
  found = CompareValues(DType::kBool, BytesOf(x), DType::kBool, BytesOf(y), 0);
  EXPECT_EQ(found.first_a, "true");
  EXPECT_EQ(found.max_abs, 1);
  EXPECT_TRUE(AreComparable(DType::kBool, DType::kUint8));
  EXPECT_FALSE(AreComparable(DType::kInt32, DType::kFloat32));
}

TEST(CompareValuesTest, ComplexAndPackedTypes) {
  const std::vector<float> a = {1, 2, 0, 0};
  const std::vector<float> b = {1, 2, 3, -4};
  ValueDifference found =
      CompareValues(DType::kComplex64, BytesOf(a), DType::kComplex64, BytesOf(b), 0);
  EXPECT_EQ(found.elements, 1U);
  EXPECT_EQ(found.max_abs, 5);
  EXPECT_EQ(found.first_b, "3-4j");
  const std::vector<std::uint8_t> x = {0x21, 0x43};
  const std::vector<std::uint8_t> y = {0x21, 0x53};
  found = CompareValues(DType::kFloat4E2m1, BytesOf(x), DType::kFloat4E2m1, BytesOf(y), 0);
  EXPECT_EQ(found.elements, 1U);
  EXPECT_EQ(found.first, 3U);
  EXPECT_EQ(found.first_a, "0x04");
  EXPECT_EQ(found.first_b, "0x05");
  EXPECT_FALSE(AreComparable(DType::kFloat4E2m1, DType::kFloat32));
}

}  // namespace
}  // namespace reshard::testing
