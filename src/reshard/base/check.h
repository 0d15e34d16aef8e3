#pragma once

// RESHARD_CHECK: aborts on a bug of this library, never on input.

#include <string_view>

namespace reshard {

/// Prints the failed condition and aborts.
[[noreturn]] void CheckFailed(std::string_view file, int line, std::string_view condition);

}  // namespace reshard

/// Aborts when `condition` is false. For our own invariants only; input gets an Error.
#define RESHARD_CHECK(condition)                              \
  do {                                                        \
    if (!(condition)) {                                       \
      ::reshard::CheckFailed(__FILE__, __LINE__, #condition); \
    }                                                         \
  } while (false)
