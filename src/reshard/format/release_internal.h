#pragma once

// Releases of other frameworks, as users name them in `--to`.

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace reshard {

/// Takes a decimal of one or two digits from the front.
inline std::optional<int> TakeSmallNumber(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || end - text.data() > 2) {
    return std::nullopt;
  }
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

/// "3.1" or "3.1.1" as 301; nothing for anything else.
inline std::optional<int> ReleaseNumber(std::string_view text) {
  const std::optional<int> major = TakeSmallNumber(text);
  if (!major || !text.starts_with('.')) {
    return std::nullopt;
  }
  text.remove_prefix(1);
  const std::optional<int> minor = TakeSmallNumber(text);
  if (!minor) {
    return std::nullopt;
  }
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    if (!TakeSmallNumber(text)) {
      return std::nullopt;
    }
  }
  return text.empty() ? std::optional(*major * 100 + *minor) : std::nullopt;
}

}  // namespace reshard
