#include "reshard/format/paddle/names.h"

#include <fmt/format.h>

#include <charconv>

namespace reshard::paddle {
namespace {

constexpr std::string_view kMetadataSuffix = ".metadata";

/// Takes a decimal without leading zeros from the front.
std::optional<std::uint64_t> TakeNumber(std::string_view& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const auto size = static_cast<std::size_t>(end - text.data());
  if (error != std::errc() || (text[0] == '0' && size > 1)) {
    return std::nullopt;
  }
  text.remove_prefix(size);
  return value;
}

bool Take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) {
    return false;
  }
  text.remove_prefix(word.size());
  return true;
}

/// The number behind `word`, 0 without the word; nothing when it is written but not canonical.
std::optional<std::uint64_t> TakeOptional(std::string_view& text, std::string_view word) {
  if (!Take(text, word)) {
    return 0;
  }
  const std::optional<std::uint64_t> number = TakeNumber(text);
  return number == 0 ? std::nullopt : number;
}

/// What follows the first number of a data file's name.
std::optional<Name> ParseData(Name name, std::string_view text) {
  name.kind = NameKind::kData;
  const std::optional<std::uint64_t> part = TakeOptional(text, "_p");
  const std::optional<std::uint64_t> attempt = part ? TakeOptional(text, "_a") : std::nullopt;
  if (!attempt || !Take(text, "_")) {
    return std::nullopt;
  }
  const std::optional<std::uint64_t> id = TakeNumber(text);
  const bool plain = *part == 0 && *attempt == 0;
  if (!id || !(text == ".distcp" || (plain && text == ".safetensors"))) {
    return std::nullopt;
  }
  name.part = *part;
  name.attempt = *attempt;
  name.unique_id = *id;
  return name;
}

/// "[.a{attempt}.tmp]" at the end of a name.
std::optional<Name> ParseTail(Name name, NameKind temporary, std::string_view text) {
  if (text.empty()) {
    return name;
  }
  if (!Take(text, ".a")) {
    return std::nullopt;
  }
  const std::optional<std::uint64_t> attempt = TakeNumber(text);
  if (!attempt || text != ".tmp") {
    return std::nullopt;
  }
  name.kind = temporary;
  name.attempt = *attempt;
  return name;
}

}  // namespace

std::optional<Name> ParseName(std::string_view text) {
  const std::optional<std::uint64_t> first = text.empty() ? std::nullopt : TakeNumber(text);
  if (!first) {
    return std::nullopt;
  }
  if (!Take(text, kMetadataSuffix)) {
    return ParseData({.rank = *first}, text);
  }
  Name name = {.kind = NameKind::kMetadata, .unique_id = *first};
  if (text == ".lock") {
    name.kind = NameKind::kLock;
    return name;
  }
  if (Take(text, ".reshard")) {
    name.kind = NameKind::kIndex;
    return ParseTail(name, NameKind::kTempIndex, text);
  }
  return ParseTail(name, NameKind::kTempMetadata, text);
}

std::string MetadataName(std::uint64_t unique_id) { return fmt::format("{}.metadata", unique_id); }

std::string IndexName(std::uint64_t unique_id) {
  return fmt::format("{}.metadata.reshard", unique_id);
}

std::string TempMetadataName(std::uint64_t unique_id, std::uint64_t attempt) {
  return fmt::format("{}.metadata.a{}.tmp", unique_id, attempt);
}

std::string TempIndexName(std::uint64_t unique_id, std::uint64_t attempt) {
  return fmt::format("{}.metadata.reshard.a{}.tmp", unique_id, attempt);
}

std::string DataFileName(std::uint64_t rank, std::uint64_t part, std::uint64_t unique_id,
                         std::uint64_t attempt) {
  return fmt::format("{}{}{}_{}.distcp", rank, part == 0 ? "" : fmt::format("_p{}", part),
                     attempt == 0 ? "" : fmt::format("_a{}", attempt), unique_id);
}

}  // namespace reshard::paddle
