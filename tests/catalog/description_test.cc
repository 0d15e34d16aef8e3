#include "reshard/catalog/description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/catalog/cbor.h"
#include "tests/catalog/plan_ranks.h"
#include "tests/support/status_matchers.h"

namespace reshard {
namespace {

using ::reshard::testing::FailsWith;
using ::reshard::testing::MadeUpView;
using ::testing::HasSubstr;

Result<StateDescription> DescribeState(const Value& state) {
  RESHARD_TRY_ASSIGN(const std::vector<FlatEntry> leaves, Flatten(state));
  return Describe(leaves);
}

Result<StateDescription> DescribeOne(Tensor tensor) {
  Value state;
  state["t"] = std::move(tensor);
  return DescribeState(state);
}

Tensor Part(DType dtype, Shape shape, Box box) {
  TensorView view = MadeUpView(dtype, box.extent);
  return Tensor::Sharded(std::move(shape), std::move(box), std::move(view));
}

TEST(DescribeTest, TellsTensorsAndObjectsApart) {
  Value state;
  state["model"]["w"] = Part(DType::kFloat32, {4, 2}, {{2, 0}, {2, 2}});
  state["lr"] = 0.5;
  state["rng"] = PerRank(7);
  const auto described = DescribeState(state);
  ASSERT_OK(described);
  ASSERT_EQ(described->tensors.size(), 1U);
  const TensorDescription& tensor = described->tensors[0];
  EXPECT_EQ(tensor.key, "model.w");
  EXPECT_EQ(tensor.path, EncodePath({"model", "w"}));
  EXPECT_EQ(tensor.dtype, DType::kFloat32);
  EXPECT_EQ(tensor.shape, (Shape{4, 2}));
  EXPECT_EQ(tensor.same_as, 0U);
  ASSERT_EQ(tensor.boxes.size(), 1U);
  EXPECT_EQ(tensor.boxes[0], (Box{{2, 0}, {2, 2}}));
  ASSERT_EQ(described->objects.size(), 2U);
  EXPECT_EQ(described->objects[0].key, "lr");
  EXPECT_FALSE(described->objects[0].per_rank);
  EXPECT_EQ(described->objects[0].value, EncodeObject(0.5));
  EXPECT_TRUE(described->objects[1].per_rank);
  EXPECT_EQ(described->objects[1].value, EncodeObject(7));
}

TEST(DescribeTest, LeavesOutEmptyShardsAndKeepsAbsentTensors) {
  Tensor tensor = Part(DType::kFloat32, {4}, {{0}, {3}});
  tensor.shards.push_back({{{3}, {0}}, DenseView(nullptr, DType::kFloat32, {0}), {}, {}});
  const auto described = DescribeOne(tensor);
  ASSERT_OK(described);
  EXPECT_EQ(described->tensors[0].boxes.size(), 1U);
  const auto absent = DescribeOne(Tensor::Absent(DType::kInt8, {4}));
  ASSERT_OK(absent);
  EXPECT_TRUE(absent->tensors[0].boxes.empty());
}

TEST(DescribeTest, SharedMemoryIsAnAliasOfTheFirstKey) {
  const Tensor whole = Part(DType::kFloat32, {4, 2}, {{0, 0}, {4, 2}});
  Value state;
  state["a"] = Part(DType::kFloat32, {4, 2}, {{0, 0}, {4, 2}});
  state["b"] = whole;
  state["c"] = whole;
  state["d"] = whole;
  Tensor reshaped = whole;
  reshaped.global_shape = {8};
  reshaped.shards[0].box = {{0}, {8}};
  reshaped.shards[0].view = DenseView(whole.shards[0].view.data, DType::kFloat32, {8});
  state["e"] = reshaped;
  Tensor strided = whole;
  strided.shards[0].view.strides = {1, 4};
  state["f"] = strided;
  state["g"] = Tensor::Absent(DType::kFloat32, {4, 2});
  state["h"] = Tensor::Absent(DType::kFloat32, {4, 2});
  const auto described = DescribeState(state);
  ASSERT_OK(described);
  std::vector<std::uint32_t> same_as;
  for (const TensorDescription& tensor : described->tensors) {
    same_as.push_back(tensor.same_as);
  }
  EXPECT_THAT(same_as, ::testing::ElementsAre(0, 1, 1, 1, 4, 5, 6, 7));
}

struct BadShard {
  std::string reason;
  Tensor tensor;
};

TEST(DescribeTest, RefusesBadShardsAndNamesTheKey) {
  Tensor sink = Part(DType::kInt8, {4}, {{0}, {4}});
  sink.shards[0].sink = [](std::uint64_t, ByteSpan) { return OkStatus(); };
  Tensor null = Part(DType::kInt8, {4}, {{0}, {4}});
  null.shards[0].view.data = nullptr;
  Tensor other = Part(DType::kInt8, {4}, {{0}, {4}});
  other.dtype = DType::kUint8;
  Tensor shape = Part(DType::kInt8, {4}, {{0}, {4}});
  shape.shards[0].view = MadeUpView(DType::kInt8, {3});
  Tensor twice = Part(DType::kInt8, {4}, {{0}, {3}});
  twice.shards.push_back(Part(DType::kInt8, {4}, {{2}, {2}}).shards[0]);
  const std::vector<BadShard> bad = {
      {"SINK_ON_SAVE", sink},
      {"BAD_VIEW", null},
      {"DTYPE_MISMATCH", other},
      {"SHARD_SHAPE", shape},
      {"LOCAL_OVERLAP", twice},
      {"BOX_OUT_OF_SHAPE", Part(DType::kInt8, {4}, {{2}, {3}})},
      {"BOX_RANK", Part(DType::kInt8, {4}, {{2, 0}, {1, 1}})},
      {"NOT_BYTE_SIZED", Part(DType::kFloat4E2m1, {4}, {{1}, {2}})},
      {"SHAPE_OVERFLOW", Tensor::Absent(DType::kInt8, {1ULL << 63, 2})},
  };
  for (const BadShard& row : bad) {
    const auto described = DescribeOne(row.tensor);
    ASSERT_THAT(described, FailsWith(row.reason));
    EXPECT_EQ(described.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(described.error().message, HasSubstr("'t'"));
  }
}

TEST(ObjectDescriptionsTest, RoundTripAndRefuseEveryCut) {
  Value state;
  state["a"]["b"] = "text";
  state["rng"] = PerRank(Bytes(3, std::byte{9}));
  const auto described = DescribeState(state);
  ASSERT_OK(described);
  const Bytes bytes = EncodeObjectDescriptions(described->objects);
  const auto back = DecodeObjectDescriptions(bytes);
  ASSERT_OK(back);
  ASSERT_EQ(back->size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ((*back)[i].key, described->objects[i].key);
    EXPECT_EQ((*back)[i].path, described->objects[i].path);
    EXPECT_EQ((*back)[i].per_rank, described->objects[i].per_rank);
    EXPECT_EQ((*back)[i].value, described->objects[i].value);
  }
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THAT(DecodeObjectDescriptions(ByteSpan(bytes).first(size)), FailsWith("BAD_MESSAGE"));
  }
}

}  // namespace
}  // namespace reshard
