#pragma once

// gmock matchers and assertions for Status and Result.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/base/result.h"

#define ASSERT_OK(expr)                                                                     \
  do {                                                                                      \
    const auto& reshard_test_status = (expr);                                               \
    ASSERT_TRUE(reshard_test_status.has_value()) << reshard_test_status.error().ToString(); \
  } while (false)

#define EXPECT_OK(expr)                                                                     \
  do {                                                                                      \
    const auto& reshard_test_status = (expr);                                               \
    EXPECT_TRUE(reshard_test_status.has_value()) << reshard_test_status.error().ToString(); \
  } while (false)

/// Declares or assigns `lhs` from a Result, failing the test on an error.
#define ASSERT_OK_AND_ASSIGN(lhs, expr) \
  ASSERT_OK_AND_ASSIGN_IMPL(RESHARD_CONCAT(reshard_test_result_, __LINE__), lhs, expr)
#define ASSERT_OK_AND_ASSIGN_IMPL(result, lhs, expr)            \
  auto result = (expr);                                         \
  ASSERT_TRUE(result.has_value()) << result.error().ToString(); \
  lhs = std::move(*result)

namespace reshard::testing {

/// Matches a failed Status or Result by its reason.
MATCHER_P(FailsWith, reason, "") {
  if (arg.has_value()) {
    *result_listener << "which is OK";
    return false;
  }
  *result_listener << "which is " << arg.error().ToString();
  return arg.error().reason == reason;
}

}  // namespace reshard::testing
