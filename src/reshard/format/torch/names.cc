#include "reshard/format/torch/names.h"

#include <fmt/format.h>

#include "reshard/format/name_parts_internal.h"

namespace reshard::torch {
namespace {

constexpr std::string_view kDataEnd = ".distcp";

/// What follows ".metadata".
std::optional<Name> ParseMetadataName(std::string_view text) {
  Name name;
  if (text.empty()) {
    return name;
  }
  if (text == ".tmp") {
    name.kind = NameKind::kTorchTemp;
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

/// What follows "__{rank}".
std::optional<Name> ParseRankName(std::uint64_t rank, std::string_view text) {
  Name name;
  name.rank = rank;
  if (text == kMetadataName) {
    name.kind = NameKind::kRankMetadata;
    return name;
  }
  name.kind = NameKind::kData;
  if (!TakeText(text, "_") || !TakeNumber(text, name.part)) {
    return std::nullopt;
  }
  if (TakeText(text, ".a") && (!TakeNumber(text, name.attempt) || name.attempt == 0)) {
    return std::nullopt;
  }
  return text == kDataEnd ? std::optional(name) : std::nullopt;
}

}  // namespace

std::optional<Name> ParseName(std::string_view text) {
  if (TakeText(text, kMetadataName)) {
    return ParseMetadataName(text);
  }
  std::uint64_t rank = 0;
  if (!TakeText(text, "__") || !TakeNumber(text, rank)) {
    return std::nullopt;
  }
  return ParseRankName(rank, text);
}

std::string TempMetadataName(std::uint64_t attempt) {
  return fmt::format("{}.a{}.tmp", kMetadataName, attempt);
}

std::string TempIndexName(std::uint64_t attempt) {
  return fmt::format("{}.a{}.tmp", kIndexName, attempt);
}

std::string DataFileName(std::uint64_t rank, std::uint64_t part, std::uint64_t attempt) {
  return fmt::format("__{}_{}{}{}", rank, part, attempt == 0 ? "" : fmt::format(".a{}", attempt),
                     kDataEnd);
}

}  // namespace reshard::torch
