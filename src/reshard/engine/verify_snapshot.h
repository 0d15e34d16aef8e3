#pragma once

// The checks of one snapshot whose catalog is known.

#include <cstdint>
#include <optional>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/base/thread_pool.h"
#include "reshard/catalog/catalog.h"
#include "reshard/engine/verify.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// Checks everything below the catalog and adds it to `verdict`. Reads with the pool's threads.
/// Errors: kCancelled from the progress callback; kUnavailable NO_MEMORY. Faults are no errors.
Status VerifySnapshot(const Catalog& catalog, Storage& storage, const VerifyOptions& options,
                      ThreadPool& pool, SnapshotVerdict& verdict);

/// The checksums of what is stored.
struct StoredChecksums {
  std::vector<std::vector<std::uint64_t>> blocks;  ///< Per file.
  /// Per tensor; nothing where it cannot be computed in the order of the file (column-major).
  std::vector<std::optional<std::uint64_t>> digests;
};

/// Reads all data files once and takes their checksums. Of `options` only threads and progress
/// count. Errors: the first fault met; kCancelled; kUnavailable NO_MEMORY.
Result<StoredChecksums> TakeChecksums(const Catalog& catalog, Storage& storage,
                                      const VerifyOptions& options, ThreadPool& pool);

}  // namespace reshard
