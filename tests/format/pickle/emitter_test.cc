#include "reshard/format/pickle/emitter.h"

#include <gtest/gtest.h>

#include "reshard/format/pickle/machine.h"
#include "tests/support/hex.h"
#include "tests/support/status_matchers.h"

namespace reshard::pickle {
namespace {

using ::reshard::testing::ToHex;

constexpr GlobalRule kGlobals[] = {{"m", "f", 1, kReduce | kNewObject | kBuild}};

TEST(PickleEmitterTest, WritesTheShortestIntegers) {
  const std::pair<std::int64_t, std::string_view> cases[] = {
      {0, "4b00"},
      {255, "4bff"},
      {256, "4d0001"},
      {65535, "4dffff"},
      {65536, "4a00000100"},
      {-1, "4affffffff"},
      {INT32_MIN, "4a00000080"},
      {0x80000000, "8a050000008000"},
      {-0x80000001LL, "8a05ffffff7fff"},
      {INT64_MAX, "8a08ffffffffffffff7f"},
      {INT64_MIN, "8a080000000000000080"}};
  for (const auto& [value, hex] : cases) {
    Bytes out;
    Emitter emit(out);
    emit.Int(value);
    emit.Stop();
    EXPECT_EQ(ToHex(out), "8004" + std::string(hex) + "2e");
    MemorySource source(out);
    ASSERT_OK_AND_ASSIGN(const Parsed parsed, Parse(source, {}));
    EXPECT_EQ(parsed.document.AsInt(parsed.document.root()), value);
  }
}

TEST(PickleEmitterTest, WhatItWritesIsRead) {
  Bytes out;
  Emitter emit(out);
  emit.EmptyDict();
  emit.Mark();
  emit.Text(std::string(300, 'k'));
  const std::uint32_t text = emit.Memoize();
  emit.EmptyList();
  emit.Get(text);
  emit.Append();
  emit.Mark();
  emit.None();
  emit.Bool(true);
  emit.Appends();
  emit.Text("o");
  emit.Global("m", "f");
  emit.EmptyTuple();
  emit.NewObject();
  emit.Int(1);
  emit.Int(2);
  emit.TupleOf(2);
  emit.Build();
  emit.SetItems();
  emit.Text("b");
  emit.ShortBytes(AsBytes("xyz"));
  emit.SetItem();
  emit.Text("t");
  emit.Mark();
  emit.Tuple();
  emit.SetItem();
  emit.Text("call");
  emit.Global("m", "f");
  emit.EmptyTuple();
  emit.Reduce();
  emit.SetItem();
  emit.Stop();
  MemorySource source(out);
  ASSERT_OK_AND_ASSIGN(const Parsed parsed, Parse(source, {.globals = kGlobals}));
  const Document& document = parsed.document;
  const NodeId root = document.root();
  const NodeId list = document.Find(root, std::string(300, 'k'));
  ASSERT_NE(list, kNoNode);
  EXPECT_EQ(document.items(list).size(), 3U);
  EXPECT_EQ(document.Text(document.items(list)[0]).size(), 300U);
  const NodeId object = document.Find(root, "o");
  EXPECT_EQ(document.AsInt(document.items(document.state(object))[1]), 2);
  const ByteRange bytes = document.InSource(document.Find(root, "b"));
  EXPECT_EQ(AsText(ByteSpan(out).subspan(bytes.offset, bytes.size)), "xyz");
  EXPECT_EQ(document.items(document.Find(root, "t")).size(), 0U);
  EXPECT_EQ(document.kind(document.Find(root, "call")), Kind::kObject);
  EXPECT_EQ(document.Find(root, "absent"), kNoNode);
}

TEST(PickleEmitterTest, BytesHeadsGrowWithTheSize) {
  const std::pair<std::uint64_t, std::string_view> cases[] = {
      {255, "43ff"}, {256, "4200010000"}, {1ULL << 32, "8e0000000001000000"}};
  for (const auto& [size, hex] : cases) {
    Bytes out;
    Emitter(out).BytesHead(size);
    EXPECT_EQ(ToHex(out), "8004" + std::string(hex));
  }
}

}  // namespace
}  // namespace reshard::pickle
