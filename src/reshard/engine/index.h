#pragma once

// Our index beside a foreign checkpoint: its catalog with checksums and digests, so that it opens
// at once and every load is verified. docs/format/native.md section 6.

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/engine/foreign.h"
#include "reshard/engine/progress.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// Choices of WriteIndex.
struct IndexOptions {
  std::size_t threads = 0;  ///< Readers in flight; 0: as many as there are cores, at most 8.
  ProgressCallback progress;
};

/// What was indexed.
struct IndexReport {
  std::string name;  ///< Of the index.
  std::uint64_t tensors = 0;
  std::uint64_t digests = 0;  ///< Tensors with a digest; others are stored column-major.
  std::uint64_t files = 0;
  std::uint64_t bytes = 0;  ///< Read.
  std::vector<std::string> notes;
};

/// Reads a foreign checkpoint whole, once, and publishes its index: complete or not at all, an
/// older one replaced in one step. Nothing else is written. Errors: those of OpenForeign, and its
/// first fault; kUnavailable CHANGED_MEANWHILE (it was written to while it was read),
/// WRITER_AT_WORK (another one is indexing it); kIo, NO_SPACE, READ_ONLY. Collective: no.
Result<IndexReport> WriteIndex(Storage& storage, const ForeignRef& ref,
                               const IndexOptions& options = {});

}  // namespace reshard
