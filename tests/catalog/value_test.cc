#include "reshard/catalog/value.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <type_traits>

namespace reshard {
namespace {

TEST(ValueTest, NamesItsKind) {
  EXPECT_EQ(Value().kind(), "null");
  EXPECT_EQ(Value(true).kind(), "bool");
  EXPECT_EQ(Value(7).kind(), "int");
  EXPECT_EQ(Value(std::size_t{7}).kind(), "int");
  EXPECT_EQ(Value(0.5).kind(), "float");
  EXPECT_EQ(Value(0.5F).kind(), "float");
  EXPECT_EQ(Value("text").kind(), "string");
  EXPECT_EQ(Value(Bytes()).kind(), "bytes");
  EXPECT_EQ(Value(Value::List()).kind(), "list");
  EXPECT_EQ(Value(Value::Map()).kind(), "map");
  EXPECT_EQ(Value(Tensor()).kind(), "tensor");
  EXPECT_EQ(Value(PerRank(1)).kind(), "per-rank");
}

TEST(ValueTest, SubscriptMakesMapsOnTheWay) {
  Value state;
  state["opt"]["lr"] = 0.5;
  state["opt"][MapKey(std::int64_t{1})] = "one";
  state["opt"]["1"] = "text one";
  ASSERT_NE(state.Find("opt"), nullptr);
  const Value& opt = *state.Find("opt");
  EXPECT_EQ(*opt.Find("lr"), Value(0.5));
  EXPECT_EQ(*opt.Find(MapKey(std::int64_t{1})), Value("one"));
  EXPECT_EQ(*opt.Find("1"), Value("text one"));
  EXPECT_EQ(opt.Find("missing"), nullptr);
  EXPECT_EQ(Value(1).Find("x"), nullptr);
  state["opt"]["lr"] = 0.25;  // no second entry
  EXPECT_EQ(state.Find("opt")->get_if<Value::Map>()->size(), 3U);
}

TEST(ValueTest, IsNotMadeOfPointers) {
  static_assert(std::is_constructible_v<Value, bool>);
  static_assert(!std::is_constructible_v<Value, float*>);
  static_assert(!std::is_constructible_v<Value, const void*>);
  static_assert(!std::is_constructible_v<Value, std::vector<bool>::reference>);
  char text[] = "text";
  EXPECT_EQ(Value(text).kind(), "string");
}

TEST(ValueTest, KeepsIntegersBeyondInt64Apart) {
  EXPECT_EQ(Value(std::uint64_t{1} << 62).kind(), "int");
  const Value large = std::uint64_t{1} << 63;
  EXPECT_TRUE(large.is_too_large());
  EXPECT_EQ(large.kind(), "too large");
  EXPECT_EQ(large, Value(std::uint64_t{1} << 63));
  EXPECT_FALSE(large == Value((std::uint64_t{1} << 63) + 1));
}

TEST(ValueDeathTest, SubscriptOfALeafNamesKeyAndKind) {
  Value state;
  state["lr"] = 0.5;
  EXPECT_DEATH(state["lr"]["x"] = 1, "the key 'x' is asked of a Value of kind float");
  EXPECT_DEATH(state["lr"][MapKey(std::int64_t{7})] = 1, "the key 7 is asked");
}

TEST(ValueTest, EqualityIsByKindAndValue) {
  EXPECT_EQ(Value(), Value());
  EXPECT_FALSE(Value(1) == Value(1.0));
  EXPECT_FALSE(Value(true) == Value(1));
  EXPECT_FALSE(Value(std::string("ab")) == Value(Bytes(2, std::byte{'a'})));
  EXPECT_EQ(Value(Value::List{1, "x"}), Value(Value::List{1, "x"}));
  EXPECT_FALSE(Value(Value::List{1, "x"}) == Value(Value::List{1, "y"}));
  EXPECT_FALSE(Value(PerRank(1)) == Value(1));
  EXPECT_EQ(Value(PerRank(1)), Value(PerRank(1)));
  EXPECT_FALSE(Value(PerRank(1)) == Value(PerRank(2)));
}

TEST(ValueTest, FloatsAreEqualByBits) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(Value(nan), Value(nan));
  EXPECT_FALSE(Value(nan) == Value(std::bit_cast<double>(0x7ff8000000000001ULL)));
  EXPECT_FALSE(Value(0.0) == Value(-0.0));
}

TEST(ValueTest, TensorsAreEqualByTypeShapeAndBoxes) {
  const Tensor whole = Tensor::Allocate(DType::kInt32, {2, 3}, WholeBox(Shape{2, 3}));
  const Tensor part = Tensor::Allocate(DType::kInt32, {2, 3}, {{0, 0}, {1, 3}});
  EXPECT_EQ(Value(whole), Value(Tensor::Allocate(DType::kInt32, {2, 3}, WholeBox(Shape{2, 3}))));
  EXPECT_FALSE(Value(whole) == Value(part));
  EXPECT_FALSE(Value(whole) == Value(Tensor::Absent(DType::kInt32, {2, 3})));
  EXPECT_FALSE(Value(Tensor::Absent(DType::kInt32, {2})) ==
               Value(Tensor::Absent(DType::kUint32, {2})));
}

TEST(TensorTest, AllocateOwnsZeroedMemoryOfItsBox) {
  Value copy;
  {
    const Tensor tensor = Tensor::Allocate(DType::kInt16, {4, 4}, {{1, 2}, {2, 2}});
    copy = tensor;
  }
  const Tensor& tensor = *copy.get_if<Tensor>();
  ASSERT_EQ(tensor.shards.size(), 1U);
  EXPECT_EQ(tensor.global_shape, (Shape{4, 4}));
  EXPECT_EQ(tensor.shards[0].view.shape, (Shape{2, 2}));
  EXPECT_TRUE(IsDense(tensor.shards[0].view));
  for (int i = 0; i < 8; ++i) {  // the copy keeps the memory alive (address sanitizer)
    EXPECT_EQ(tensor.shards[0].view.data[i], std::byte{0});
  }
}

TEST(PerRankTest, CopiesItsValue) {
  PerRank a(Value::List{1, 2});
  PerRank b = a;
  b.value() = 3;
  EXPECT_EQ(a.value(), Value(Value::List{1, 2}));
  a = b;
  EXPECT_EQ(a.value(), Value(3));
}

}  // namespace
}  // namespace reshard
