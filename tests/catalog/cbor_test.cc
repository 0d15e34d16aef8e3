#include "reshard/catalog/cbor.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "tests/support/allocation_meter.h"
#include "tests/support/hex.h"
#include "tests/support/random_state.h"
#include "tests/support/status_matchers.h"

namespace reshard {
namespace {

using ::reshard::testing::FailsWith;
using ::reshard::testing::FromHex;
using ::reshard::testing::ToHex;

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

struct Example {
  std::string hex;
  Value value;
};

/// RFC 8949 appendix A, the examples that the subset can hold, and the limits of 64 signed bits.
std::vector<Example> Examples() {
  using L = Value::List;
  using M = Value::Map;
  const auto key = [](const char* text) { return MapKey(text); };
  const auto number = [](std::int64_t n) { return MapKey(n); };
  L long_list;
  for (int i = 1; i <= 25; ++i) {
    long_list.emplace_back(i);
  }
  return {
      {"00", 0},
      {"01", 1},
      {"0a", 10},
      {"17", 23},
      {"1818", 24},
      {"1819", 25},
      {"1864", 100},
      {"1903e8", 1000},
      {"1a000f4240", 1000000},
      {"1b000000e8d4a51000", 1000000000000},
      {"1b7fffffffffffffff", kMax},
      {"20", -1},
      {"29", -10},
      {"3863", -100},
      {"3903e7", -1000},
      {"3b7fffffffffffffff", kMin},
      {"fb3ff199999999999a", 1.1},
      {"fb7e37e43c8800759c", 1.0e+300},
      {"fbc010666666666666", -4.1},
      {"fb7ff0000000000000", std::numeric_limits<double>::infinity()},
      {"fb7ff8000000000000", std::bit_cast<double>(0x7ff8000000000000ULL)},
      {"fbfff0000000000000", -std::numeric_limits<double>::infinity()},
      {"fb7ff00000deadbeef", std::bit_cast<double>(0x7ff00000deadbeefULL)},
      {"fb8000000000000000", -0.0},
      {"f4", false},
      {"f5", true},
      {"f6", Value()},
      {"40", Bytes()},
      {"4401020304", FromHex("01020304")},
      {"60", ""},
      {"6161", "a"},
      {"6449455446", "IETF"},
      {"62225c", "\"\\"},
      {"62c3bc", "\u00fc"},
      {"63e6b0b4", "\u6c34"},
      {"64f0908591", "\U00010151"},
      {"80", L{}},
      {"83010203", L{1, 2, 3}},
      {"8301820203820405", L{1, L{2, 3}, L{4, 5}}},
      {"98190102030405060708090a0b0c0d0e0f101112131415161718181819", long_list},
      {"a0", M{}},
      {"a201020304", M{{number(1), 2}, {number(3), 4}}},
      {"a26161016162820203", M{{key("a"), 1}, {key("b"), L{2, 3}}}},
      {"826161a161626163", L{"a", M{{key("b"), "c"}}}},
      {"a56161614161626142616361436164614461656145",
       M{{key("a"), "A"}, {key("b"), "B"}, {key("c"), "C"}, {key("d"), "D"}, {key("e"), "E"}}},
  };
}

TEST(CborTest, ReadsAndWritesTheExamplesOfRfc8949) {
  for (const Example& example : Examples()) {
    SCOPED_TRACE(example.hex);
    EXPECT_EQ(ToHex(EncodeObject(example.value)), example.hex);
    const auto value = DecodeObject(FromHex(example.hex));
    ASSERT_OK(value);
    EXPECT_EQ(*value, example.value);
  }
}

TEST(CborTest, KeepsValuesOfForeignTypes) {
  const Value value = Value::List{Opaque{"a.B", FromHex("0102")}, 1};
  EXPECT_EQ(ToHex(EncodeObject(value)), "82d81b8263612e4242010201");
  ASSERT_OK_AND_ASSIGN(const Value again, DecodeObject(EncodeObject(value)));
  EXPECT_EQ(again, value);
  EXPECT_EQ(again.get_if<Value::List>()->front().kind(), "opaque");
  for (const char* bad : {"d81b80", "d81b8161", "d81b82426161416100", "d81c8263612e424100"}) {
    EXPECT_THAT(DecodeObject(FromHex(bad)), FailsWith("BAD_OBJECT"));
  }
}

TEST(CborTest, RefusesWhatIsOutsideTheSubset) {
  for (const char* hex : {
           "1bffffffffffffffff",      // 2^64 - 1
           "1b8000000000000000",      // 2^63
           "3b8000000000000000",      // -2^63 - 1
           "c249010000000000000000",  // bignum tag
           "f90000",
           "fa47c35000",  // 16- and 32-bit floats
           "f7",
           "f0",
           "f8ff",                        // undefined, simple values
           "c11a514b67b0",                // epoch tag
           "5f42010243030405ff",          // indefinite lengths
           "7f657374726561646d696e67ff",  //
           "9f018202039f0405ffff",
           "bf61610161629f0203ffff",
           "1c",
           "1d",
           "1e",
           "1f",
           "ff",  // reserved, break
           "a1f501",
           "a1810101",
           "a1410101",  // map keys: bool, list, bytes
           "1817",
           "1900ff",
           "1a0000ffff",  // not the shortest form
           "1b00000000ffffffff",
           "580101",
           "780161",
           "980101",
           "b8010101",
           "3817",
           "a2010a010b",
           "a2616101616102",  // a key twice
           "0000",
           "f600",
           "8000",  // bytes after the end
           "",
       }) {
    const auto value = DecodeObject(FromHex(hex));
    EXPECT_THAT(value, FailsWith("BAD_OBJECT")) << hex;
    if (!value.ok()) {
      EXPECT_EQ(value.error().code, ErrorCode::kCorruption);
    }
  }
}

TEST(CborTest, SaysWhereTheBytesAreWrong) {
  const auto value = DecodeObject(FromHex("830102f7"));
  ASSERT_FALSE(value.ok());
  EXPECT_EQ(value.error().message,
            "object bytes at offset 4: a simple value that objects do not use");
}

TEST(CborTest, RandomValuesRoundTripAndEveryCutIsAnError) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const Value value = testing::RandomState(seed).Plain(4);
    const Bytes bytes = EncodeObject(value);
    const auto back = DecodeObject(bytes);
    ASSERT_OK(back);
    ASSERT_EQ(*back, value);
    ASSERT_EQ(EncodeObject(*back), bytes);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      ASSERT_THAT(DecodeObject(ByteSpan(bytes).first(size)), FailsWith("BAD_OBJECT")) << size;
    }
  }
}

