#pragma once

// Whether a snapshot is complete: what can be known without reading its tensors.

#include <cstdint>

#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/format/foreign.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// Reads the catalog of snapshot `unique_id` and checks that its chunks cover every tensor and that
/// every file is there with the size and the head that the catalog records. If something does not
/// fit and the catalog was replaced meanwhile, looks once more.
/// Errors: for which IsIncomplete is true, the snapshot is not complete; others say that this could
/// not be found out.
Result<Catalog> OpenComplete(Storage& storage, std::uint64_t unique_id);

/// The same of a foreign checkpoint: its metadata decodes, its data files are there and hold what
/// it says, and every tensor is covered exactly once.
Result<Catalog> OpenComplete(Storage& storage, const ForeignRef& ref);

/// Whether an error says that the stored snapshot is incomplete or damaged (kNotFound,
/// kCorruption, or a pickle with names or opcodes that are not allowed), not that looking at it
/// failed.
bool IsIncomplete(const Error& error);

}  // namespace reshard
