#pragma once

// How commands write numbers, keys and tables for people, and read durations.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/result.h"

namespace reshard::cli {

/// "512 B", "1.98 GiB".
std::string HumanBytes(std::uint64_t bytes);

/// "1 tensor", "3 tensors".
std::string Count(std::uint64_t number, std::string_view noun);

/// The text with control bytes as \xNN: names in files must not steer a terminal.
std::string Printable(std::string_view text);

/// At most `columns` bytes of it, the middle replaced by "...".
std::string Shorten(const std::string& text, std::size_t columns);

/// "90s", "30m", "12h", "1d", "2w", a plain number of seconds. Errors: kInvalidArgument
/// BAD_DURATION.
Result<std::chrono::seconds> ParseDuration(const std::string& text);

/// "64MiB", "512K", "2g", a plain number of bytes; all units are powers of 1024. Errors:
/// kInvalidArgument BAD_SIZE, also for more than 2^50.
Result<std::uint64_t> ParseSize(const std::string& text);

/// The candidate nearest to `text` by edits (Levenshtein 1966), if it is near enough to be meant.
std::optional<std::string> Nearest(std::string_view text,
                                   const std::vector<std::string>& candidates);

/// Rows of left-aligned columns.
class Table {
 public:
  explicit Table(std::vector<std::string> header);

  void AddRow(std::vector<std::string> cells);

  /// Lines, each ended. If `columns` is not 0, the first column is shortened to fit, down to 16.
  std::string Render(std::size_t columns) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace reshard::cli
