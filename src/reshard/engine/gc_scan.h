#pragma once

// One checkpoint directory as gc sees it: every name of the native format, by id and attempt, and
// which saves are at work.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// What a catalog says, as far as gc needs it.
struct CatalogSummary {
  bool readable = false;  ///< False: it is there but damaged.
  std::uint64_t attempt = 0;
  std::uint64_t checksum = 0;   ///< CRC-64 of its bytes.
  std::set<std::string> files;  ///< Data files that it lists.
};

/// The names of one attempt of one id.
struct GcAttempt {
  std::vector<ObjectInfo> files;  ///< Data files and leftovers of the hard-link fallback.
  std::optional<ObjectInfo> claim;
  std::int64_t newest_ns =
      0;              ///< Last change of any of them, and of the catalog that it published.
  bool busy = false;  ///< A save holds the claim, or has just published it.
};

/// The names of one id.
struct GcId {
  std::optional<ObjectInfo> catalog;
  CatalogSummary committed;
  std::optional<ObjectInfo> marker;  ///< Of a deletion.
  CatalogSummary deleting;
  std::map<std::uint64_t, GcAttempt> attempts;

  bool busy() const;
};

/// The directory.
struct GcDirectory {
  std::map<std::uint64_t, GcId> ids;
  std::optional<ObjectInfo> replace_lock;
};

/// Lists and reads the catalogs. Only plain files with exact native names count.
/// Errors: those of List, and of catalogs that could not be read (not: that are damaged).
Result<GcDirectory> ScanForGc(Storage& storage);

/// Reads the catalog under that name. Nothing when it is not there. Errors: as ScanForGc.
Result<std::optional<CatalogSummary>> SummarizeCatalog(Storage& storage, std::string_view name,
                                                       std::uint64_t unique_id);

/// Takes the lock of an attempt's claim, to be held while its files go.
struct HeldClaim {
  bool busy = false;
  std::unique_ptr<StorageLock> lock;  ///< Null when there is no claim, or no locks.
};

/// Errors: kIo LOCK, OPEN.
Result<HeldClaim> HoldClaim(Storage& storage, std::uint64_t unique_id, std::uint64_t attempt);

}  // namespace reshard
