#include "reshard/catalog/master_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace reshard {
namespace {

constexpr std::string_view kPart = "master_weights";
constexpr std::string_view kSuffix = "_fp32_master_0";

std::vector<std::string> Split(std::string_view key) {
  std::vector<std::string> parts;
  for (;;) {
    const std::size_t dot = key.find('.');
    parts.emplace_back(key.substr(0, dot));
    if (dot == std::string_view::npos) {
      return parts;
    }
    key.remove_prefix(dot + 1);
  }
}

std::string JoinWithPart(const std::vector<std::string>& parts, std::size_t position) {
  std::vector<std::string> out = parts;
  out.insert(out.begin() + static_cast<std::ptrdiff_t>(position), std::string(kPart));
  return fmt::format("{}", fmt::join(out, "."));
}

}  // namespace

std::vector<std::string> MasterWeightCandidates(std::string_view flat_key) {
  std::vector<std::string> parts = Split(flat_key);
  const auto part = std::find(parts.begin(), parts.end(), kPart);
  if (part != parts.end()) {
    parts.erase(part);
    if (parts.empty()) {
      return {};
    }
    return {fmt::format("{}{}", fmt::join(parts, "."), kSuffix)};
  }
  std::string& last = parts.back();
  if (!last.ends_with(kSuffix) || last.size() == kSuffix.size()) {
    return {};
  }
  last.resize(last.size() - kSuffix.size());
  std::vector<std::string> names = {JoinWithPart(parts, 1)};
  for (std::size_t position = 0; position <= parts.size(); ++position) {
    if (position != 1) {
      names.push_back(JoinWithPart(parts, position));
    }
  }
  return names;
}

Result<std::optional<std::string>> ResolveMasterWeight(
    std::string_view flat_key, const std::function<bool(std::string_view)>& is_stored) {
  std::vector<std::string> names = MasterWeightCandidates(flat_key);
  if (names.empty()) {
    return std::optional<std::string>();
  }
  if (is_stored(names[0])) {
    return std::optional<std::string>(names[0]);
  }
  std::vector<std::string> stored;
  std::copy_if(names.begin() + 1, names.end(), std::back_inserter(stored), is_stored);
  if (stored.size() > 1) {
    return MakeError(
        ErrorCode::kInvalidArgument, "AMBIGUOUS_MASTER_WEIGHT",
        fmt::format("'{}' may be stored as any of '{}'; name the one that is meant with "
                    "a rename rule",
                    flat_key, fmt::join(stored, "', '")));
  }
  return stored.empty() ? std::optional<std::string>() : std::optional<std::string>(stored[0]);
}

}  // namespace reshard
