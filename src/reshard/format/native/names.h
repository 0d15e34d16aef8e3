#pragma once

// The names of the native format's files: docs/format/native.md section 1.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace reshard::native {

/// What a name of a checkpoint directory means.
enum class NameKind {
  kCatalog,      ///< "{id}.reshard": the commit record.
  kTempCatalog,  ///< "{id}.a{attempt}.reshard.tmp": a claim; after an overwrite the replaced
                 ///< catalog.
  kDeleting,     ///< "{id}.reshard.deleting": a snapshot that is being deleted.
  kDataFile,     ///< "{rank}_{id}.safetensors" or "{rank}_{id}.a{attempt}.safetensors".
};

/// A parsed name.
struct Name {
  NameKind kind = NameKind::kCatalog;
  std::uint64_t unique_id = 0;
  std::uint64_t attempt = 0;  ///< Of temporary catalogs and data files.
  std::uint64_t rank = 0;     ///< Of data files.
  bool operator==(const Name&) const = default;
};

/// Only canonical spellings count: decimals without leading zeros, attempt 0 unwritten.
std::optional<Name> ParseName(std::string_view text);

std::string CatalogName(std::uint64_t unique_id);
std::string TempCatalogName(std::uint64_t unique_id, std::uint64_t attempt);
std::string DeletingName(std::uint64_t unique_id);
std::string DataFileName(std::uint64_t rank, std::uint64_t unique_id, std::uint64_t attempt);

}  // namespace reshard::native
