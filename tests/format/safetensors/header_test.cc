#include "reshard/format/safetensors/header.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

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
  ASSERT_OK_AND_ASSIGN(const Header header,
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
  EXPECT_THAT(Read("{\"\xff\":{}}", 0), FailsWith(kBadString));
}

/// One tensor that is not wrong in itself.
std::string Tensor(std::string_view name, std::string_view dtype, std::string_view shape,
                   std::string_view range) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape,
                     range);
}

// The hostile files S1 to S20 that every safetensors reader should have an answer to.

TEST(SafetensorsHostileTest, S01LengthFieldOf63Bits) {
  Bytes bytes;
  AppendLittle<std::uint64_t>(bytes, std::uint64_t{1} << 63);
  bytes.push_back(std::byte{'{'});
  const testing::AllocationMeter meter;
  EXPECT_THAT(Read(bytes), FailsWith("HEADER_TOO_LARGE"));
  EXPECT_LT(meter.total(), 16U * 1024);
}

TEST(SafetensorsHostileTest, S02HeaderLongerThanTheFile) {
  Bytes bytes;
  AppendLittle<std::uint64_t>(bytes, 100);
  bytes.resize(10);
  EXPECT_THAT(Read(bytes), FailsWith("HEADER_TRUNCATED"));
}

TEST(SafetensorsHostileTest, S03TooShort) {
  EXPECT_THAT(Read(Bytes()), FailsWith("TOO_SHORT"));
  EXPECT_THAT(Read(Bytes(7)), FailsWith("TOO_SHORT"));
  EXPECT_THAT(Read(Bytes(8)), FailsWith("HEADER_EMPTY"));
}

TEST(SafetensorsHostileTest, S04SameNameTwice) {
  EXPECT_THAT(Read("{" + Tensor("a", "F32", "[2]", "[0,8]") + "," +
                       Tensor("a", "I64", "[1]", "[0,8]") + "}",
                   8),
              FailsWith("DUPLICATE_NAME"));
}

TEST(SafetensorsHostileTest, S05SameNameAfterUnescaping) {
  EXPECT_THAT(Read("{" + Tensor("a", "U8", "[1]", "[0,1]") + "," +
                       Tensor("\\u0061", "U8", "[1]", "[1,2]") + "}",
                   2),
              FailsWith("DUPLICATE_NAME"));
}

TEST(SafetensorsHostileTest, S06RangesOverlap) {
  EXPECT_THAT(
      Read("{" + Tensor("a", "U8", "[2]", "[0,2]") + "," + Tensor("b", "U8", "[2]", "[1,3]") + "}",
           3),
      FailsWith("OVERLAP"));
}

TEST(SafetensorsHostileTest, S07GapBetweenRanges) {
  EXPECT_THAT(
      Read("{" + Tensor("a", "U8", "[1]", "[0,1]") + "," + Tensor("b", "U8", "[1]", "[2,3]") + "}",
           3),
      FailsWith("GAP"));
  EXPECT_THAT(Read("{" + Tensor("b", "U8", "[1]", "[1,2]") + "}", 2), FailsWith("GAP"));
}

TEST(SafetensorsHostileTest, S08BytesAfterTheLastTensor) {
  EXPECT_THAT(Read("{}", 1), FailsWith("TRAILING_DATA"));
  EXPECT_THAT(Read("{" + Tensor("a", "U8", "[1]", "[0,1]") + "}", 2), FailsWith("TRAILING_DATA"));
}

TEST(SafetensorsHostileTest, S09DataShort) {
  EXPECT_THAT(Read("{" + Tensor("a", "U8", "[2]", "[0,2]") + "}", 1), FailsWith("DATA_TRUNCATED"));
}

TEST(SafetensorsHostileTest, S10RangeEndsBeforeItBegins) {
  EXPECT_THAT(Read("{" + Tensor("a", "U8", "[1]", "[1,0]") + "}", 1), FailsWith("BAD_RANGE"));
}

TEST(SafetensorsHostileTest, S11ShapeWhoseProductWraps) {
  EXPECT_THAT(
      Read("{" + Tensor("a", "F32", "[4194305,4194305,211106198978564]", "[0,16]") + "}", 16),
      FailsWith("SHAPE_OVERFLOW"));
}

