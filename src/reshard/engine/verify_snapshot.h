#pragma once

// The checks of one snapshot whose catalog is known.

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

}  // namespace reshard
