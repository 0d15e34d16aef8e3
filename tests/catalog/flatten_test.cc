#include "reshard/catalog/flatten.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/random_state.h"
#include "tests/support/status_matchers.h"

namespace reshard {
namespace {

using ::reshard::testing::FailsWith;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Value AnyTensor() { return Tensor::Absent(DType::kFloat32, {2}); }

MapKey Number(std::int64_t value) { return value; }

/// "flat key = path" of each leaf.
std::vector<std::string> Leaves(const Value& state) {
  const auto entries = Flatten(state);
  EXPECT_OK(entries);
  std::vector<std::string> out;
  for (std::size_t i = 0; entries.ok() && i < entries->size(); ++i) {
    out.push_back((*entries)[i].key + " = " + ToString((*entries)[i].path));
  }
  return out;
}

Value NestedList(int depth) {
  Value value = 1;
  for (int i = 0; i < depth; ++i) {
    value = Value::List{std::move(value)};
  }
  return value;
}

Value NestedMap(int depth) {
  Value value = 1;
  for (int i = 0; i < depth; ++i) {
    value = Value::Map{{MapKey("m"), std::move(value)}};
  }
  return value;
}

TEST(FlattenTest, JoinsPartsWithDotsAndSortsByKey) {
  Value state;
  state["model"]["w"] = AnyTensor();
  state["model"]["b"] = AnyTensor();
  state["lr"] = 0.1;
  EXPECT_THAT(Leaves(state),
              ElementsAre("lr = ['lr']", "model.b = ['model']['b']", "model.w = ['model']['w']"));
  const auto entries = Flatten(static_cast<const Value&>(state));
  ASSERT_OK(entries);
  EXPECT_EQ((*entries)[0].leaf, state.Find("lr"));
}

TEST(FlattenTest, MutableLeavesPointIntoTheStateDict) {
  Value state;
  state["a"]["b"] = 1;
  auto entries = Flatten(state);
  ASSERT_OK(entries);
  *(*entries)[0].leaf = 2;
  EXPECT_EQ(*state.Find("a")->Find("b"), Value(2));
}

TEST(FlattenTest, IntegerKeysStayIntegers) {
  Value state;
  state["opt"][Number(1)] = AnyTensor();
  state["opt"][Number(-2)] = 5;
  EXPECT_THAT(Leaves(state), ElementsAre("opt.-2 = ['opt'][-2]", "opt.1 = ['opt'][1]"));
}

TEST(FlattenTest, ListsAreEnteredOnlyForTensors) {
  Value state;
  state["plain"] = Value::List{1, Value::List{2, "x"}};
  state["deep"] = Value::List{1, Value::Map{{MapKey("t"), AnyTensor()}}, "x"};
  state["own"] = Value::List{PerRank(1)};
  EXPECT_THAT(Leaves(state),
              ElementsAre("deep.0 = ['deep'][#0]", "deep.1.t = ['deep'][#1]['t']",
                          "deep.2 = ['deep'][#2]", "own.0 = ['own'][#0]", "plain = ['plain']"));
}

TEST(FlattenTest, EmptyContainersAreObjects) {
  Value state;
  state["m"] = Value::Map();
  state["l"] = Value::List();
  state["in"] = Value::List{AnyTensor(), Value::Map(), Value::List()};
  EXPECT_THAT(Leaves(state), ElementsAre("in.0 = ['in'][#0]", "in.1 = ['in'][#1]",
                                         "in.2 = ['in'][#2]", "l = ['l']", "m = ['m']"));
}

TEST(FlattenTest, EmptyStatesHaveNoLeaves) {
  EXPECT_THAT(Leaves(Value()), ElementsAre());
  EXPECT_THAT(Leaves(Value::Map()), ElementsAre());
  EXPECT_THAT(Flatten(static_cast<const Value&>(Value(3))), FailsWith("NOT_A_MAP"));
}

TEST(FlattenTest, KeysWithDotsKeepTheirPath) {
  Value state;
  state["a.b"]["c"] = AnyTensor();
  EXPECT_THAT(Leaves(state), ElementsAre("a.b.c = ['a.b']['c']"));
}

TEST(FlattenTest, TwoPathsWithOneKeyAreAnErrorThatNamesBoth) {
  Value dots;
  dots["a.b"] = 1;
  dots["a"]["b"] = 2;
  const auto both = Flatten(static_cast<const Value&>(dots));
  ASSERT_THAT(both, FailsWith("DUPLICATE_FLAT_KEY"));
  EXPECT_THAT(both.error().message, HasSubstr("['a.b'] and ['a']['b']"));
  EXPECT_THAT(both.error().message, HasSubstr("'a.b'"));

  Value numbers;
  numbers["x"][Number(1)] = 1;
  numbers["x"]["1"] = 2;
  const auto clash = Flatten(static_cast<const Value&>(numbers));
  ASSERT_THAT(clash, FailsWith("DUPLICATE_FLAT_KEY"));
  EXPECT_THAT(clash.error().message, HasSubstr("['x'][1] and ['x']['1']"));
}

TEST(FlattenTest, RefusesKeysWithoutAName) {
  Value empty;
  empty[""] = 1;
  EXPECT_THAT(Flatten(static_cast<const Value&>(empty)), FailsWith("BAD_KEY"));
  Value nul;
  nul[std::string_view("a\0b", 3)] = 1;
  EXPECT_THAT(Flatten(static_cast<const Value&>(nul)), FailsWith("BAD_KEY"));
}

TEST(FlattenTest, NestingHasALimit) {
  EXPECT_OK(Flatten(static_cast<const Value&>(NestedMap(64))));
  EXPECT_THAT(Flatten(static_cast<const Value&>(NestedMap(65))), FailsWith("NESTING"));
}

TEST(FlattenTest, ObjectsThatCouldNotBeReadBackAreRefused) {
  Value state;
  state["deep"] = NestedList(64);
  EXPECT_OK(Flatten(static_cast<const Value&>(state)));
  state["deep"] = NestedList(65);
  EXPECT_THAT(Flatten(static_cast<const Value&>(state)), FailsWith("NESTING"));
  state["deep"] = PerRank(NestedList(65));
  EXPECT_THAT(Flatten(static_cast<const Value&>(state)), FailsWith("NESTING"));
  state["deep"] = Value::List{Value::Map{{MapKey("k"), 1}, {MapKey("k"), 2}}};
  const auto twice = Flatten(static_cast<const Value&>(state));
  ASSERT_THAT(twice, FailsWith("DUPLICATE_FLAT_KEY"));
  EXPECT_THAT(twice.error().message, HasSubstr("['deep'] has the key ['k'] twice"));
}

TEST(FlattenTest, PerRankValuesHoldNoTensors) {
  Value state;
  state["rng"] = PerRank(Value::List{AnyTensor()});
  const auto tensor = Flatten(static_cast<const Value&>(state));
  ASSERT_THAT(tensor, FailsWith("PER_RANK_TENSOR"));
  EXPECT_THAT(tensor.error().message, HasSubstr("['rng']"));
  state["rng"] = PerRank(Value(PerRank(1)));
  EXPECT_THAT(Flatten(static_cast<const Value&>(state)), FailsWith("PER_RANK_TENSOR"));
}

TEST(FlattenTest, RefusesIntegersBeyondInt64) {
  Value state;
  state["seeds"] = Value::List{1, std::uint64_t{1} << 63};
  const auto flat = Flatten(static_cast<const Value&>(state));
  ASSERT_THAT(flat, FailsWith("BAD_VALUE"));
  EXPECT_THAT(flat.error().message, HasSubstr("['seeds'] holds an integer beyond 2^63 - 1"));
}

TEST(InsertAtPathTest, MakesContainersAndFillsGapsWithNull) {
  Value state;
  ASSERT_OK(InsertAtPath(state, {"a", ListIndex{2}, std::int64_t{7}}, "x"));
  Value expected;
  expected["a"] = Value::List{Value(), Value(), Value::Map{{Number(7), "x"}}};
  EXPECT_EQ(state, expected);
}

TEST(InsertAtPathTest, RefusesPathsThatDisagree) {
  Value state;
  ASSERT_OK(InsertAtPath(state, {"leaf"}, 1));
  ASSERT_OK(InsertAtPath(state, {"map", "k"}, 1));
  ASSERT_OK(InsertAtPath(state, {"list", ListIndex{0}}, 1));
  EXPECT_THAT(InsertAtPath(state, {"leaf"}, 2), FailsWith("PATH_CONFLICT"));
  EXPECT_THAT(InsertAtPath(state, {"leaf", "below"}, 2), FailsWith("PATH_CONFLICT"));
  EXPECT_THAT(InsertAtPath(state, {"map", ListIndex{0}}, 2), FailsWith("PATH_CONFLICT"));
  EXPECT_THAT(InsertAtPath(state, {"list", "k"}, 2), FailsWith("PATH_CONFLICT"));
  EXPECT_THAT(InsertAtPath(state, {"far", ListIndex{1ULL << 40}}, 2), FailsWith("PATH_CONFLICT"));
}

/// Maps compared without regard to order: unflattening sees keys sorted.
Value Sorted(const Value& value) {
  if (const auto* list = value.get_if<Value::List>()) {
    Value::List out;
    std::transform(list->begin(), list->end(), std::back_inserter(out), Sorted);
    return out;
  }
  if (const auto* map = value.get_if<Value::Map>()) {
    Value::Map out;
    for (const auto& [key, item] : *map) {
      out.emplace_back(key, Sorted(item));
    }
    std::sort(out.begin(), out.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    return out;
  }
  return value;
}

TEST(FlattenTest, RandomStateDictsComeBack) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const Value state = testing::RandomState(seed).Dict(4);
    const auto entries = Flatten(state);
    ASSERT_OK(entries);
    Value back = Value::Map();
    for (const FlatEntry& entry : *entries) {
      EXPECT_EQ(entry.key, FlatKey(entry.path));
      ASSERT_OK(InsertAtPath(back, entry.path, *entry.leaf));
    }
    ASSERT_EQ(Sorted(back), Sorted(state));
  }
}

}  // namespace
}  // namespace reshard
