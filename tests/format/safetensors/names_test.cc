#include "reshard/format/safetensors/names.h"

#include <gtest/gtest.h>

namespace reshard::safetensors {
namespace {

TEST(SafetensorsNamesTest, Parts) {
  const PartName part{"model", 1, 3, 0};
  EXPECT_EQ(ParsePartName("model-00001-of-00003.safetensors"), part);
  EXPECT_EQ(PartFileName(part), "model-00001-of-00003.safetensors");
  const PartName again{"a.fp16", 2, 2, 4};
  EXPECT_EQ(ParsePartName(PartFileName(again)), again);
  EXPECT_EQ(PartFileName(again), "a.fp16-00002-of-00002.a4.safetensors");
  for (const char* name :
       {"model.safetensors", "model-1-of-3.safetensors", "model-00004-of-00003.safetensors",
        "-00001-of-00003.safetensors", "model-00001-of-00003.a0.safetensors",
        "model-00001-of-00003.a01.safetensors", "model-00001-of-00003.bin",
        "model-0000000001-of-0000000003.safetensors"}) {
    EXPECT_EQ(ParsePartName(name), std::nullopt) << name;
  }
}

TEST(SafetensorsNamesTest, Shards) {
  const auto shard = [](std::string_view name) { return ShardOf(*ParsePartName(name)); };
  EXPECT_EQ(shard("shard-00004-model-00001-of-00002.safetensors"), 4U);
  EXPECT_EQ(shard("shard-00000-model-00001-of-00002.safetensors"), std::nullopt);
  EXPECT_EQ(shard("model-00001-of-00002.safetensors"), std::nullopt);
}

TEST(SafetensorsNamesTest, IndexesAndData) {
  EXPECT_TRUE(IsIndexName("model.safetensors.index.json"));
  EXPECT_TRUE(IsIndexName("diffusion_pytorch_model.safetensors.index.json"));
  EXPECT_TRUE(IsIndexName("model.safetensors.index.fp16.json"));
  EXPECT_FALSE(IsIndexName(".safetensors.index.json"));
  EXPECT_FALSE(IsIndexName("model.safetensors.index.json.reshard"));
  EXPECT_FALSE(IsIndexName("pytorch_model.bin.index.json"));
  EXPECT_TRUE(IsDataName("model.safetensors"));
  EXPECT_FALSE(IsDataName(".safetensors"));
  EXPECT_FALSE(IsDataName("0_7.safetensors"));
  EXPECT_FALSE(IsDataName("model.safetensors.tmp"));
}

TEST(SafetensorsNamesTest, Temporary) {
  for (const TempKind kind : {TempKind::kClaim, TempKind::kData, TempKind::kIndex}) {
    EXPECT_EQ(AttemptOfTemp(TempName(kind, 7, "model.safetensors.reshard")), 7U);
  }
  EXPECT_EQ(TempName(TempKind::kClaim, 0), "model.safetensors.a0.tmp");
  EXPECT_EQ(AttemptOfTemp("other.safetensors.a0.tmp"), std::nullopt);
  EXPECT_EQ(AttemptOfTemp("model.safetensors.tmp"), std::nullopt);
}

}  // namespace
}  // namespace reshard::safetensors
