#include "reshard/format/pickle/emitter.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "tests/support/hex.h"

namespace reshard::pickle {
namespace {

using reshard::testing::ToHex;

/// The opcodes of `write`, without the PROTO that begins every pickle.
std::string Emitted(const std::function<void(Emitter&)>& write) {
  Bytes out;
  Emitter emitter(out);
  write(emitter);
  const std::string hex = ToHex(out);
  EXPECT_EQ(hex.substr(0, 4), "8004");
  return hex.substr(4);
}

std::string EmittedInt(std::int64_t value) {
  return Emitted([value](Emitter& e) { e.Int(value); });
}

// What Python 3.11's pickle.dumps(value, 4) writes between FRAME and STOP.
TEST(EmitterTest, WritesIntegersAsPythonDoes) {
  EXPECT_EQ(EmittedInt(0), "4b00");
  EXPECT_EQ(EmittedInt(255), "4bff");
  EXPECT_EQ(EmittedInt(256), "4d0001");
  EXPECT_EQ(EmittedInt(65535), "4dffff");
  EXPECT_EQ(EmittedInt(65536), "4a00000100");
  EXPECT_EQ(EmittedInt(-1), "4affffffff");
  EXPECT_EQ(EmittedInt(2147483647), "4affffff7f");
  EXPECT_EQ(EmittedInt(-2147483648LL), "4a00000080");
  EXPECT_EQ(EmittedInt(2147483648LL), "8a050000008000");
  EXPECT_EQ(EmittedInt(-2147483649LL), "8a05ffffff7fff");
  EXPECT_EQ(EmittedInt(1LL << 40), "8a06000000000001");
  EXPECT_EQ(EmittedInt(std::numeric_limits<std::int64_t>::max()), "8a08ffffffffffffff7f");
  EXPECT_EQ(EmittedInt(std::numeric_limits<std::int64_t>::min()), "8a080000000000000080");
}

TEST(EmitterTest, WritesTextsByTheirLength) {
  EXPECT_EQ(Emitted([](Emitter& e) { e.Text("w"); }), "8c0177");
  EXPECT_EQ(Emitted([](Emitter& e) { e.Text(std::string(255, 'a')); }).substr(0, 6), "8cff61");
  EXPECT_EQ(Emitted([](Emitter& e) { e.Text(std::string(256, 'a')); }).substr(0, 12),
            "580001000061");
}

TEST(EmitterTest, WritesBytesByTheirLength) {
  const auto head = [](std::uint64_t size) {
    return Emitted([size](Emitter& e) { e.BytesHead(size); });
  };
  EXPECT_EQ(head(0), "4300");
  EXPECT_EQ(head(255), "43ff");
  EXPECT_EQ(head(256), "4200010000");
  EXPECT_EQ(head(0xFFFFFFFF), "42ffffffff");
  EXPECT_EQ(head(0x100000000), "8e0000000001000000");
  EXPECT_EQ(Emitted([](Emitter& e) { e.ShortBytes(AsBytes("b")); }), "430162");
}

TEST(EmitterTest, NumbersTheMemoInOrder) {
  EXPECT_EQ(Emitted([](Emitter& e) {
              EXPECT_EQ(e.Memoize(), 0U);
              EXPECT_EQ(e.Memoize(), 1U);
              e.Get(1);
              e.Get(255);
              e.Get(256);
            }),
            "94946801"
            "68ff"
            "6a00010000");
}

TEST(EmitterTest, WritesEveryOtherOpcode) {
  EXPECT_EQ(Emitted([](Emitter& e) {
              e.None();
              e.Bool(true);
              e.Bool(false);
              e.EmptyTuple();
              e.Mark();
              e.Tuple();
              e.TupleOf(1);
              e.TupleOf(2);
              e.TupleOf(3);
              e.EmptyList();
              e.Append();
              e.Appends();
              e.EmptyDict();
              e.SetItem();
              e.SetItems();
              e.Global("m", "n");
              e.Reduce();
              e.NewObject();
              e.Build();
              e.Stop();
            }),
            "4e8889292874858687"
            "5d61657d7375"
            "8c016d8c016e93"
            "528162"
            "2e");
}

// What Python 3.11's pickle.dumps(value, 2) writes.
TEST(EmitterTest, ProtocolTwoHasNoShortForms) {
  Bytes out;
  Emitter emitter(out, 2);
  emitter.Global("m", "n");
  EXPECT_EQ(emitter.Memoize(), 0U);
  emitter.Text("w");
  emitter.PersistentId();
  emitter.Float(1.5);
  emitter.Get(0);
  EXPECT_EQ(ToHex(out),
            "8002"
            "636d0a6e0a"
            "7100"
            "580100000077"
            "51"
            "473ff8000000000000"
            "6800");
}

}  // namespace
}  // namespace reshard::pickle
