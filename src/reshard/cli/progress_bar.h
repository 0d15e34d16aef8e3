#pragma once

// A progress bar on stderr, shown only when that is a terminal.

#include <chrono>
#include <string>

#include "reshard/base/clock.h"
#include "reshard/cli/console.h"
#include "reshard/engine/progress.h"

namespace reshard::cli {

/// "verify  [#####.....]  52%  1.03 of 1.98 GiB  1.21 GiB/s  0:01 left". Not thread-safe (engine
/// callbacks come one at a time).
class ProgressBar {
 public:
  ProgressBar(const Console& console, const Clock& clock, std::string label);

  /// Wipes the line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Redraws at most ten times a second.
  void Update(const Progress& progress);

 private:
  const Clock& clock_;
  std::string label_;
  bool shown_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point last_;
};

/// The line that is drawn.
std::string ProgressLine(const std::string& label, const Progress& progress, double seconds);

}  // namespace reshard::cli
