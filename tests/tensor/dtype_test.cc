#include "reshard/tensor/dtype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/status_matchers.h"

namespace reshard {
namespace {

using testing::FailsWith;
using ::testing::HasSubstr;
using ::testing::Not;

struct Expected {
  DType dtype;
  int number;
  const char* name;
  const char* tag;
  std::uint32_t bits;
  std::uint32_t unit_elements;
  std::uint32_t unit_bytes;
  bool split;
};

class DTypeTest : public ::testing::TestWithParam<Expected> {};

TEST_P(DTypeTest, HasItsNumberNameTagAndSizes) {
  const Expected& want = GetParam();
  const DTypeInfo& info = Info(want.dtype);
  EXPECT_EQ(static_cast<int>(info.dtype), want.number);
  EXPECT_EQ(info.name, want.name);
  EXPECT_EQ(info.safetensors, want.tag);
  EXPECT_EQ(info.bits, want.bits);
  EXPECT_EQ(info.unit_elements, want.unit_elements);
  EXPECT_EQ(info.unit_bytes, want.unit_bytes);
  EXPECT_EQ(info.split_complex, want.split);
  EXPECT_TRUE(IsDType(static_cast<std::uint8_t>(want.number)));
}

TEST_P(DTypeTest, IsFoundByNameAndTag) {
  const Expected& want = GetParam();
  ASSERT_OK_AND_ASSIGN(const DType by_name, DTypeFromName(want.name));
  EXPECT_EQ(by_name, want.dtype);
  ASSERT_OK_AND_ASSIGN(const DType by_tag, DTypeFromSafetensors(want.tag));
  if (!want.split) {
    EXPECT_EQ(by_tag, want.dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, DTypeTest,
    ::testing::Values(
        Expected{DType::kBool, 1, "bool", "BOOL", 8, 1, 1, false},
        Expected{DType::kUint8, 2, "uint8", "U8", 8, 1, 1, false},
        Expected{DType::kInt8, 3, "int8", "I8", 8, 1, 1, false},
        Expected{DType::kUint16, 4, "uint16", "U16", 16, 1, 2, false},
        Expected{DType::kInt16, 5, "int16", "I16", 16, 1, 2, false},
        Expected{DType::kUint32, 6, "uint32", "U32", 32, 1, 4, false},
        Expected{DType::kInt32, 7, "int32", "I32", 32, 1, 4, false},
        Expected{DType::kUint64, 8, "uint64", "U64", 64, 1, 8, false},
        Expected{DType::kInt64, 9, "int64", "I64", 64, 1, 8, false},
        Expected{DType::kFloat16, 10, "float16", "F16", 16, 1, 2, false},
        Expected{DType::kBfloat16, 11, "bfloat16", "BF16", 16, 1, 2, false},
        Expected{DType::kFloat32, 12, "float32", "F32", 32, 1, 4, false},
        Expected{DType::kFloat64, 13, "float64", "F64", 64, 1, 8, false},
        Expected{DType::kComplex32, 14, "complex32", "F16", 32, 1, 4, true},
        Expected{DType::kComplex64, 15, "complex64", "C64", 64, 1, 8, false},
        Expected{DType::kComplex128, 16, "complex128", "F64", 128, 1, 16, true},
        Expected{DType::kFloat8E4m3fn, 17, "float8_e4m3fn", "F8_E4M3", 8, 1, 1, false},
        Expected{DType::kFloat8E5m2, 18, "float8_e5m2", "F8_E5M2", 8, 1, 1, false},
        Expected{DType::kFloat8E8m0fnu, 19, "float8_e8m0fnu", "F8_E8M0", 8, 1, 1, false},
        Expected{DType::kFloat8E4m3fnuz, 20, "float8_e4m3fnuz", "F8_E4M3FNUZ", 8, 1, 1, false},
        Expected{DType::kFloat8E5m2fnuz, 21, "float8_e5m2fnuz", "F8_E5M2FNUZ", 8, 1, 1, false},
        Expected{DType::kFloat4E2m1, 22, "float4_e2m1", "F4", 4, 2, 1, false},
        Expected{DType::kFloat6E2m3, 23, "float6_e2m3", "F6_E2M3", 6, 4, 3, false},
        Expected{DType::kFloat6E3m2, 24, "float6_e3m2", "F6_E3M2", 6, 4, 3, false}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST(DTypeTableTest, ListsAllInNumberOrder) {
  int number = 0;
  for (const DTypeInfo& info : AllDTypes()) {
    EXPECT_EQ(static_cast<int>(info.dtype), ++number);
  }
  EXPECT_EQ(number, 24);
}

TEST(DTypeTableTest, OtherNumbersAreNoDTypes) {
  EXPECT_FALSE(IsDType(0));
  EXPECT_FALSE(IsDType(25));
  EXPECT_FALSE(IsDType(255));
}

TEST(DTypeTableTest, TagOfASplitComplexIsTheRealType) {
  EXPECT_EQ(*DTypeFromSafetensors("F16"), DType::kFloat16);
  EXPECT_EQ(*DTypeFromSafetensors("F64"), DType::kFloat64);
}

TEST(DTypeTableTest, UnknownNameListsTheNamesAndTheNearest) {
  const auto result = DTypeFromName("flaot32");
  ASSERT_THAT(result, FailsWith("BAD_DTYPE"));
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(result.error().message, HasSubstr("did you mean 'float32'?"));
  for (const DTypeInfo& info : AllDTypes()) {
    EXPECT_THAT(result.error().message, HasSubstr(std::string(info.name)));
  }
}

TEST(DTypeTableTest, SafetensorsTagGivenAsANameSuggestsTheName) {
  EXPECT_THAT(DTypeFromName("BF16").error().message, HasSubstr("did you mean 'bfloat16'?"));
  EXPECT_THAT(DTypeFromName("F16").error().message, HasSubstr("did you mean 'float16'?"));
}

TEST(DTypeTableTest, NothingNearIsSuggestedForAnotherWord) {
  EXPECT_THAT(DTypeFromName("quaternion").error().message, Not(HasSubstr("did you mean")));
  EXPECT_THAT(DTypeFromName(""), FailsWith("BAD_DTYPE"));
}

TEST(DTypeTableTest, NamesAreExact) {
  EXPECT_THAT(DTypeFromName("Float32"), FailsWith("BAD_DTYPE"));
  EXPECT_THAT(DTypeFromSafetensors("f32"), FailsWith("BAD_DTYPE"));
}

TEST(DTypeTableTest, UnknownTagIsShownShortAndPrintable) {
  const std::string message = DTypeFromSafetensors("F8\n" + std::string(1000, 'x')).error().message;
  EXPECT_THAT(message, HasSubstr("'F8?xxx"));
  EXPECT_THAT(message, HasSubstr("F6_E3M2"));
  EXPECT_LT(message.size(), 400U);
}

}  // namespace
}  // namespace reshard
