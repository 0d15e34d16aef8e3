#pragma once

// What the workloads of reshard_bench share: timing, statistics, raw rivals, memory and I/O
// counters, and the report.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "reshard/base/bytes.h"
#include "reshard/base/result.h"
#include "reshard/comm/process_group.h"

namespace reshard::bench {

/// Times of repeated runs, in seconds.
struct Times {
  std::vector<double> seconds;
  double min() const;
  double median() const;
};

/// Seconds that `body` takes.
double Seconds(const std::function<void()>& body);

/// Writes `bytes` to a new file with O_DIRECT in large blocks from aligned huge-page buffers that
/// were touched and are reused, two writers in flight, and syncs it: what the disk can do.
double RawWriteSeconds(const std::string& path, std::uint64_t bytes);

/// Reads the file ranges into `target` with `threads` threads of plain pread in 8 MiB calls.
double RawReadSeconds(const std::string& path, MutableByteSpan target, std::size_t threads);

/// Drops the page cache of a file after syncing it.
void DropCache(const std::string& path);

/// Memory that was mapped, prefaulted and is not backed by a file.
class Memory {
 public:
  explicit Memory(std::size_t size);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* data() const { return data_; }

  std::size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Fills memory with bytes that do not compress, the same on every run.
void FillNoise(MutableByteSpan bytes, std::uint64_t seed);

/// Resets, then reads, the peak resident memory of this process, in bytes.
void ResetPeakMemory();
std::uint64_t PeakMemory();
std::uint64_t CurrentMemory();

/// Says what failed and ends the program.
[[noreturn]] void Die(const std::string& message);

/// The value, or Die.
template <typename T>
T Must(Result<T> result) {
  if (!result.ok()) {
    Die(result.error().ToString());
  }
  return std::move(*result);
}

/// Runs `body(group)` on thread ranks.
void RunRanks(int ranks, const std::function<void(ProcessGroup&)>& body);

/// One figure: a name, a value, its goal if it has one.
class Report {
 public:
  /// `goal` like ">= 0.85" or "" when the figure has none.
  void Add(const std::string& name, double value, const std::string& unit,
           const std::string& goal = "");
  void Note(const std::string& text);
  /// Prints the table to stdout and, when `json_path` is not empty, writes JSON with machine facts.
  void Print(const std::string& json_path) const;
  bool all_met() const;

 private:
  struct Row {
    std::string name;
    double value;
    std::string unit;
    std::string goal;
    bool met;
  };

  std::vector<Row> rows_;
  std::vector<std::string> notes_;
};

/// Options of a run.
struct Options {
  std::string directory;  ///< Scratch folder on the disk under test.
  std::uint64_t bytes = 4ULL << 30;
  int repeats = 3;
  std::map<std::string, std::string> peers;  ///< "paddle", "torch": an interpreter that has it.
  std::string peer_scripts;                  ///< The folder peers/.
};

// The workloads.
void RunSave(const Options& options, Report& report);
void RunLoad(const Options& options, Report& report);
void RunPaddle(const Options& options, Report& report);
void RunTorch(const Options& options, Report& report);
void RunReshard(const Options& options, Report& report);
void RunSlice(const Options& options, Report& report);
void RunPlanning(const Options& options, Report& report);
void RunSmallRuns(const Options& options, Report& report);

}  // namespace reshard::bench
