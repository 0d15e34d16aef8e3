#pragma once

// Bytes as hexadecimal text and back, for literals in tests.

#include <string>
#include <string_view>

#include "reshard/base/bytes.h"

namespace reshard::testing {

/// "01ff" -> two bytes. White space is skipped.
inline Bytes FromHex(std::string_view hex) {
  Bytes out;
  int high = -1;
  for (const char c : hex) {
    if (c == ' ' || c == '\n') {
      continue;
    }
    const int digit = c <= '9' ? c - '0' : c - 'a' + 10;
    if (high < 0) {
      high = digit;
    } else {
      out.push_back(static_cast<std::byte>(high * 16 + digit));
      high = -1;
    }
  }
  return out;
}

inline std::string ToHex(ByteSpan bytes) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const std::byte b : bytes) {
    out += kDigits[std::to_integer<unsigned>(b) >> 4];
    out += kDigits[std::to_integer<unsigned>(b) & 15];
  }
  return out;
}

}  // namespace reshard::testing