TEST(CborTest, WhatDecodesEncodesToTheSameBytes) {
  // One reading, one spelling: flipping bits of valid bytes gives an error or another value.
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const Bytes bytes = EncodeObject(testing::RandomState(seed).Plain(4));
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      Bytes flipped = bytes;
      flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
      const auto value = DecodeObject(flipped);
      if (value.ok()) {
        ASSERT_EQ(EncodeObject(*value), flipped) << "seed " << seed << " bit " << bit;
      }
    }
  }
}

TEST(CborTest, HugeCountsAllocateNothing) {
  for (const char* hex :
       {"5b7fffffffffffffff", "7bffffffffffffffff", "9b00ffffffffffffff", "bb00ffffffffffffff",
        "9affffffff00", "baffffffff0000", "5affffffff0000", "a161619bffffffffffffffff"}) {
    const Bytes bytes = FromHex(hex);
    const testing::AllocationMeter meter;
    EXPECT_THAT(DecodeObject(bytes), FailsWith("BAD_OBJECT")) << hex;
    EXPECT_LT(meter.total(), 4096U) << hex;
  }
}

TEST(CborTest, DepthIsLimited) {
  const auto nested = [](std::size_t depth, std::string_view open) {
    std::string hex;
    for (std::size_t i = 0; i < depth; ++i) {
      hex += open;
    }
    return FromHex(hex + "00");
  };
  EXPECT_OK(DecodeObject(nested(64, "81")));
  EXPECT_THAT(DecodeObject(nested(65, "81")), FailsWith("BAD_OBJECT"));
  EXPECT_OK(DecodeObject(nested(64, "a100")));
  EXPECT_THAT(DecodeObject(nested(65, "a100")), FailsWith("BAD_OBJECT"));
  const Bytes bomb = nested(1'000'000, "81");
  const testing::AllocationMeter meter;
  EXPECT_THAT(DecodeObject(bomb), FailsWith("BAD_OBJECT"));
  EXPECT_LT(meter.total(), 100'000U);
}

TEST(CborTest, MemoryIsProportionalToTheInput) {
  const Bytes nulls = EncodeObject(Value::List(100'000));
  const testing::AllocationMeter meter;
  EXPECT_OK(DecodeObject(nulls));
  EXPECT_LT(meter.total(), nulls.size() * 600);  // a Value and the growth of a vector of them
}

TEST(CborPathTest, RoundTripsEveryKindOfPart) {
  const Path path = {"model", std::int64_t{-3}, ListIndex{7}, "with.dot", "", std::int64_t{kMin}};
  const Bytes bytes = EncodePath(path);
  EXPECT_EQ(ToHex(bytes),
            "86656d6f64656c2281076877"
            "6974682e646f74603b7fffffffffffffff");
  const auto back = DecodePath(bytes);
  ASSERT_OK(back);
  EXPECT_EQ(*back, path);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THAT(DecodePath(ByteSpan(bytes).first(size)), FailsWith("BAD_OBJECT"));
  }
}

TEST(CborPathTest, RefusesOtherParts) {
  for (const char* hex : {"00", "6161", "a0", "81f5", "818120", "81820000", "8180",
                          "818100"
                          "00",
                          "81816161", "9affffffff", "9842"}) {
    EXPECT_THAT(DecodePath(FromHex(hex)), FailsWith("BAD_OBJECT")) << hex;
  }
}

}  // namespace
}  // namespace reshard
