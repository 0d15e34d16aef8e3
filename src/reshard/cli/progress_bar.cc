#include "reshard/cli/progress_bar.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "reshard/cli/text.h"

namespace reshard::cli {
namespace {

constexpr std::size_t kBarColumns = 24;
constexpr auto kInterval = std::chrono::milliseconds(100);

}  // namespace

std::string ProgressLine(const std::string& label, const Progress& progress, double seconds) {
  const auto total = static_cast<double>(std::max<std::uint64_t>(progress.bytes_total, 1));
  const double part = std::min(1.0, static_cast<double>(progress.bytes_done) / total);
  const double rate = seconds > 0 ? static_cast<double>(progress.bytes_done) / seconds : 0;
  const auto filled = static_cast<std::size_t>(part * kBarColumns);
  std::string line = fmt::format(
      "{} [{}{}] {:3.0f}%  {} of {}  {}/s", label, std::string(filled, '#'),
      std::string(kBarColumns - filled, '.'), part * 100, HumanBytes(progress.bytes_done),
      HumanBytes(progress.bytes_total), HumanBytes(static_cast<std::uint64_t>(rate)));
  if (rate > 0) {
    const double left = (total - static_cast<double>(progress.bytes_done)) / rate;
    const auto whole = static_cast<std::uint64_t>(std::clamp(left, 0.0, 1e7));
    line += fmt::format("  {}:{:02d} left", whole / 60, whole % 60);
  }
  return line;
}

ProgressBar::ProgressBar(const Console& console, const Clock& clock, std::string label)
    : clock_(clock),
      label_(std::move(label)),
      shown_(console.err_is_terminal()),
      begin_(clock.Now()),
      last_(begin_) {}

ProgressBar::~ProgressBar() {
  if (drawn_) {
    std::fputs("\r\033[K", stderr);
  }
}

void ProgressBar::Update(const Progress& progress) {
  const auto now = clock_.Now();
  if (!shown_ || (drawn_ && now - last_ < kInterval)) {
    return;
  }
  last_ = now;
  drawn_ = true;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const std::string line = fmt::format("\r{}\033[K", ProgressLine(label_, progress, seconds));
  std::fputs(line.c_str(), stderr);
}

}  // namespace reshard::cli
