#include "reshard/format/native/names.h"

#include <fmt/format.h>

#include "reshard/format/name_parts_internal.h"

namespace reshard::native {
namespace {

constexpr std::string_view kCatalogEnd = ".reshard";
constexpr std::string_view kTempEnd = ".reshard.tmp";
constexpr std::string_view kDeletingEnd = ".reshard.deleting";
constexpr std::string_view kDataEnd = ".safetensors";

}  // namespace

std::optional<Name> ParseName(std::string_view text) {
  Name name;
  std::uint64_t first = 0;
  if (!TakeNumber(text, first)) {
    return std::nullopt;
  }
  name.unique_id = first;
  if (text == kCatalogEnd) {
    return name;
  }
  if (text == kDeletingEnd) {
    name.kind = NameKind::kDeleting;
    return name;
  }
  if (TakeText(text, ".a")) {
    name.kind = NameKind::kTempCatalog;
    return TakeNumber(text, name.attempt) && text == kTempEnd ? std::optional(name) : std::nullopt;
  }
  name.kind = NameKind::kDataFile;
  name.rank = first;
  if (!TakeText(text, "_") || !TakeNumber(text, name.unique_id)) {
    return std::nullopt;
  }
  if (TakeText(text, ".a") && (!TakeNumber(text, name.attempt) || name.attempt == 0)) {
    return std::nullopt;
  }
  return text == kDataEnd ? std::optional(name) : std::nullopt;
}

std::string CatalogName(std::uint64_t unique_id) {
  return fmt::format("{}{}", unique_id, kCatalogEnd);
}

std::string TempCatalogName(std::uint64_t unique_id, std::uint64_t attempt) {
  return fmt::format("{}.a{}{}", unique_id, attempt, kTempEnd);
}

std::string DeletingName(std::uint64_t unique_id) {
  return fmt::format("{}{}", unique_id, kDeletingEnd);
}

std::string DataFileName(std::uint64_t rank, std::uint64_t unique_id, std::uint64_t attempt) {
  if (attempt == 0) {
    return fmt::format("{}_{}{}", rank, unique_id, kDataEnd);
  }
  return fmt::format("{}_{}.a{}{}", rank, unique_id, attempt, kDataEnd);
}

}  // namespace reshard::native