TEST(SafetensorsHostileTest, S12ZeroHidesNoOverflow) {
  for (const char* shape : {"[0,18446744073709551615,18446744073709551615]",
                            "[18446744073709551615,0,18446744073709551615]",
                            "[18446744073709551615,18446744073709551615,0]"}) {
    EXPECT_THAT(Read("{" + Tensor("a", "U8", shape, "[0,0]") + "}", 0), FailsWith("SHAPE_OVERFLOW"))
        << shape;
  }
}

TEST(SafetensorsHostileTest, S13HalfABytes) {
  EXPECT_THAT(Read("{" + Tensor("a", "F4", "[3]", "[0,1]") + "}", 1), FailsWith("NOT_BYTE_SIZED"));
  EXPECT_THAT(Read("{" + Tensor("a", "F6_E2M3", "[2]", "[0,1]") + "}", 1),
              FailsWith("NOT_BYTE_SIZED"));
}

TEST(SafetensorsHostileTest, S14OddIntegers) {
  for (const char* shape : {"[1e0]", "[2.0]", "[-1]", "[-0]", "[01]", "[18446744073709551616]"}) {
    EXPECT_THAT(Read("{" + Tensor("a", "U8", shape, "[0,1]") + "}", 1), FailsWith("BAD_INTEGER"))
        << shape;
  }
  EXPECT_THAT(Read("{" + Tensor("a", "U8", "[1]", "[0,1.0]") + "}", 1), FailsWith("BAD_INTEGER"));
}

