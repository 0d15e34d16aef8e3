#pragma once

// Taking file names apart from the front, for the names of every format.

#include <charconv>
#include <cstdint>
#include <string_view>
#include <system_error>

namespace reshard {

/// Takes a canonical decimal (no leading zeros) from the front of `text`.
inline bool TakeNumber(std::string_view& text, std::uint64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) {
    return false;
  }
  const auto digits = static_cast<std::size_t>(end - text.data());
  if (digits > 1 && text[0] == '0') {
    return false;
  }
  text.remove_prefix(digits);
  return true;
}

/// Takes `prefix` from the front of `text`.
inline bool TakeText(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) {
    return false;
  }
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace reshard
