#pragma once

// Result<T> and Status: tl::expected that must not be ignored, and the two macros that pass errors
// on. A Status is a Result<void>; a default-constructed Status is success.

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

#include "reshard/base/error.h"

namespace reshard {

/// A value of T, or the Error that kept it from being made.
template <typename T>
class [[nodiscard]] Result : public tl::expected<T, Error> {
 public:
  using tl::expected<T, Error>::expected;

  bool ok() const { return this->has_value(); }
};

/// Success, or an Error.
using Status = Result<void>;

/// Success.
inline Status OkStatus() { return Status(); }

/// Makes the failure that a function returning Result or Status returns.
inline tl::unexpected<Error> MakeError(ErrorCode code, std::string_view reason,
                                       std::string message) {
  return tl::unexpected<Error>(Error{code, std::string(reason), std::move(message), false, false});
}

}  // namespace reshard

#define RESHARD_CONCAT_INNER(a, b) a##b
#define RESHARD_CONCAT(a, b) RESHARD_CONCAT_INNER(a, b)

/// Returns from the enclosing function when `expr`, a Status or Result, is an error.
#define RESHARD_TRY(expr)                                                         \
  do {                                                                            \
    auto reshard_status = (expr);                                                 \
    if (!reshard_status.has_value()) {                                            \
      return tl::unexpected<::reshard::Error>(std::move(reshard_status).error()); \
    }                                                                             \
  } while (false)

// NOLINTBEGIN(bugprone-macro-parentheses): names and declarations cannot stand in parentheses.
#define RESHARD_TRY_ASSIGN_IMPL(result, lhs, expr)                      \
  auto result = (expr);                                                 \
  if (!result.has_value()) {                                            \
    return tl::unexpected<::reshard::Error>(std::move(result).error()); \
  }                                                                     \
  lhs = std::move(*result)
// NOLINTEND(bugprone-macro-parentheses)

/// Evaluates `expr`, a Result<T>; assigns its value to `lhs` or returns its error.
#define RESHARD_TRY_ASSIGN(lhs, expr) \
  RESHARD_TRY_ASSIGN_IMPL(RESHARD_CONCAT(reshard_result_, __LINE__), lhs, expr)
