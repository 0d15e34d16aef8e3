#include "reshard/format/safetensors/index.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "reshard/format/safetensors/format.h"
#include "tests/support/allocation_meter.h"
#include "tests/support/status_matchers.h"

namespace reshard::safetensors {
namespace {

using ::reshard::testing::FailsWith;
using ::testing::ElementsAre;

Result<SetIndex> Read(std::string_view text) {
  MemorySource source(AsBytes(text));
  return DecodeIndex(source);
}

TEST(SafetensorsIndexTest, NamesAndFiles) {
  ASSERT_OK_AND_ASSIGN(
      const SetIndex index,
      Read(R"({"metadata":{"total_size":138,"more":{"a":[1,{"b":null}]},"f":1.5},"x":[[],-1,true],)"
           R"("weight_map":{"b":"m-2.safetensors","a":"m-1.safetensors","c":"m-2.safetensors"}})"));
  EXPECT_THAT(index.files, ElementsAre("m-1.safetensors", "m-2.safetensors"));
  EXPECT_THAT(index.tensors,
              ElementsAre(IndexEntry{"a", 0}, IndexEntry{"b", 1}, IndexEntry{"c", 1}));
  EXPECT_EQ(index.total_size, 138U);
  ASSERT_NE(index.Find("b"), nullptr);
  EXPECT_EQ(index.Find("b")->file, 1U);
  EXPECT_EQ(index.Find("bb"), nullptr);
}

TEST(SafetensorsIndexTest, TotalSizeIsOptional) {
  ASSERT_OK_AND_ASSIGN(const SetIndex index, Read(R"({"weight_map":{}})"));
  EXPECT_EQ(index.total_size, std::nullopt);
  ASSERT_OK_AND_ASSIGN(const SetIndex other,
                       Read(R"({"metadata":{"total_size":1.5e3},"weight_map":{}})"));
  EXPECT_EQ(other.total_size, std::nullopt);
}

TEST(SafetensorsIndexTest, WhatIsNoIndex) {
  for (const char* text :
       {"", "[]", "7", "\"a\"", "{", "{} {}", R"({"metadata":{}})", R"({"weight_map":[]})",
        R"({"weight_map":"a"})", R"({"weight_map":{"a":1}})", R"({"weight_map":{"a":null}})",
        R"({"weight_map":{"a":{}}})", R"({"weight_map":{"a":["f"]}})",
        R"({"weight_map":{},"weight_map":{}})", "{\"weight_map\":{\"\xff\":\"f\"}}"}) {
    EXPECT_THAT(Read(text), FailsWith(kBadIndex)) << text;
  }
  EXPECT_THAT(Read(R"({"weight_map":{"a":"f","\u0061":"g"}})"), FailsWith("DUPLICATE_NAME"));
  for (const char* text : {R"({"weight_map":{"":"f"}})", R"({"weight_map":{"a\u0000":"f"}})",
                           R"({"weight_map":{"a":""}})", R"({"weight_map":{"a":"f\u0000"}})"}) {
    EXPECT_THAT(Read(text), FailsWith("BAD_STRING")) << text;
  }
  EXPECT_THAT(Read("{\"x\":" + std::string(1'000'000, '[')), FailsWith("DEPTH"));
}

TEST(SafetensorsIndexTest, LargeInLinearTimeAndMemory) {
  std::string text = R"({"weight_map":{)";
  for (int i = 0; i < 100'000; ++i) {
    text += fmt::format("{}\"layer.{}\":\"f{}\"", i == 0 ? "" : ",", i, i % 100);
  }
  text += "}}";
  const testing::AllocationMeter meter;
  ASSERT_OK_AND_ASSIGN(const SetIndex index, Read(text));
  EXPECT_EQ(index.tensors.size(), 100'000U);
  EXPECT_EQ(index.files.size(), 100U);
  EXPECT_LT(meter.total(), 12 * text.size());
  std::string many = R"({"weight_map":{)";
  for (std::size_t i = 0; i <= kMaxIndexFiles; ++i) {
    many += fmt::format("{}\"{}\":\"{}\"", i == 0 ? "" : ",", i, i);
  }
  EXPECT_THAT(Read(many + "}}"), FailsWith(kIndexTooLarge));
}

TEST(SafetensorsIndexTest, ASetWithoutFilesIsEmpty) {
  const std::string text = R"({"weight_map": {}})";
  MemorySource source(AsBytes(text));
  ByteSource* const sources[] = {&source};
  const ForeignRef ref = {"safetensors", "model.safetensors.index.json", 0};
  ASSERT_OK_AND_ASSIGN(const auto metadata, Format().ReadMetadata(ref, sources));
  ASSERT_OK_AND_ASSIGN(const Assembled opened, Format().Assemble(ref, *metadata, {}));
  EXPECT_EQ(opened.catalog.num_tensors(), 0U);
  EXPECT_TRUE(opened.faults.empty());
}

TEST(SafetensorsIndexTest, RoundTrip) {
  const SetIndex index{{"f", "g\"\\"}, {{"a", 1}, {"b\n\u00e9", 0}}, 12};
  EXPECT_EQ(EncodeIndex(SetIndex{{"f"}, {{"a", 0}}, 4}),
            "{\n  \"metadata\": {\n    \"total_size\": 4\n  },\n  \"weight_map\": {\n"
            "    \"a\": \"f\"\n  }\n}\n");
  const SetIndex good{{"f", "g\"\\"}, {{"a", 1}, {"b\u00e9", 0}}, 12};
  ASSERT_OK_AND_ASSIGN(const SetIndex read, Read(EncodeIndex(good)));
  EXPECT_EQ(read.files, good.files);
  EXPECT_EQ(read.tensors, good.tensors);
  EXPECT_EQ(read.total_size, 12U);
  EXPECT_OK(Read(EncodeIndex(SetIndex{})));
  EXPECT_THAT(Read(EncodeIndex(index)), FailsWith("BAD_STRING"));
}

}  // namespace
}  // namespace reshard::safetensors
