#include "reshard/base/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace reshard {
namespace {

TEST(Utf8Test, TakesWhatRfc3629Allows) {
  for (const char* text : {"", "w", "longer than eight", "\xc2\x80", "\xed\x9f\xbf", "\xef\xbf\xbf",
                           "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf", "eight by\xc3\xa9tes"}) {
    EXPECT_TRUE(IsUtf8(text)) << text;
  }
  EXPECT_TRUE(IsUtf8(std::string_view("\0", 1)));
}

TEST(Utf8Test, RefusesTheRest) {
  for (const char* text :
       {"\x80", "\xc1\xbf", "\xc2", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xef\xbf", "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "12345678\xff", "1234567\xc3"}) {
    EXPECT_FALSE(IsUtf8(text)) << text;
  }
}

}  // namespace
}  // namespace reshard
