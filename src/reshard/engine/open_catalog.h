#pragma once

// All ranks of a load agree on one catalog, also when each sees a directory of its own.

#include <cstdint>
#include <optional>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/comm/process_group.h"
#include "reshard/engine/foreign.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// The catalog, and whether all ranks look at the same directory.
struct AgreedCatalog {
  Catalog catalog;
  bool all_shared = true;
  std::vector<ForeignFault> faults;  ///< Of a foreign checkpoint: tensors that cannot be read.
};

/// Reads the catalog of `unique_id`, or the newest, on the coordinator (group rank `root`) or,
/// where storage is node-local, on the rank that has the highest attempt of the newest id, and
/// gives it to all. A directory without a native snapshot may hold a foreign checkpoint: its index
/// is taken, or all ranks examine it together. `storage` may be null when `local` is an error.
/// Errors: kNotFound NO_SNAPSHOT; kCorruption CATALOG_CONFLICT (two ranks hold different catalogs
/// of the same attempt) and those of ReadCatalog. Collective: yes.
Result<AgreedCatalog> AgreeOnCatalog(Storage* storage, Status local, ProcessGroup& group, int root,
                                     std::optional<std::uint64_t> unique_id);

}  // namespace reshard
