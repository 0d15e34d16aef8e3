#pragma once

// Ctrl-C for commands that write: they stop at the next step and clean up behind themselves.

#include "reshard/base/result.h"

namespace reshard::cli {

/// While it lives, the first SIGINT or SIGTERM is noted only; a second one ends the process as
/// usual. One at a time in a process.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  /// Errors: kCancelled INTERRUPTED when a signal came. Thread-safe.
  static Status Check();
};

}  // namespace reshard::cli
