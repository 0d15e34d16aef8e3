#include <gtest/gtest.h>

#include "reshard/format/paddle/metadata.h"
#include "tests/support/hex.h"
#include "tests/support/status_matchers.h"

namespace reshard::paddle {
namespace {

using reshard::testing::FailsWith;

MetadataTensor Row(const std::string& key) {
  MetadataTensor tensor;
  tensor.key = key;
  tensor.dtype = DType::kFloat32;
  tensor.shape = Shape{4, 3};
  tensor.pieces = {{{0, 0}, {2, 3}, std::nullopt, 0, 0}, {{2, 0}, {2, 3}, std::nullopt, 1, 0}};
  return tensor;
}

Metadata Small() {
  Metadata metadata;
  metadata.files = {"0_0.distcp", "1_0.distcp"};
  metadata.tensors = {Row("m.w")};
  metadata.has_flat_mapping = true;
  metadata.flat_mapping = {{"m.w", {PathPart("m"), PathPart("w")}}};
  return metadata;
}

std::size_t Count(std::string_view text, std::string_view word) {
  std::size_t count = 0;
  for (std::size_t at = text.find(word); at != std::string_view::npos;
       at = text.find(word, at + 1)) {
    ++count;
  }
  return count;
}

TEST(MetadataEncoderTest, WritesTheWholeFieldSetInPaddlesOrder) {
  const Bytes bytes = EncodeMetadata(Small(), Flavour::kFlex);
  const std::string_view text = AsText(bytes);
  std::size_t at = 0;
  for (const char* word :
       {"paddle.distributed.flex_checkpoint.dcp.metadata", "Metadata", "state_dict_metadata", "m.w",
        "LocalTensorMetadata", "global_offset", "local_shape", "dtype", "float32", "global_shape",
        "is_flattened", "flattened_range", "storage_metadata", "LocalTensorIndex", "tensor_key",
        "replica_id", "0_0.distcp", "1_0.distcp", "flat_mapping"}) {
    const std::size_t found = text.find(word, at);
    ASSERT_NE(found, std::string_view::npos) << word;
    at = found;
  }
}

TEST(MetadataEncoderTest, SpellsEachTextOnce) {
  Metadata metadata = Small();
  metadata.tensors.push_back(Row("m.x"));
  metadata.tensors.push_back(Row("m.y"));
  const Bytes bytes = EncodeMetadata(metadata, Flavour::kFlex);
  for (const char* word : {"m.x", "LocalTensorIndex", "global_offset", "float32", "0_0.distcp"}) {
    EXPECT_EQ(Count(AsText(bytes), word), 1U) << word;
  }
}

TEST(MetadataEncoderTest, FlavoursDifferInTheModuleOnly) {
  const Bytes flex = EncodeMetadata(Small(), Flavour::kFlex);
  const Bytes legacy = EncodeMetadata(Small(), Flavour::kLegacy);
  const std::string_view module = "paddle.distributed.checkpoint.metadata";
  // Each module's name stands once or twice (once per class), and nothing else may differ.
  std::string changed(AsText(flex));
  const std::string_view flex_module = "paddle.distributed.flex_checkpoint.dcp.metadata";
  for (std::size_t at = changed.find(flex_module); at != std::string::npos;
       at = changed.find(flex_module)) {
    changed.replace(at, flex_module.size(), module);
    changed[at - 1] = static_cast<char>(module.size());
  }
  EXPECT_EQ(changed, AsText(legacy));
}

TEST(MetadataEncoderTest, ReplicasHaveNumbersOnlyWhereThereAreSome) {
  Metadata metadata = Small();
  metadata.tensors[0].pieces[1] = {{0, 0}, {2, 3}, std::nullopt, 1, 1};
  const Bytes bytes = EncodeMetadata(metadata, Flavour::kFlex);
  // One description, two places.
  EXPECT_EQ(Count(testing::ToHex(bytes), testing::ToHex(AsBytes("\x81}("))), 4U);
}

TEST(MetadataEncoderTest, WritesAFlattenedRange) {
  Metadata metadata = Small();
  metadata.tensors[0].pieces[1].flat = FlatRange{1, 300};
  const Bytes bytes = EncodeMetadata(metadata, Flavour::kFlex);
  // NEWTRUE, the field's name, (1, 300).
  const Bytes range = testing::FromHex("4b014d2c0186");
  EXPECT_NE(AsText(bytes).find(AsText(range)), std::string_view::npos);
}

TEST(MetadataEncoderTest, ZeroAndFourAxesAreTuples) {
  Metadata metadata = Small();
  metadata.tensors[0].shape = Shape{};
  metadata.tensors[0].pieces = {{{}, {}, std::nullopt, 0, 0}};
  metadata.tensors.push_back(Row("x"));
  metadata.tensors[1].shape = Shape{1, 2, 3, 4};
  metadata.tensors[1].pieces = {{{0, 0, 0, 0}, {1, 2, 3, 4}, std::nullopt, 0, 0}};
  const Bytes bytes = EncodeMetadata(metadata, Flavour::kLegacy);
  EXPECT_NE(AsText(bytes).find(AsText(testing::FromHex("284b014b024b034b0474"))),
            std::string_view::npos);
}

TEST(MetadataEncoderTest, NothingAtAllHasNoMapping) {
  Metadata metadata;
  const Bytes bytes = EncodeMetadata(metadata, Flavour::kFlex);
  EXPECT_EQ(AsText(bytes).substr(bytes.size() - 4), "Nub.") << "flat_mapping is None";
}

TEST(MetadataEncoderTest, KnowsTheReleases) {
  for (const char* release : {"2.6", "2.6.2", "3.0", "3.0.0", "3.1", "3.1.1"}) {
    EXPECT_EQ(FlavourOfRelease(release).value(), Flavour::kLegacy) << release;
  }
  for (const char* release : {"3.2", "3.2.2", "3.3", "3.3.1", "3.4"}) {
    EXPECT_EQ(FlavourOfRelease(release).value(), Flavour::kFlex) << release;
  }
  for (const char* release : {"", "3", "3.", "3.5", "3.10", "2.5", "4.0", "3.1.", "3.1.1.1", "v3.1",
                              "3.x", "3.1 ", "-3.1", "3.-1", "999999999999.1", "2.61"}) {
    EXPECT_THAT(FlavourOfRelease(release), FailsWith("BAD_RELEASE")) << release;
  }
}

}  // namespace
}  // namespace reshard::paddle
