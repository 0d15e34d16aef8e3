#pragma once

// The newest complete checkpoint of a run, for job scripts and for resuming.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/engine/places.h"

namespace reshard {

/// A snapshot of a directory.
struct SnapshotRef {
  std::string path;
  std::uint64_t unique_id = 0;
  bool operator==(const SnapshotRef&) const = default;
};

/// "PATH@ID".
std::string ToString(const SnapshotRef& snapshot);

/// A newer snapshot that is not complete.
struct SkippedSnapshot {
  SnapshotRef snapshot;
  Error why;
};

/// What FindLatest found.
struct Latest {
  std::optional<SnapshotRef> newest;     ///< Nothing: there is no complete checkpoint.
  bool only_one = false;                 ///< It is the only snapshot of its directory.
  std::vector<SkippedSnapshot> skipped;  ///< Newer than `newest` but damaged or incomplete.
  std::vector<std::string> foreign;      ///< Directories with a checkpoint that cannot be read.
};

/// The newest complete snapshot: by the order of the places, then by id, never by time. A snapshot
/// is complete when OpenComplete says so; payload bytes are not read.
/// Errors: whatever kept it from being found out (kIo, kUnsupported of a newer catalog, ...); an
/// older snapshot is never returned instead.
Result<Latest> FindLatest(const Places& places);

/// In the directory `root` or below it. Errors: also those of FindPlaces.
Result<Latest> FindLatest(const std::string& root);

}  // namespace reshard
