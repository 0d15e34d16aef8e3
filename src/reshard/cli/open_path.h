#pragma once

// Paths as commands take them: PATH, or PATH@ID for one snapshot; with suggestions when they are
// wrong.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/engine/snapshot.h"
#include "reshard/storage/storage.h"

namespace reshard::cli {

/// A parsed argument.
struct PathArgument {
  std::string path;
  std::optional<std::uint64_t> unique_id;
};

/// PATH@ID when ID is a canonical decimal and nothing exists under the literal name.
PathArgument ParsePath(const std::string& text);

/// An open checkpoint directory.
struct OpenedPath {
  PathArgument argument;
  std::unique_ptr<Storage> storage;
  DirectoryView view;

  /// The wanted snapshot: the one that was named, else the newest.
  std::uint64_t unique_id() const;
};

/// Opens a directory that must hold the snapshot that was named, or any.
/// Errors: kInvalidArgument NO_SUCH_PATH (suggests the nearest existing one), NOT_A_DIRECTORY;
/// kNotFound NO_SNAPSHOT (names checkpoints below); kUnsupported FOREIGN_FORMAT; those of Storage.
Result<OpenedPath> OpenCheckpoint(const std::string& text);

/// Checks that a directory argument exists, with suggestions. Errors: as OpenCheckpoint.
Status CheckDirectory(const std::string& path);

}  // namespace reshard::cli
