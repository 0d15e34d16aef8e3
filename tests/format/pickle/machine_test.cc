#include "reshard/format/pickle/machine.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/allocation_meter.h"
#include "tests/support/counting_source.h"
#include "tests/support/hex.h"
#include "tests/support/status_matchers.h"

namespace reshard::pickle {
namespace {

using ::reshard::testing::AllocationMeter;
using ::reshard::testing::CountingSource;
using ::reshard::testing::FailsWith;
using ::reshard::testing::FromHex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

enum Number : std::uint16_t { kThing = 1, kPlain, kOrdered, kEncode };

constexpr GlobalRule kGlobals[] = {
    {"box", "Thing", kThing, kNewObject | kReduce | kBuild | kListLike},
    {"box", "Plain", kPlain, kValueOnly},
    {"collections", "OrderedDict", kOrdered, kReduce | kDictLike},
    {"_codecs", "encode", kEncode, kReduce | kRawText},
};

Result<Parsed> ParseBytes(const Bytes& bytes, ParseOptions options = {}) {
  options.globals = kGlobals;
  MemorySource source(bytes);
  return Parse(source, options);
}

Result<Parsed> ParseHex(std::string_view hex) { return ParseBytes(FromHex(hex)); }

Bytes Text(std::string_view text) {
  const ByteSpan bytes = AsBytes(text);
  return {bytes.begin(), bytes.end()};
}

std::string Repeat(std::string_view hex, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) {
    out += hex;
  }
  return out;
}

// The smallest bad inputs of each kind, by their numbers in docs/format/pickle.md section 5.

TEST(PickleHostileTest, P1ReduceOnAnEmptyStack) {
  EXPECT_THAT(ParseHex("8002 52 2e"), FailsWith(kStackUnderflow));
}

TEST(PickleHostileTest, P2TupleWithoutMark) {
  EXPECT_THAT(ParseHex("8002 74 2e"), FailsWith(kNoMark));
}

TEST(PickleHostileTest, P3GetOfAnUnsetMemo) {
  EXPECT_THAT(ParseHex("8002 68 00 2e"), FailsWith(kBadMemo));
  EXPECT_THAT(ParseHex("8002 6a ffffffff 2e"), FailsWith(kBadMemo));
}

TEST(PickleHostileTest, P4AHugeMemoNumberTakesNoMemory) {
  const Bytes bytes = FromHex("8002 29 72 ffffffff 30 6a ffffffff 2e");
  const AllocationMeter meter;
  ASSERT_OK_AND_ASSIGN(const Parsed parsed, ParseBytes(bytes));
  EXPECT_LT(meter.total(), 64U * 1024);
  EXPECT_EQ(parsed.document.kind(parsed.document.root()), Kind::kTuple);
}

TEST(PickleHostileTest, P5AHugeIntegerIsTruncatedBeforeAllocation) {
  const AllocationMeter meter;
  EXPECT_THAT(ParseHex("8002 8b ffffff7f 2e"), FailsWith(kPickleTruncated));
  EXPECT_LT(meter.total(), 64U * 1024);
}

TEST(PickleHostileTest, P6AHugeTextIsTruncatedBeforeAllocation) {
  const AllocationMeter meter;
  EXPECT_THAT(ParseHex("8004 8d 0000000000000040 2e"), FailsWith(kPickleTruncated));
  EXPECT_THAT(ParseHex("8004 8d ffffffffffffffff 2e"), FailsWith(kPickleTruncated));
  EXPECT_THAT(ParseHex("8005 96 ffffffffffffffff 2e"), FailsWith(kPickleTruncated));
  EXPECT_THAT(ParseHex("8004 42 ffffffff 2e"), FailsWith(kPickleTruncated));
  EXPECT_LT(meter.total(), 64U * 1024);
}

TEST(PickleHostileTest, P7AHugeFrameIsTruncated) {
  EXPECT_THAT(ParseHex("8004 95 0000000000000010 4e 2e"), FailsWith(kPickleTruncated));
}

TEST(PickleHostileTest, P8SetItemOnATuple) {
  EXPECT_THAT(ParseHex("8002 29 4b01 4b02 73 2e"), FailsWith(kBadTarget));
  EXPECT_THAT(ParseHex("8002 29 28 4b01 4b02 75 2e"), FailsWith(kBadTarget));
  EXPECT_THAT(ParseHex("8002 7d 4b01 61 2e"), FailsWith(kBadTarget));
  EXPECT_THAT(ParseHex("8002 5d 28 4b01 90 2e"), FailsWith(kBadTarget));
  EXPECT_THAT(ParseHex("8002 4e 7d 62 2e"), FailsWith(kBadTarget));  // BUILD on None
  EXPECT_THAT(ParseHex("8002 7d 28 4b01 75 2e"), FailsWith(kBadTarget));  // a key without value
}

TEST(PickleHostileTest, P9NoStopAndTrailingBytes) {
  EXPECT_THAT(ParseHex("8002 4e"), FailsWith(kNoStop));
  EXPECT_THAT(ParseHex("8002 4e 2e 00"), FailsWith(kTrailing));
  EXPECT_THAT(ParseHex("8002 4e 4e 2e"), FailsWith(kTrailing));     // a value is left over
  EXPECT_THAT(ParseHex("8002 4e 28 2e"), FailsWith(kStackUnderflow));  // only a mark on top
  EXPECT_THAT(ParseHex("8002 2e"), FailsWith(kStackUnderflow));
}

TEST(PickleHostileTest, P10AListThatContainsItself) {
  EXPECT_THAT(ParseHex("8002 5d 7100 6800 61 2e"), FailsWith(kCycle));
  // ...by way of a tuple, a dict, an object's state and an object's elements
  EXPECT_THAT(ParseHex("8002 5d 7100 6800 85 61 2e"), FailsWith(kCycle));
  EXPECT_THAT(ParseHex("8002 7d 7100 4b01 6800 73 2e"), FailsWith(kCycle));
  const std::string thing = "63 626f780a 5468696e670a 29 81 7100";
  EXPECT_THAT(ParseHex("8002" + thing + "7d 4b01 6800 73 62 2e"), FailsWith(kCycle));
  EXPECT_THAT(ParseHex("8002" + thing + "6800 61 2e"), FailsWith(kCycle));
}

TEST(PickleHostileTest, P11SharingIsKept) {
  // None, then 40 pairs of the value before: a tree of 2^40 leaves, a graph of 41 nodes.
  std::string hex = "8002 4e";
  for (int i = 0; i < 40; ++i) {
    hex += fmt::format("71{:02x} 68{:02x} 86", i, i);
  }
  ASSERT_OK_AND_ASSIGN(const Parsed parsed, ParseHex(hex + "2e"));
  EXPECT_EQ(parsed.document.num_nodes(), 41U);
  const std::span<const NodeId> items = parsed.document.items(parsed.document.root());
  ASSERT_EQ(items.size(), 2U);
  EXPECT_EQ(items[0], items[1]);
}

TEST(PickleHostileTest, P12DeepNesting) {
  EXPECT_THAT(ParseHex("8002 4e" + Repeat("85", 100'000) + "2e"), FailsWith(kDepth));
  EXPECT_THAT(ParseHex("8002 4e" + Repeat("85", kMaxDepth + 1) + "2e"), FailsWith(kDepth));
  EXPECT_OK(ParseHex("8002 4e" + Repeat("85", kMaxDepth) + "2e"));
  // Lists that are filled from the outside in have parents while they grow.
  std::string lists = "8002 5d 7100";
  for (int i = 0; i < 300; ++i) {
    lists += "5d 7101 61 6801";  // append a new list to the one on top, go on with the new one
  }
  EXPECT_THAT(ParseHex(lists + Repeat("30", 300) + "2e"), FailsWith(kDepth));
}

TEST(PickleHostileTest, P13AnyOtherNameIsRefusedAndNamed) {
  const Result<Parsed> parsed =
      ParseBytes(Text("\x80\x02" "cos\nsystem\n(X\x02\0\0\0lsR."));
  ASSERT_THAT(parsed, FailsWith(kGlobalNotAllowed));
  EXPECT_EQ(parsed.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(parsed.error().message, HasSubstr("'os.system'"));
  EXPECT_THAT(parsed.error().message, HasSubstr("byte 2:"));
}

TEST(PickleHostileTest, P13TheNameIsRefusedBeforeDamageThatFollows) {
  // Whatever is wrong behind the name, or is not on the stack, the name comes first.
  EXPECT_THAT(ParseBytes(Text("\x80\x04" "cbuiltins\neval\nRRRR")), FailsWith(kGlobalNotAllowed));
  EXPECT_THAT(ParseBytes(Text("\x80\x04\x8c\x08" "builtins\x8c\x04" "eval\x93\xff")),
              FailsWith(kGlobalNotAllowed));
  EXPECT_THAT(ParseBytes(Text("\x80\x04\x8c\x08" "builtins\x8c\x04" "eval\x93\xff"))
                  .error()
                  .message,
              HasSubstr("byte 18: the pickle names 'builtins.eval'"));
}

TEST(PickleHostileTest, P14DottedAndWildNamesAreOtherNames) {
  EXPECT_THAT(ParseBytes(Text("\x80\x04\x8c\x03" "box\x8c\x11" "Thing.__globals__\x93.")),
              FailsWith(kGlobalNotAllowed));
  EXPECT_THAT(ParseBytes(Text("\x80\x04\x8c\x03" "box\x8c\x01" "*\x93.")),
              FailsWith(kGlobalNotAllowed));
  EXPECT_THAT(ParseBytes(Text("\x80\x04\x8c\x07" "box.sub\x8c\x05" "Thing\x93.")),
              FailsWith(kGlobalNotAllowed));
  EXPECT_THAT(ParseBytes(Text("\x80\x02" "c" + std::string(100'000, 'x') + "\ny\n.")),
              FailsWith(kBadString));
  EXPECT_THAT(ParseHex("8004 4b01 4b02 93 2e"), FailsWith(kBadTarget));  // no texts
}

TEST(PickleHostileTest, P15OpcodesOutsideTheList) {
  for (const std::string_view hex :
       {"69 610a620a", "82 01", "83 0100", "84 01000000", "50 610a", "4930310a", "6f", "53 27610a",
        "97", "92", "6c", "64", "55 0161", "54 0100000061", "46 310a", "4c 310a", "56 610a",
        "70 300a", "67 300a", "00", "ff", "8002"}) {
    const Result<Parsed> parsed = ParseHex("8005 28" + std::string(hex) + "2e");
    ASSERT_THAT(parsed, FailsWith(kOpcodeNotAllowed)) << hex;
    EXPECT_THAT(parsed.error().message, HasSubstr("byte 3:")) << hex;
  }
  EXPECT_THAT(ParseHex("8002 4e 51 2e"), FailsWith(kOpcodeNotAllowed));  // BINPERSID
  EXPECT_THAT(ParseBytes(FromHex("8002 4e 51 2e"), {.persistent_ids = true}),
              FailsWith(kBadTarget));
  EXPECT_OK(ParseBytes(FromHex("8002 29 51 2e"), {.persistent_ids = true}));
}

TEST(PickleHostileTest, P16BadAndRepeatedKeys) {
  EXPECT_THAT(ParseHex("8002 7d 5d 4e 73 2e"), FailsWith(kBadKey));
  EXPECT_THAT(ParseHex("8002 7d 5d 85 4e 73 2e"), FailsWith(kBadKey));  // a list in a tuple
  EXPECT_THAT(ParseHex("8002 7d 47 7ff8000000000000 4e 73 2e"), FailsWith(kBadKey));
  EXPECT_THAT(ParseHex("8004 8f 28 5d 90 2e"), FailsWith(kBadKey));
  EXPECT_THAT(ParseHex("8002 7d 4b01 4e 73 4b01 4e 73 2e"), FailsWith(kDuplicateKey));
  EXPECT_THAT(ParseHex("8002 7d 4b01 4e 73 88 4e 73 2e"), FailsWith(kDuplicateKey));  // 1, True
  EXPECT_THAT(ParseHex("8002 7d 4b01 4e 73 47 3ff0000000000000 4e 73 2e"),
              FailsWith(kDuplicateKey));  // 1, 1.0
  EXPECT_THAT(ParseHex("8004 7d 28 8c0161 4e 8c0161 4e 75 2e"), FailsWith(kDuplicateKey));
  std::string many = "8004 7d 28";
  for (int i = 0; i < 100; ++i) {
    many += fmt::format("8c02{:02x}{:02x} 4e", 'a' + i / 10, 'a' + i % 10);
  }
  EXPECT_OK(ParseHex(many + "75 2e"));
  EXPECT_THAT(ParseHex(many + "8c026363 4e 75 2e"), FailsWith(kDuplicateKey));
  const std::string ordered = "63 636f6c6c656374696f6e730a 4f726465726564446963740a 29 52";
  EXPECT_THAT(ParseHex("8002" + ordered + "4b01 4e 73 4b01 4e 73 2e"), FailsWith(kDuplicateKey));
}

TEST(PickleHostileTest, P17Strings) {
  EXPECT_THAT(ParseHex("8004 8c03 eda080 2e"), FailsWith(kBadString));   // a surrogate
  EXPECT_THAT(ParseHex("8004 8c02 c0af 2e"), FailsWith(kBadString));     // overlong
  EXPECT_THAT(ParseHex("8004 8c04 f4908080 2e"), FailsWith(kBadString));  // above U+10FFFF
  EXPECT_THAT(ParseHex("8004 8c01 c3 2e"), FailsWith(kBadString));
  EXPECT_THAT(ParseHex("8004 8c03 610062 2e"), FailsWith(kBadString));   // NUL, at the top
  EXPECT_THAT(ParseHex("8004 8c03 610062 85 2e"), FailsWith(kBadString));
  EXPECT_THAT(ParseHex("8004 5d 8c03 610062 61 2e"), FailsWith(kBadString));
  EXPECT_THAT(ParseHex("8004 7d 8c03 610062 4e 73 2e"), FailsWith(kBadString));
  EXPECT_THAT(ParseHex("8004 8c03 610062 4e 86 2e"), FailsWith(kBadString));
  EXPECT_OK(ParseHex("8004 8c04 f09f9980 2e"));
}

TEST(PickleHostileTest, P17NulStandsOnlyForBytes) {
  const std::string encode = "63 5f636f646563730a 656e636f64650a";
  const std::string raw = "8c03 610062";
  ASSERT_OK_AND_ASSIGN(const Parsed parsed, ParseHex("8004" + encode + raw + "8c0161 86 52 2e"));
  const Document& document = parsed.document;
  const NodeId text = document.items(document.args(document.root()))[0];
  EXPECT_EQ(document.kind(text), Kind::kLongText);
  EXPECT_EQ(document.InSource(text), (ByteRange{20, 3}));
  const std::string thing = "63 626f780a 5468696e670a";
  EXPECT_THAT(ParseHex("8004" + thing + raw + "8c0161 86 52 2e"), FailsWith(kBadString));
  EXPECT_THAT(ParseHex("8004" + encode + "8c0161" + raw + "86 52 2e"), FailsWith(kBadString));
  EXPECT_THAT(ParseHex("8004" + encode + raw + "8c0161 86 8501 52 2e"), FailsWith(kBadString));
}

TEST(PickleHostileTest, P18ManyTinyOpcodesAreLinearAndBounded) {
  const Bytes pops = FromHex("8002" + Repeat("4e30", 500'000) + "4e2e");
  const AllocationMeter small;
  ASSERT_OK_AND_ASSIGN(const Parsed parsed, ParseBytes(pops));
  EXPECT_EQ(parsed.document.num_nodes(), 1U);
  EXPECT_LT(small.total(), 2U << 20);
  const Bytes lists = FromHex("8002 28" + Repeat("5d", 8'000'000) + "742e");
  const AllocationMeter meter;
  EXPECT_THAT(ParseBytes(lists), FailsWith(kLimit));
  EXPECT_LT(meter.total(), (32U << 20) * 8);
}

TEST(PickleMachineTest, ProtocolsTwoToFive) {
  for (const std::string_view protocol : {"02", "03", "04", "05"}) {
    EXPECT_OK(ParseHex("80" + std::string(protocol) + "4e2e"));
  }
  for (const std::string_view head : {"8000 4e2e", "8001 4e2e", "8006 4e2e", "4e2e", "504b0304"}) {
    EXPECT_THAT(ParseHex(head), FailsWith(kBadProtocol)) << head;
  }
  EXPECT_THAT(ParseHex(""), FailsWith(kPickleTruncated));
  EXPECT_THAT(ParseHex("80"), FailsWith(kPickleTruncated));
}

TEST(PickleMachineTest, Numbers) {
  const auto value = [](std::string_view hex) {
    const Result<Parsed> parsed = ParseHex("8004" + std::string(hex) + "2e");
    EXPECT_OK(parsed);
    return parsed.ok() ? parsed->document.AsInt(parsed->document.root()) : -77;
  };
  EXPECT_EQ(value("4b ff"), 255);
  EXPECT_EQ(value("4d ffff"), 65535);
  EXPECT_EQ(value("4a ffffffff"), -1);
  EXPECT_EQ(value("4a 00000080"), -2147483648);
  EXPECT_EQ(value("8a 00"), 0);
  EXPECT_EQ(value("8a 01 ff"), -1);
  EXPECT_EQ(value("8a 02 ff00"), 255);
  EXPECT_EQ(value("8a 08 ffffffffffffff7f"), INT64_MAX);
  EXPECT_EQ(value("8a 08 0000000000000080"), INT64_MIN);
  EXPECT_EQ(value("8b 02000000 0001"), 256);
  EXPECT_THAT(ParseHex("8004 8a 09 000000000000000001 2e"), FailsWith(kBadInteger));
  ASSERT_OK_AND_ASSIGN(const Parsed pi, ParseHex("8004 47 400921fb54442d18 2e"));
  EXPECT_EQ(pi.document.AsFloat(pi.document.root()), 3.141592653589793);
  ASSERT_OK_AND_ASSIGN(const Parsed flags, ParseHex("8004 88 89 86 2e"));
  const std::span<const NodeId> items = flags.document.items(flags.document.root());
  EXPECT_TRUE(flags.document.AsBool(items[0]));
  EXPECT_FALSE(flags.document.AsBool(items[1]));
}

TEST(PickleMachineTest, TextsAndBytesLieInTheSource) {
  ASSERT_OK_AND_ASSIGN(
      const Parsed parsed,
      ParseHex("8005 28 8c02 6869 58 02000000 6869 8d 0200000000000000 6869 43 01 ff 42 01000000 "
               "ff 8e 0100000000000000 ff 96 0100000000000000 ff 98 74 2e"));
  const Document& document = parsed.document;
  const std::span<const NodeId> items = document.items(document.root());
  ASSERT_EQ(items.size(), 7U);
  const std::uint64_t offsets[] = {5, 12, 23, 27, 33, 43, 53};
  for (std::size_t i = 0; i < items.size(); ++i) {
    EXPECT_EQ(document.InSource(items[i]), (ByteRange{offsets[i], i < 3 ? 2U : 1U})) << i;
    EXPECT_EQ(document.kind(items[i]), i < 3 ? Kind::kText : Kind::kBytes);
  }
  EXPECT_EQ(document.Text(items[2]), "hi");
  EXPECT_THAT(ParseHex("8005 4e 98 2e"), FailsWith(kBadTarget));
}

TEST(PickleMachineTest, MarksGuardTheStack) {
  EXPECT_THAT(ParseHex("8002 4e 28 85 742e"), FailsWith(kStackUnderflow));
  EXPECT_THAT(ParseHex("8002 28 28 4e 65 2e"), FailsWith(kStackUnderflow));
  EXPECT_OK(ParseHex("8002 28 4e 4e 31 4e 2e"));  // POP_MARK
  EXPECT_OK(ParseHex("8002 28 30 4e 2e"));        // POP takes a mark
  EXPECT_THAT(ParseHex("8002 31 2e"), FailsWith(kNoMark));
  ASSERT_OK_AND_ASSIGN(const Parsed twice, ParseHex("8002 4e 32 86 2e"));
  EXPECT_EQ(twice.document.items(twice.document.root()).size(), 2U);
}

TEST(PickleMachineTest, ObjectsKeepArgsStateAndItems) {
  const std::string thing = "63 626f780a 5468696e670a";
  ASSERT_OK_AND_ASSIGN(const Parsed parsed,
                       ParseHex("8002" + thing + "4b07 85 52 28 4b01 4b02 65 7d 62 4b03 61 2e"));
  const Document& document = parsed.document;
  const NodeId root = document.root();
  EXPECT_EQ(document.kind(root), Kind::kObject);
  EXPECT_EQ(document.callable(root), kThing);
  EXPECT_EQ(document.AsInt(document.items(document.args(root))[0]), 7);
  EXPECT_EQ(document.kind(document.state(root)), Kind::kDict);
  std::vector<std::int64_t> items;
  for (const NodeId item : document.object_items(root)) {
    items.push_back(document.AsInt(item));
  }
  EXPECT_THAT(items, ElementsAre(1, 2, 3));
  EXPECT_THAT(ParseHex("8002" + thing + "29 52 7d 62 7d 62 2e"), FailsWith(kBadTarget));
  EXPECT_THAT(ParseHex("8002 63 626f780a 506c61696e0a 29 52 2e"), FailsWith(kGlobalNotAllowed));
  EXPECT_THAT(ParseHex("8002 4e 29 52 2e"), FailsWith(kBadTarget));
  EXPECT_THAT(ParseHex("8002" + thing + "4e 52 2e"), FailsWith(kBadTarget));
}

TEST(PickleMachineTest, DictsFilledInSeveralGoesKeepTheirOrder) {
  // Two dicts that grow in turn, so that their entries do not lie together while they are read.
  std::string hex = "8004 7d 7100 7d 7101 86";
  for (int i = 0; i < 50; ++i) {
    hex += fmt::format("6800 4b{0:02x} 4b{0:02x} 73 30 6801 28 4b{1:02x} 4e 4b{2:02x} 4e 75 30", i,
                       100 + i, 200 + i);
  }
  ASSERT_OK_AND_ASSIGN(const Parsed parsed, ParseHex(hex + "2e"));
  const Document& document = parsed.document;
  const std::span<const NodeId> pair = document.items(document.root());
  const std::span<const NodeId> first = document.items(pair[0]);
  const std::span<const NodeId> second = document.items(pair[1]);
  ASSERT_EQ(first.size(), 100U);
  ASSERT_EQ(second.size(), 200U);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(document.AsInt(first[2 * i]), i);
    EXPECT_EQ(document.AsInt(second[4 * i]), 100 + i);
    EXPECT_EQ(document.AsInt(second[4 * i + 2]), 200 + i);
  }
}

TEST(PickleMachineTest, FramesAreHeldToTheirSize) {
  EXPECT_OK(ParseHex("8004 95 0200000000000000 4e 2e"));
  EXPECT_OK(ParseHex("8004 95 0100000000000000 4e 95 0100000000000000 2e"));
  EXPECT_OK(ParseHex("8004 95 0100000000000000 4e 2e"));  // STOP outside
  EXPECT_THAT(ParseHex("8004 95 0100000000000000 4b 01 2e"), FailsWith(kBadFrame));
  EXPECT_THAT(ParseHex("8004 95 0300000000000000 43 02 0102 2e"), FailsWith(kBadFrame));
  EXPECT_THAT(ParseHex("8004 95 0b00000000000000 95 0200000000000000 4e 2e"),
              FailsWith(kBadFrame));
  EXPECT_THAT(ParseHex("8004 95 0300000000000000 4e 2e"), FailsWith(kPickleTruncated));
}

TEST(PickleMachineTest, APartOfASource) {
  const Bytes bytes = FromHex("ffff 8004 4b05 2e 8004 4b06 2e ff");
  ASSERT_OK_AND_ASSIGN(const Parsed part, ParseBytes(bytes, {.begin = 2, .size = 5}));
  EXPECT_EQ(part.document.AsInt(part.document.root()), 5);
  EXPECT_EQ(part.end, 7U);
  EXPECT_THAT(ParseBytes(bytes, {.begin = 2, .size = 6}), FailsWith(kTrailing));
  EXPECT_THAT(ParseBytes(bytes, {.begin = 2, .size = 4}), FailsWith(kNoStop));
  EXPECT_THAT(ParseBytes(bytes, {.begin = 2, .size = 99}), FailsWith(kPickleTruncated));
  ASSERT_OK_AND_ASSIGN(const Parsed next, ParseBytes(bytes, {.begin = 7, .allow_trailing = true}));
  EXPECT_EQ(next.document.AsInt(next.document.root()), 6);
  EXPECT_EQ(next.end, 12U);
}

TEST(PickleMachineTest, PayloadsArePassedOver) {
  Bytes bytes = FromHex("8005 28");
  constexpr std::uint64_t kPayload = 1 << 20;
  for (int i = 0; i < 16; ++i) {
    bytes.push_back(std::byte{0x96});
    AppendLittle(bytes, kPayload);
    bytes.resize(bytes.size() + kPayload);
  }
  for (const std::byte b : FromHex("74 2e")) {
    bytes.push_back(b);
  }
  CountingSource source(bytes);
  ASSERT_OK_AND_ASSIGN(const Parsed parsed, Parse(source, {}));
  EXPECT_EQ(parsed.document.items(parsed.document.root()).size(), 16U);
  EXPECT_LE(source.bytes_read(), 4096U + 16 * 512);
}

TEST(PickleMachineTest, LongTextsArePassedOver) {
  Bytes bytes = FromHex("8004 58 00001000");
  bytes.resize(bytes.size() + (1 << 20), std::byte{'x'});
  bytes.push_back(std::byte{'.'});
  CountingSource source(bytes);
  ASSERT_OK_AND_ASSIGN(const Parsed parsed, Parse(source, {}));
  EXPECT_EQ(parsed.document.kind(parsed.document.root()), Kind::kLongText);
  EXPECT_EQ(parsed.document.InSource(parsed.document.root()), (ByteRange{7, 1 << 20}));
  EXPECT_LE(source.bytes_read(), 8192U);
}

TEST(PickleMachineTest, StructureIsReadInLargePieces) {
  const Bytes bytes = FromHex("8004 5d 28" + Repeat("4a 12345678", 1'000'000) + "652e");
  CountingSource source(bytes);
  ASSERT_OK(Parse(source, {}));
  EXPECT_LE(source.bytes_read(), bytes.size());
  EXPECT_LE(source.reads(), 40U);
}

}  // namespace
}  // namespace reshard::pickle
