#include "reshard/cli/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <numeric>

namespace reshard::cli {
namespace {

constexpr std::size_t kLeastKeyColumns = 16;

std::size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
    }
  }
  return row[b.size()];
}

/// Columns on a terminal: UTF-8 continuation bytes take none.
std::size_t Width(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

}  // namespace

std::string HumanBytes(std::uint64_t bytes) {
  static constexpr std::array<std::string_view, 6> kUnits = {"KiB", "MiB", "GiB",
                                                             "TiB", "PiB", "EiB"};
  if (bytes < 1024) {
    return fmt::format("{} B", bytes);
  }
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1023.995 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string Count(std::uint64_t number, std::string_view noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

std::string Printable(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

std::string Shorten(const std::string& text, std::size_t columns) {
  if (Width(text) <= columns || columns < 5) {
    return text;
  }
  const std::size_t head = (columns - 3) / 2;
  const std::size_t tail = columns - 3 - head;
  std::size_t begin = head;
  std::size_t end = text.size() - tail;
  const auto continues = [&text](std::size_t i) {
    return (static_cast<unsigned char>(text[i]) & 0xc0) == 0x80;
  };
  while (begin > 0 && continues(begin)) {
    --begin;
  }
  while (end < text.size() && continues(end)) {
    ++end;
  }
  return text.substr(0, begin) + "..." + text.substr(end);
}

Result<std::chrono::seconds> ParseDuration(const std::string& text) {
  std::uint64_t number = 0;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  const std::string_view unit(end, static_cast<std::size_t>(last - end));
  static constexpr std::array<std::pair<std::string_view, std::uint64_t>, 6> kUnits = {{
      {"", 1},
      {"s", 1},
      {"m", 60},
      {"h", 3600},
      {"d", 86400},
      {"w", 604800},
  }};
  for (const auto& [name, seconds] : kUnits) {
    if (error == std::errc() && unit == name && number <= 1'000'000'000) {
      return std::chrono::seconds(number * seconds);
    }
  }
  return MakeError(ErrorCode::kInvalidArgument, "BAD_DURATION",
                   fmt::format("'{}' is no duration\nwrite a number and s, m, h, d or w, such as "
                               "90s, 12h or 1d",
                               Printable(text)));
}

Result<std::uint64_t> ParseSize(const std::string& text) {
  constexpr std::string_view kLetters = "kmgt";
  std::uint64_t number = 0;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  std::string unit(end, static_cast<std::size_t>(last - end));
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::size_t letter = unit.empty() ? std::string::npos : kLetters.find(unit[0]);
  const std::string_view rest = std::string_view(unit).substr(letter == std::string::npos ? 0 : 1);
  const std::size_t shift = letter == std::string::npos ? 0 : 10 * (letter + 1);
  const bool known = rest.empty() || rest == "b" || (rest == "ib" && shift > 0);
  if (error == std::errc() && known && number <= (std::uint64_t{1} << 50) >> shift) {
    return number << shift;
  }
  return MakeError(ErrorCode::kInvalidArgument, "BAD_SIZE",
                   fmt::format("'{}' is no size\nwrite a number and K, M, G or T, such as 64MiB",
                               Printable(text)));
}

std::optional<std::string> Nearest(std::string_view text,
                                   const std::vector<std::string>& candidates) {
  std::optional<std::string> best;
  std::size_t least = std::max<std::size_t>(2, text.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = EditDistance(text, candidate);
    if (distance < least && distance < std::max(text.size(), candidate.size())) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

Table::Table(std::vector<std::string> header) { rows_.push_back(std::move(header)); }

void Table::AddRow(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

std::string Table::Render(std::size_t columns) const {
  std::vector<std::size_t> widths(rows_[0].size());
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], Width(row[i]));
    }
  }
  const std::size_t total =
      std::accumulate(widths.begin(), widths.end(), std::size_t{0}) + 2 * (widths.size() - 1);
  if (columns != 0 && total > columns) {
    const std::size_t excess = total - columns;
    widths[0] = std::max(std::min(widths[0], kLeastKeyColumns),
                         widths[0] > excess ? widths[0] - excess : std::size_t{0});
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string cell = i == 0 ? Shorten(row[0], widths[0]) : row[i];
      const std::size_t width = Width(cell);
      line += cell;
      line.append(2 + (widths[i] > width ? widths[i] - width : 0), ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace reshard::cli
