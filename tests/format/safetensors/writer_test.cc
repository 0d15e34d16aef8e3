#include "reshard/format/safetensors/writer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "reshard/format/safetensors/header.h"
#include "tests/support/hex.h"
#include "tests/support/status_matchers.h"

namespace reshard::safetensors {
namespace {

using ::reshard::testing::FailsWith;

TEST(SafetensorsWriterTest, HeaderOfTwoTensors) {
  const Shape matrix = {2, 3};
  const WriteEntry entries[] = {{"w\"\n\u00e9", DType::kFloat32, matrix},
                                {"s", DType::kBfloat16, {}}};
  ASSERT_OK_AND_ASSIGN(Bytes bytes, EncodeHeader(entries));
  const auto length = LoadLittle<std::uint64_t>(bytes.data());
  EXPECT_EQ(bytes.size(), 8 + length);
  EXPECT_EQ(length % 8, 0U);
  const std::string_view text = AsText(ByteSpan(bytes).subspan(8));
  EXPECT_EQ(text.substr(0, text.find_last_not_of(' ') + 1),
            "{\"__metadata__\":{\"format\":\"pt\"},"
            "\"w\\\"\\n\u00e9\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
            "\"s\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[24,26]}}");
}

TEST(SafetensorsWriterTest, TooManyTensorsForOneFile) {
  const std::string name(4000, 'n');
  const std::vector<WriteEntry> entries(25'000, WriteEntry{name, DType::kUint8, {}});
  EXPECT_THAT(EncodeHeader(entries), FailsWith("HEADER_TOO_LARGE"));
}

// The example of docs/format/safetensors.md section 2.
TEST(SafetensorsWriterTest, TheDocumentsExample) {
  const Bytes bytes = reshard::testing::FromHex(
      "38 00 00 00 00 00 00 00  7b 22 77 22 3a 7b 22 64 74 79 70 65 22 3a 22 46  33 32 22 2c 22 73 "
      "68 61 70 65 22 3a 5b 31 5d 2c  22 64 61 74 61 5f 6f 66 66 73 65 74 73 22 3a 5b  30 2c 34 5d "
      "7d 7d 20 20 00 00 80 3f");
  MemorySource source(bytes);
  ASSERT_OK_AND_ASSIGN(const Header header, ReadHeader(source));
  ASSERT_EQ(header.entries.size(), 1U);
  EXPECT_EQ(header.entries[0].name, "w");
  EXPECT_EQ(header.entries[0].bytes, (ByteRange{64, 4}));
  float value = 0;
  std::memcpy(&value, bytes.data() + 64, sizeof(value));
  EXPECT_EQ(value, 1.0F);
}

TEST(SafetensorsWriterTest, DTypesWithoutATag) {
  EXPECT_FALSE(HasTag(DType::kComplex32));
  EXPECT_FALSE(HasTag(DType::kComplex128));
  EXPECT_TRUE(HasTag(DType::kComplex64));
}

}  // namespace
}  // namespace reshard::safetensors
