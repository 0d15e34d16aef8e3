#include <gtest/gtest.h>

#include "reshard/storage/storage.h"
#include "tests/support/status_matchers.h"

namespace reshard::testing {
namespace {

using std::string_literals::operator""s;

TEST(NameTest, AcceptsNativeNames) {
  for (const std::string& name :
       {"a"s, "0_5.a1.safetensors"s, "10.a0.reshard.tmp"s, "A-b_c.9"s, std::string(200, 'x')}) {
    EXPECT_OK(CheckName(name));
    EXPECT_OK(CheckForeignName(name));
  }
}

TEST(NameTest, RefusesWhatCouldLeaveTheDirectory) {
  for (const std::string& name :
       {"../../etc/passwd"s, "/etc/passwd"s, "a/../../b"s, ""s, "."s, ".."s, std::string(300, 'x'),
        "a\0b"s, "a\nb"s, "a\\b"s, "-rf"s, "a..b"s, "a b"s, "\xc3\xa9"s, "./a"s, "a/"s, "a//b"s}) {
    EXPECT_THAT(CheckName(name), FailsWith("BAD_NAME")) << name;
    EXPECT_THAT(CheckForeignName(name), FailsWith("BAD_NAME")) << name;
  }
}

TEST(NameTest, ForeignNamesMayHaveFoldersAndLeadingDots) {
  for (const std::string& name : {".metadata"s, "a/b"s, "a/.b/c"s, "1/2/3/4/5/6/7/8"s}) {
    EXPECT_THAT(CheckName(name), FailsWith("BAD_NAME")) << name;
    EXPECT_OK(CheckForeignName(name));
  }
  EXPECT_THAT(CheckForeignName("1/2/3/4/5/6/7/8/9"), FailsWith("BAD_NAME"));
}

TEST(NameTest, MessageIsPrintableAndBounded) {
  const Status status = CheckName("\x1b[2J" + std::string(500, 'y'));
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, ::testing::HasSubstr("...\""));
  EXPECT_LT(status.error().message.size(), 300u);
  EXPECT_EQ(status.error().message.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace reshard::testing
