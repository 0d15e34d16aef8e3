#pragma once

// Paths as commands take them: PATH, or PATH@ID for one snapshot; with suggestions when they are
// wrong.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "reshard/base/result.h"
#include "reshard/cli/console.h"
#include "reshard/engine/checkpoint.h"
#include "reshard/storage/posix_path.h"
#include "reshard/storage/storage.h"

namespace reshard::cli {

/// An open checkpoint: a directory, or a file of another framework that is one.
struct OpenedPath {
  PathArgument argument;
  std::unique_ptr<Storage> storage;
  CheckpointList list;

  /// The wanted snapshot: the one that was named, else the newest.
  std::uint64_t unique_id() const { return argument.unique_id.value_or(list.ids.back()); }

  /// Its catalog. Errors: those of ReadCheckpoint.
  Result<OpenedCheckpoint> Read() const;
};

/// Opens a path that must hold the snapshot that was named, or any.
/// Errors: kInvalidArgument NO_SUCH_PATH (suggests the nearest existing one), NOT_A_DIRECTORY;
/// kNotFound NO_SNAPSHOT (names checkpoints below); kUnsupported FOREIGN_FORMAT; those of Storage.
Result<OpenedPath> OpenCheckpoint(const std::string& text);

/// Says on stderr what of a checkpoint cannot be read, and what else a user should know of it.
void ReportFaults(const OpenedCheckpoint& checkpoint, const std::string& path, Console& console);

/// Checks that a directory argument exists, with suggestions. Errors: as OpenCheckpoint; USAGE of
/// PATH@ID.
Status CheckDirectory(const std::string& path);

}  // namespace reshard::cli
