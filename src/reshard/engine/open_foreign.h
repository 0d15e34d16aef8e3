#pragma once

// All ranks of a load open a foreign checkpoint together: each examines some of its data files.

#include <vector>

#include "reshard/base/result.h"
#include "reshard/comm/process_group.h"
#include "reshard/engine/foreign.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// What all ranks know afterwards: the same on each.
struct TogetherOpened {
  Catalog catalog;
  std::vector<ForeignFault> faults;
};

/// Opens `ref`, whose metadata group rank `source` sees. Every data file is examined by one rank
/// that sees it, evenly spread. `all_shared`: all ranks look at the same directory. Errors: as
/// OpenForeign, on every rank. Collective: yes.
Result<TogetherOpened> OpenForeignTogether(Storage& storage, ProcessGroup& group, int source,
                                           const ForeignRef& ref, bool all_shared);

}  // namespace reshard
