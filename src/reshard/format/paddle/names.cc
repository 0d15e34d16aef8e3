#include "reshard/format/paddle/names.h"

#include <fmt/format.h>

#include "reshard/format/name_parts_internal.h"

namespace reshard::paddle {
namespace {

constexpr std::string_view kMetadataEnd = ".metadata";
constexpr std::string_view kDataEnd = ".distcp";

/// What follows "{id}.metadata".
std::optional<Name> ParseMetadataName(std::uint64_t unique_id, std::string_view text) {
  Name name;
  name.unique_id = unique_id;
  if (text.empty()) {
    return name;
  }
  if (text == ".lock") {
    name.kind = NameKind::kLock;
    return name;
  }
  const bool index = TakeText(text, ".reshard");
  if (index && text.empty()) {
    name.kind = NameKind::kIndex;
    return name;
  }
  name.kind = index ? NameKind::kTempIndex : NameKind::kTempMetadata;
  const bool good = TakeText(text, ".a") && TakeNumber(text, name.attempt) && text == ".tmp";
  return good ? std::optional(name) : std::nullopt;
}

/// What follows the rank of a data file.
std::optional<Name> ParseDataName(std::uint64_t rank, std::string_view text) {
  Name name;
  name.kind = NameKind::kData;
  name.rank = rank;
  if (TakeText(text, "_p") && (!TakeNumber(text, name.part) || name.part == 0)) {
    return std::nullopt;
  }
  if (TakeText(text, "_a") && (!TakeNumber(text, name.attempt) || name.attempt == 0)) {
    return std::nullopt;
  }
  if (!TakeText(text, "_") || !TakeNumber(text, name.unique_id)) {
    return std::nullopt;
  }
  const bool paddles = name.part == 0 && name.attempt == 0 && text == ".safetensors";
  return text == kDataEnd || paddles ? std::optional(name) : std::nullopt;
}

}  // namespace

std::optional<Name> ParseName(std::string_view text) {
  std::uint64_t first = 0;
  if (!TakeNumber(text, first)) {
    return std::nullopt;
  }
  if (TakeText(text, kMetadataEnd)) {
    return ParseMetadataName(first, text);
  }
  return ParseDataName(first, text);
}

std::string MetadataName(std::uint64_t unique_id) {
  return fmt::format("{}{}", unique_id, kMetadataEnd);
}

std::string IndexName(std::uint64_t unique_id) {
  return fmt::format("{}{}.reshard", unique_id, kMetadataEnd);
}

std::string TempMetadataName(std::uint64_t unique_id, std::uint64_t attempt) {
  return fmt::format("{}{}.a{}.tmp", unique_id, kMetadataEnd, attempt);
}

std::string TempIndexName(std::uint64_t unique_id, std::uint64_t attempt) {
  return fmt::format("{}{}.reshard.a{}.tmp", unique_id, kMetadataEnd, attempt);
}

std::string DataFileName(std::uint64_t rank, std::uint64_t part, std::uint64_t unique_id,
                         std::uint64_t attempt) {
  return fmt::format("{}{}{}_{}{}", rank, part == 0 ? "" : fmt::format("_p{}", part),
                     attempt == 0 ? "" : fmt::format("_a{}", attempt), unique_id, kDataEnd);
}

}  // namespace reshard::paddle
