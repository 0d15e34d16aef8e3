#include "reshard/base/error.h"

#include <gtest/gtest.h>

#include "reshard/base/result.h"

namespace reshard {
namespace {

Status Fail() { return MakeError(ErrorCode::kCorruption, "BLOCK_CHECKSUM", "block 3 differs"); }

Result<int> Forward() {
  RESHARD_TRY(Fail());
  return 1;
}

Result<int> Add(Result<int> a, Result<int> b) {
  RESHARD_TRY_ASSIGN(const int x, std::move(a));
  RESHARD_TRY_ASSIGN(const int y, std::move(b));
  return x + y;
}

TEST(ErrorTest, TextNamesCodeReasonAndMessage) {
  EXPECT_EQ(Fail().error().ToString(), "corruption [BLOCK_CHECKSUM]: block 3 differs");
}

TEST(ErrorTest, ContextIsPutBeforeTheMessage) {
  EXPECT_EQ(Fail().error().WithContext("0_0.safetensors").message,
            "0_0.safetensors: block 3 differs");
}

TEST(ErrorTest, TryPassesTheErrorOn) { EXPECT_EQ(Forward().error().reason, "BLOCK_CHECKSUM"); }

TEST(ErrorTest, TryAssignTakesTheValueOrPassesTheErrorOn) {
  EXPECT_EQ(*Add(2, 3), 5);
  EXPECT_EQ(Add(2, Forward()).error().reason, "BLOCK_CHECKSUM");
}

}  // namespace
}  // namespace reshard
