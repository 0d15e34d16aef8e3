#pragma once

// What a directory holds: which snapshots are committed, and the reading of a catalog.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// What names of one snapshot id a listing shows.
struct SnapshotNames {
  bool committed = false;                     ///< "{id}.reshard" is there.
  std::optional<std::uint64_t> last_attempt;  ///< Largest attempt in any name of this id.
};

/// One rank's view of a checkpoint directory, by names alone.
struct DirectoryView {
  std::map<std::uint64_t, SnapshotNames> ids;
  std::string foreign_name;  ///< A name that belongs to another format's checkpoint, or empty.

  /// The largest committed id.
  std::optional<std::uint64_t> newest() const;
};

/// Lists the directory. Errors: those of Storage::List.
Result<DirectoryView> ViewDirectory(Storage& storage);

Bytes EncodeDirectoryView(const DirectoryView& view);
Result<DirectoryView> DecodeDirectoryView(ByteSpan bytes);

/// Adds what another rank sees.
void MergeViews(DirectoryView& into, const DirectoryView& other);

/// "1, 2, 3"; of many the first and the last few, and how many there are.
std::string IdsText(const std::vector<std::uint64_t>& ids);

/// Where an object lies, for messages: "DIRECTORY/NAME".
std::string PlaceOf(const Storage& storage, std::string_view name);

/// Reads the bytes of an object whole. Errors: those of Open and ReadAt; kUnavailable NO_MEMORY.
Result<Bytes> ReadWhole(Storage& storage, std::string_view name);

/// Reads and checks the catalog of snapshot `unique_id`.
/// Errors: kNotFound NO_SNAPSHOT (lists the ids that are there); kCorruption with the file's name.
Result<Catalog> ReadCatalog(Storage& storage, std::uint64_t unique_id);

/// Decodes catalog bytes that were read from `place`, checking that they are a native snapshot's.
Result<Catalog> DecodeSnapshotCatalog(ByteSpan bytes, std::string_view place);

}  // namespace reshard
