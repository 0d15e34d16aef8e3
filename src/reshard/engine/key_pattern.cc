#include "reshard/engine/key_pattern.h"

#include <fnmatch.h>

#include <algorithm>

namespace reshard {

bool MatchesKey(const std::string& pattern, std::string_view key) {
  return ::fnmatch(pattern.c_str(), std::string(key).c_str(), 0) == 0;
}

bool MatchesAnyKey(const std::vector<std::string>& patterns, std::string_view key) {
  return patterns.empty() ||
         std::any_of(patterns.begin(), patterns.end(),
                     [key](const std::string& pattern) { return MatchesKey(pattern, key); });
}

}  // namespace reshard
