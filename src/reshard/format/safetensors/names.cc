#include "reshard/format/safetensors/names.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/format/name_parts_internal.h"
#include "reshard/format/native/names.h"
#include "reshard/format/paddle/names.h"

namespace reshard::safetensors {
namespace {

constexpr std::string_view kEnd = ".safetensors";
constexpr std::string_view kTempEnd = ".tmp";
constexpr std::size_t kFewestDigits = 5;
constexpr std::size_t kMostDigits = 9;

/// Takes a number of five digits or more from the end of `text`.
bool TakePaddedFromEnd(std::string_view& text, std::uint64_t& number) {
  std::size_t digits = 0;
  while (digits < text.size() && text[text.size() - 1 - digits] >= '0' &&
         text[text.size() - 1 - digits] <= '9') {
    ++digits;
  }
  if (digits < kFewestDigits || digits > kMostDigits) {
    return false;
  }
  number = 0;
  for (const char c : text.substr(text.size() - digits)) {
    number = number * 10 + static_cast<std::uint64_t>(c - '0');
  }
  text.remove_suffix(digits);
  return true;
}

bool TakeFromEnd(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) {
    return false;
  }
  text.remove_suffix(suffix.size());
  return true;
}

/// Takes ".a{attempt}" from the end; attempt 0 is not written.
bool TakeAttempt(std::string_view& text, std::uint64_t& attempt, std::uint64_t least) {
  const std::size_t at = text.rfind(".a");
  if (at == std::string_view::npos) {
    return false;
  }
  std::string_view number = text.substr(at + 2);
  std::uint64_t found = 0;
  if (!TakeNumber(number, found) || !number.empty() || found < least) {
    return false;
  }
  attempt = found;
  text = text.substr(0, at);
  return true;
}

}  // namespace

std::optional<PartName> ParsePartName(std::string_view text) {
  PartName name;
  if (!TakeFromEnd(text, kEnd)) {
    return std::nullopt;
  }
  TakeAttempt(text, name.attempt, 1);
  if (!TakePaddedFromEnd(text, name.parts) || !TakeFromEnd(text, "-of-") ||
      !TakePaddedFromEnd(text, name.part) || !TakeFromEnd(text, "-") || text.empty() ||
      name.part > name.parts) {
    return std::nullopt;
  }
  name.prefix = text;
  return name;
}

std::string PartFileName(const PartName& name) {
  return fmt::format("{}-{:05}-of-{:05}{}{}", name.prefix, name.part, name.parts,
                     name.attempt == 0 ? "" : fmt::format(".a{}", name.attempt), kEnd);
}

std::optional<std::uint64_t> ShardOf(const PartName& name) {
  std::string_view text = name.prefix;
  std::uint64_t shard = 0;
  const bool good = TakeText(text, "shard-") && TakeFromEnd(text, "-model") &&
                    TakePaddedFromEnd(text, shard) && text.empty() && shard > 0;
  return good ? std::optional(shard) : std::nullopt;
}

bool IsIndexName(std::string_view text) {
  if (!TakeFromEnd(text, ".json")) {
    return false;
  }
  const std::size_t at = text.rfind(".safetensors.index");
  if (at == std::string_view::npos || at == 0) {
    return false;
  }
  const std::string_view variant = text.substr(at + std::string_view(".safetensors.index").size());
  return variant.empty() || (variant[0] == '.' && variant.size() > 1);
}

bool IsDataName(std::string_view text) {
  return text.ends_with(kEnd) && text.size() > kEnd.size() && !native::ParseName(text) &&
         !paddle::ParseName(text);
}

std::string TempName(TempKind kind, std::uint64_t attempt, std::string_view index_name) {
  const std::string stem = kind == TempKind::kIndex  ? std::string(index_name)
                           : kind == TempKind::kData ? fmt::format("{}.data", kSingleName)
                                                     : std::string(kSingleName);
  return fmt::format("{}.a{}{}", stem, attempt, kTempEnd);
}

std::optional<std::uint64_t> AttemptOfTemp(std::string_view text) {
  std::uint64_t attempt = 0;
  TakeFromEnd(text, ".old");
  if (!TakeFromEnd(text, kTempEnd) || !TakeAttempt(text, attempt, 0)) {
    return std::nullopt;
  }
  const bool ours = text == kSingleName || text == "model.safetensors.data" ||
                    text == "model.safetensors.reshard" ||
                    text == "model.safetensors.index.json.reshard";
  return ours ? std::optional(attempt) : std::nullopt;
}

}  // namespace reshard::safetensors
