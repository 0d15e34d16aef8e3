#pragma once

// Shell patterns over flat keys.

#include <string>
#include <string_view>
#include <vector>

namespace reshard {

/// Whether `key` matches a shell pattern: `*` any text (dots included), `?` one byte, `[a-z]`,
/// backslash quotes. The whole key must match.
bool MatchesKey(const std::string& pattern, std::string_view key);

/// Whether it matches one of them; every key matches an empty list.
bool MatchesAnyKey(const std::vector<std::string>& patterns, std::string_view key);

}  // namespace reshard
