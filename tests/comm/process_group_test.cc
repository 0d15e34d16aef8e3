#include "reshard/comm/process_group.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace reshard::testing {
namespace {

Status SomeError() {
  Error error{ErrorCode::kCorruption, "BLOCK_CHECKSUM", "0_5.safetensors: block 3", true, true};
  return tl::unexpected<Error>(error);
}

TEST(EncodeStatusTest, RoundTrip) {
  ASSERT_OK_AND_ASSIGN(const Status ok, DecodeStatus(EncodeStatus(OkStatus())));
  EXPECT_TRUE(ok.ok());
  ASSERT_OK_AND_ASSIGN(const Status failed, DecodeStatus(EncodeStatus(SomeError())));
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().ToString(), SomeError().error().ToString());
  EXPECT_TRUE(failed.error().retryable);
  EXPECT_TRUE(failed.error().data_loss);
}

TEST(EncodeStatusTest, LongMessagesAreCutNotRefused) {
  const Status status = MakeError(ErrorCode::kIo, "WRITE", std::string(1 << 20, 'x'));
  const Result<Status> back = DecodeStatus(EncodeStatus(status));
  ASSERT_TRUE(back.ok() && !back->ok());
  EXPECT_EQ(back->error().message.size(), 64u << 10);
}

TEST(DecodeStatusTest, RefusesEveryCutAndLongerInput) {
  const Bytes whole = EncodeStatus(SomeError());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_THAT(DecodeStatus(ByteSpan(whole).first(length)), FailsWith("BAD_STATUS")) << length;
  }
  Bytes longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_THAT(DecodeStatus(longer), FailsWith("BAD_STATUS"));
}

TEST(DecodeStatusTest, RefusesUnknownCodesFlagsAndLengths) {
  const Bytes whole = EncodeStatus(SomeError());
  for (const auto& [at, value] :
       {std::pair<std::size_t, int>{0, 12}, {0, 255}, {1, 4}, {2, 255}, {5, 255}, {9, 255}}) {
    Bytes bad = whole;
    bad[at] = static_cast<std::byte>(value);
    EXPECT_THAT(DecodeStatus(bad), FailsWith("BAD_STATUS")) << at;
  }
  Bytes ok_with_reason = whole;
  ok_with_reason[0] = std::byte{0};
  EXPECT_THAT(DecodeStatus(ok_with_reason), FailsWith("BAD_STATUS"));
}

}  // namespace
}  // namespace reshard::testing
