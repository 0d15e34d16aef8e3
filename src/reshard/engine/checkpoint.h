#pragma once

// A checkpoint of any format, opened for reading on one rank.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/engine/foreign.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// What a directory holds: snapshots of one format. Native ones hide all others.
struct CheckpointList {
  std::string format;               ///< "native", a foreign format, or empty: nothing.
  std::vector<std::uint64_t> ids;   ///< Increasing.
  std::vector<ForeignRef> foreign;  ///< One per id; empty when native.
  std::string unknown;              ///< A name that looks like a checkpoint that cannot be read.
  std::vector<std::string> others;  ///< Names of other formats' checkpoints that are hidden.

  bool native() const { return format == "native"; }

  bool empty() const { return ids.empty(); }

  bool Has(std::uint64_t id) const;
};

/// Errors: those of List.
Result<CheckpointList> ListCheckpoints(Storage& storage);

/// An open checkpoint.
struct OpenedCheckpoint {
  Catalog catalog;
  bool has_checksums = true;         ///< Native, or foreign with an index.
  std::vector<ForeignFault> faults;  ///< Foreign: what cannot be read.
  std::vector<std::string> notes;
};

/// Opens snapshot `unique_id`, or the newest. Errors: kNotFound NO_SNAPSHOT; of a native snapshot
/// those of ReadCatalog, of a foreign one those of OpenForeign. Collective: no.
Result<OpenedCheckpoint> ReadCheckpoint(Storage& storage,
                                        std::optional<std::uint64_t> unique_id = std::nullopt,
                                        const ForeignOptions& options = {});

}  // namespace reshard
