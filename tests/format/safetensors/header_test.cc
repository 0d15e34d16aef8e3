#include "reshard/format/safetensors/header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/allocation_meter.h"
#include "tests/support/status_matchers.h"

namespace reshard::safetensors {
namespace {

using ::reshard::testing::FailsWith;
using ::testing::ElementsAre;

Bytes File(std::string_view json, std::size_t data_bytes) {
  Bytes out;
  AppendLittle<std::uint64_t>(out, json.size());
  const ByteSpan text = AsBytes(json);
  out.insert(out.end(), text.begin(), text.end());
  out.resize(out.size() + data_bytes);
  return out;
}

Result<Header> Read(const Bytes& bytes) {
  MemorySource source(bytes);
  return ReadHeader(source);
}

Result<Header> Read(std::string_view json, std::size_t data_bytes) {
  return Read(File(json, data_bytes));
}

TEST(SafetensorsHeaderTest, Tensors) {
  ASSERT_OK_AND_ASSIGN(
      const Header header,
      Read(R"( {"b":{"dtype":"F32","shape":[2],"data_offsets":[3,11]},)"
           R"("__metadata__":{"k":"v"},)"
           R"("a":{"shape":[3],"data_offsets":[0,3],"dtype":"U8"}} )",
           11));
  ASSERT_EQ(header.entries.size(), 2U);
  EXPECT_EQ(header.entries[0].name, "a");
  EXPECT_EQ(header.entries[0].dtype, DType::kUint8);
  EXPECT_THAT(header.entries[1].shape, ElementsAre(2));
  EXPECT_EQ(header.entries[1].bytes, (ByteRange{header.payload_offset + 3, 8}));
  EXPECT_THAT(header.metadata, ElementsAre(std::pair<std::string, std::string>("k", "v")));
  EXPECT_OK(Read(R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4));
  EXPECT_OK(Read(R"({"z":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]}})", 0));
}

TEST(SafetensorsHeaderTest, SizesAreCheckedFirst) {
  const testing::AllocationMeter meter;
  Bytes huge;
  AppendLittle<std::uint64_t>(huge, std::uint64_t{1} << 63);
  huge.push_back(std::byte{'{'});
  EXPECT_THAT(Read(huge), FailsWith(kHeaderTooLarge));
  Bytes cut;
  AppendLittle<std::uint64_t>(cut, 100);
  cut.resize(10);
  EXPECT_THAT(Read(cut), FailsWith(kHeaderTruncated));
  EXPECT_THAT(Read(Bytes{}), FailsWith(kTooShort));
  EXPECT_THAT(Read(Bytes(7)), FailsWith(kTooShort));
  EXPECT_THAT(Read(Bytes(8)), FailsWith(kHeaderEmpty));
  EXPECT_LT(meter.total(), 64U * 1024);
}

TEST(SafetensorsHeaderTest, NamesAreUniqueAfterUnescaping) {
  EXPECT_THAT(Read(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                   R"("\u0061":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                   2),
              FailsWith(kDuplicateName));
  EXPECT_THAT(Read(R"({"a\u0000":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
              FailsWith(kBadString));
  EXPECT_THAT(Read(R"({"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}})", 1),
              FailsWith(kBadHeader));
}

TEST(SafetensorsHeaderTest, BytesFollowEachOther) {
  const auto two = [](std::string_view first, std::string_view second, std::size_t size) {
    return Read(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)" + std::string(first) +
                    R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":)" + std::string(second) +
                    "}}",
                size);
  };
  EXPECT_OK(two("[0,2]", "[2,4]", 4));
  EXPECT_THAT(two("[0,2]", "[1,3]", 3), FailsWith(kOverlap));
  EXPECT_THAT(two("[0,2]", "[3,5]", 5), FailsWith(kGap));
  EXPECT_THAT(two("[0,2]", "[2,4]", 5), FailsWith(kTrailing));
  EXPECT_THAT(two("[0,2]", "[2,4]", 3), FailsWith(kDataTruncated));
  EXPECT_THAT(two("[0,2]", "[4,2]", 4), FailsWith(kBadRange));
  EXPECT_THAT(two("[0,2]", "[2,5]", 5), FailsWith(kBadRange));
}

TEST(SafetensorsHeaderTest, ValuesThatAreNotOfTheFormat) {
  const auto tensor = [](std::string_view dtype, std::string_view shape) {
    return Read(R"({"a":{"dtype":)" + std::string(dtype) + R"(,"shape":)" + std::string(shape) +
                    R"(,"data_offsets":[0,1]}})",
                1);
  };
  EXPECT_OK(tensor("\"U8\"", "[1]"));
  for (const char* shape : {"[1e0]", "[1.0]", "[-1]", "[99999999999999999999]"}) {
    EXPECT_THAT(tensor("\"U8\"", shape), FailsWith(kBadInteger)) << shape;
  }
  EXPECT_THAT(tensor("\"U8\"", "[[1]]"), FailsWith(kDepth));
  EXPECT_THAT(tensor("\"U8\"", "[18446744073709551615,2]"), FailsWith("SHAPE_OVERFLOW"));
  EXPECT_THAT(tensor("\"U8\"", "[0,18446744073709551615,2]"), FailsWith("SHAPE_OVERFLOW"));
  EXPECT_THAT(tensor("\"F31\"", "[1]"), FailsWith(kBadDType));
  EXPECT_THAT(tensor("\"u8\"", "[1]"), FailsWith(kBadDType));
  EXPECT_THAT(tensor("8", "[1]"), FailsWith(kBadDType));
  EXPECT_THAT(Read(R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1), FailsWith(kBadDType));
  EXPECT_THAT(Read(R"({"a":["U8",[1],[0,1]]})", 1), FailsWith(kDepth));
  EXPECT_THAT(Read(std::string(1'000'000, '['), 0), FailsWith(kDepth));
  EXPECT_THAT(Read(R"({"__metadata__":{"a":1}})", 0), FailsWith(kBadMetadata));
  EXPECT_THAT(Read(R"({"__metadata__":{},"__metadata__":{}})", 0), FailsWith(kBadMetadata));
  EXPECT_THAT(Read("{} x", 0), FailsWith(kBadHeader));
  EXPECT_THAT(Read("[]", 0), FailsWith(kDepth));
  EXPECT_THAT(Read("{\"\xff\":{}}", 0), FailsWith(kBadHeader));
}

}  // namespace
}  // namespace reshard::safetensors
