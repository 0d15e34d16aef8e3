#include "reshard/cli/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/cli/progress_bar.h"
#include "tests/support/status_matchers.h"

namespace reshard::cli {
namespace {

using ::reshard::testing::FailsWith;

TEST(TextTest, BytesForPeople) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.00 KiB");
  EXPECT_EQ(HumanBytes(2'126'008'811), "1.98 GiB");
  EXPECT_EQ(HumanBytes((1ULL << 30) - 1), "1.00 GiB");
  EXPECT_EQ(HumanBytes(~0ULL), "16.00 EiB");
}

TEST(TextTest, Durations) {
  EXPECT_EQ(*ParseDuration("90"), std::chrono::seconds(90));
  EXPECT_EQ(*ParseDuration("30m"), std::chrono::minutes(30));
  EXPECT_EQ(*ParseDuration("12h"), std::chrono::hours(12));
  EXPECT_EQ(*ParseDuration("1d"), std::chrono::hours(24));
  EXPECT_EQ(*ParseDuration("0s"), std::chrono::seconds(0));
  for (const char* bad : {"", "d", "1y", "-1d", "1 d", "1dd", "99999999999999999999s"}) {
    EXPECT_THAT(ParseDuration(bad), FailsWith("BAD_DURATION")) << bad;
  }
}

TEST(TextTest, ControlBytesDoNotReachTheTerminal) {
  EXPECT_EQ(Printable("a\x1b[2Jb\n"), "a\\x1b[2Jb\\x0a");
  EXPECT_EQ(Printable("\u00e9"), "\u00e9");
}

TEST(TextTest, ShortenKeepsBothEndsAndWholeCharacters) {
  EXPECT_EQ(Shorten("abcdefghij", 10), "abcdefghij");
  EXPECT_EQ(Shorten("abcdefghijk", 10), "abc...hijk");
  EXPECT_EQ(Shorten("\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9", 10),
            "\u00e9...\u00e9\u00e9");
}

TEST(TextTest, NearestIsWhatWasMeantOrNothing) {
  const std::vector<std::string> words = {"info", "ls", "verify", "latest", "gc"};
  EXPECT_EQ(Nearest("inof", words), "info");
  EXPECT_EQ(Nearest("lastest", words), "latest");
  EXPECT_EQ(Nearest("VERIFY!", words), std::nullopt);
  EXPECT_EQ(Nearest("frobnicate", words), std::nullopt);
}

TEST(TextTest, TablesFitTheTerminal) {
  Table table({"KEY", "N"});
  table.AddRow({"model.layers.0.attention.weight", "1"});
  table.AddRow({"b", "22"});
  EXPECT_EQ(table.Render(0),
            "KEY                              N\n"
            "model.layers.0.attention.weight  1\n"
            "b                                22\n");
  EXPECT_EQ(table.Render(24),
            "KEY                   N\n"
            "model.la...on.weight  1\n"
            "b                     22\n");
}

TEST(ProgressBarTest, ShowsPartRateAndTimeLeft) {
  EXPECT_EQ(
      ProgressLine("verify", {1ULL << 29, 1ULL << 30}, 2.0),
      "verify [############............]  50%  512.00 MiB of 1.00 GiB  256.00 MiB/s  0:02 left");
  EXPECT_EQ(ProgressLine("verify", {0, 0}, 0.0),
            "verify [........................]   0%  0 B of 0 B  0 B/s");
}

}  // namespace
}  // namespace reshard::cli