TEST(SafetensorsHostileTest, S15DeepNesting) {
  EXPECT_THAT(Read(std::string(100'000'000, '['), 0), FailsWith("DEPTH"));
  EXPECT_THAT(Read(R"({"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", 1),
              FailsWith("DEPTH"));
  EXPECT_THAT(Read(R"({"a":{"shape":{"b":1}}})", 1), FailsWith("DEPTH"));
}

TEST(SafetensorsHostileTest, S16AMillionTensorsInBoundedMemory) {
  std::string json = "{";
  std::size_t count = 0;
  constexpr std::size_t kBytes = std::size_t{10} << 20;  // a tenth of what is legal
  while (json.size() < kBytes) {
    json += fmt::format(R"({}"{:x}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                        count == 0 ? "" : ",", count);
    ++count;
  }
  json += "}";
  const Bytes bytes = File(json, 0);
  const testing::AllocationMeter meter;
  ASSERT_OK_AND_ASSIGN(const Header header, Read(bytes));
  EXPECT_EQ(header.entries.size(), count);
  EXPECT_GT(count, 180'000U);
  // All that was ever allocated, thus more than the peak.
  EXPECT_LT(meter.total(), 24 * json.size());
}

TEST(SafetensorsHostileTest, S17BadTexts) {
  const std::vector<std::string> names = {
      "\xff",      "\xc0\xaf", "\xed\xa0\x80",
      "\\ud800",   "\\ud800x", "\\udc00",
      "a\\u0000b", "a\\nb",    "a\x01z",
      "a\\u007f",  "",         std::string(kMaxNameBytes + 1, 'n')};
  for (const std::string& name : names) {
    EXPECT_THAT(Read("{" + Tensor(name, "U8", "[1]", "[0,1]") + "}", 1), FailsWith("BAD_STRING"))
        << name.substr(0, 20);
  }
  EXPECT_OK(Read("{" + Tensor(std::string(kMaxNameBytes, 'n'), "U8", "[1]", "[0,1]") + "}", 1));
  EXPECT_OK(Read("{" + Tensor("\\ud83d\\ude00", "U8", "[1]", "[0,1]") + "}", 1));
}

TEST(SafetensorsHostileTest, S18BadDTypes) {
  for (const char* dtype : {"F31", "f32", "", "F32 "}) {
    EXPECT_THAT(Read("{" + Tensor("a", dtype, "[1]", "[0,4]") + "}", 4), FailsWith("BAD_DTYPE"))
        << dtype;
  }
  for (const char* field :
       {R"("dtype":32,)", R"("dtype":null,)", R"("dtype":-1,)", R"("dtype":["F32"],)", ""}) {
    EXPECT_THAT(Read(fmt::format(R"({{"a":{{{}"shape":[1],"data_offsets":[0,4]}}}})", field), 4),
                FailsWith("BAD_DTYPE"))
        << field;
  }
}

TEST(SafetensorsHostileTest, S19OddMetadata) {
  for (const char* json :
       {R"({"__metadata__":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
        R"({"__metadata__":{},"__metadata__":{}})", R"({"__metadata__":{"a":"b","\u0061":"c"}})",
        R"({"__metadata__":{"a":1}})", R"({"__metadata__":{"a":-1}})",
        R"({"__metadata__":{"a":1.5}})", R"({"__metadata__":{"a":null}})",
        R"({"__metadata__":{"a":{}}})", R"({"__metadata__":{"a":["b"]}})",
        R"({"__metadata__":"text"})", R"({"__metadata__":7})", R"({"__metadata__":null})"}) {
    EXPECT_THAT(Read(json, 0), FailsWith("BAD_METADATA")) << json;
  }
}

/// A file that is cut while it is read.
class ShrinkingSource final : public ByteSource {
 public:
  explicit ShrinkingSource(const Bytes& bytes) : all_(bytes), rest_(ByteSpan(bytes).first(20)) {}

  std::uint64_t size() const override { return all_.size(); }

  Status ReadAt(std::uint64_t offset, MutableByteSpan out) override {
    return offset == 0 ? all_.ReadAt(offset, out) : rest_.ReadAt(offset, out);
  }

 private:
  MemorySource all_;
  MemorySource rest_;
};

// Between the header and the data the size is compared when the file is opened to read the data:
// FILE_SIZE, ForeignSafetensorsTest.
TEST(SafetensorsHostileTest, S20FileShrinksWhileItIsRead) {
  const Bytes bytes = File("{" + Tensor("a", "U8", "[1]", "[0,1]") + "}", 1);
  ShrinkingSource source(bytes);
  EXPECT_THAT(ReadHeader(source), FailsWith("FILE_TRUNCATED"));
}

TEST(SafetensorsHeaderTest, SpaceAroundTheJsonAndNoPadding) {
  EXPECT_OK(Read(" \t\r\n{" + Tensor("a", "U8", "[1]", "[0,1]") + "}\n \t\r ", 1));
  ASSERT_OK_AND_ASSIGN(const Header header,
                       Read("{" + Tensor("a", "F32", "[1]", "[0,4]") + "}", 4));
  EXPECT_NE(header.payload_offset % 8, 0U);
  EXPECT_OK(Read("{}", 0));
  EXPECT_OK(Read(R"({"__metadata__":{}})", 0));
  EXPECT_THAT(Read(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x_y":1}})", 1),
              FailsWith(kBadHeader));
  EXPECT_THAT(Read(R"({"a":1})", 0), FailsWith(kBadHeader));
}

TEST(SafetensorsHeaderTest, EveryDType) {
  for (const DTypeInfo& info : AllDTypes()) {
    if (!info.split_complex) {
      const std::string json =
          "{" + Tensor("a", info.safetensors, "[12]", fmt::format("[0,{}]", 12 * info.bits / 8)) +
          "}";
      ASSERT_OK_AND_ASSIGN(const Header header, Read(json, 12 * info.bits / 8));
      EXPECT_EQ(header.entries[0].dtype, info.dtype) << info.name;
    }
  }
}

TEST(SafetensorsHeaderTest, CutAtEveryLengthAndEveryByteFlipped) {
  const Bytes good = File(R"({"__metadata__":{"k":"v"},)" + Tensor("a", "U8", "[2]", "[0,2]") +
                              "," + Tensor("b", "F32", "[2]", "[2,10]") + "}",
                          10);
  ASSERT_OK(Read(good));
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(Read(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size))).ok());
  }
  for (std::size_t at = 0; at + 10 < good.size(); ++at) {
    for (const int bit : {0x01, 0x20, 0x80}) {
      Bytes bad = good;
      bad[at] ^= static_cast<std::byte>(bit);
      const Result<Header> header = Read(bad);  // an error, or another name: never a crash
      EXPECT_TRUE(header.ok() || header.error().code == ErrorCode::kCorruption);
    }
  }
}

}  // namespace
}  // namespace reshard::safetensors
