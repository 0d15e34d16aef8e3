#pragma once

// How much memory an operation takes at its peak, as the kernel counts it: whatever allocates, and
// only what is touched. Measured in a child process, so that no test leaves memory to the next.

#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <optional>
#include <string>

namespace reshard::testing {

/// Bytes of a field of /proc/self/status, 0 when it is not there.
inline std::uint64_t StatusBytes(const std::string& field) {
  std::ifstream file("/proc/self/status");
  std::string word;
  while (file >> word) {
    if (word == field) {
      std::uint64_t kib = 0;
      file >> kib;
      return kib << 10;
    }
  }
  return 0;
}

/// What the child of MeasurePeak reports.
struct PeakReport {
  std::uint64_t input_bytes = 0;
  std::uint64_t peak_bytes = 0;  ///< Beyond what was there before the operation.
  char outcome[256] = {};
};

/// Runs `prepare` and then, on what it returned, `measured` in a child; the latter's text is the
/// outcome. Nothing where the kernel does not reset its counter, or when the child died.
/// Not thread-safe: the process must have one thread.
template <typename Input>
std::optional<PeakReport> MeasurePeak(const std::function<Input()>& prepare,
                                      const std::function<std::string(const Input&)>& measured) {
  int ends[2];
  if (pipe(ends) != 0) {
    return std::nullopt;
  }
  const pid_t child = fork();
  if (child == 0) {
    const Input input = prepare();
    malloc_trim(0);
    std::ofstream("/proc/self/clear_refs") << "5" << std::flush;  // the peak is now what is there
    const std::uint64_t before = StatusBytes("VmRSS:");
    const bool reset = StatusBytes("VmHWM:") <= before + (1 << 20);
    PeakReport report;
    report.input_bytes = input.size();
    const std::string outcome = measured(input);
    report.peak_bytes = StatusBytes("VmHWM:") - before;
    outcome.copy(report.outcome, sizeof(report.outcome) - 1);
    const bool sent = reset && write(ends[1], &report, sizeof(report)) == sizeof(report);
    _exit(sent ? 0 : 1);
  }
  close(ends[1]);
  PeakReport report;
  const bool got = read(ends[0], &report, sizeof(report)) == sizeof(report);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return got ? std::optional(report) : std::nullopt;
}

}  // namespace reshard::testing
