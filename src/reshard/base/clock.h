#pragma once

// Time behind an interface, so that tests can make a deadline pass at once.

#include <chrono>

namespace reshard {

/// Source of time. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;

  /// Monotonic time, for deadlines and durations.
  virtual std::chrono::steady_clock::time_point Now() const = 0;

  /// Wall time, for ages of files.
  virtual std::chrono::system_clock::time_point WallNow() const = 0;
};

/// The machine's own clocks.
class SystemClock final : public Clock {
 public:
  std::chrono::steady_clock::time_point Now() const override {
    return std::chrono::steady_clock::now();
  }

  std::chrono::system_clock::time_point WallNow() const override {
    return std::chrono::system_clock::now();
  }
};

}  // namespace reshard
