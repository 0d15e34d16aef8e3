#pragma once

// Storage for a path that a user names: a directory, or one file of it.

#include <memory>
#include <string>

#include "reshard/storage/storage.h"

namespace reshard {

/// Opens a directory for reading, foreign names allowed, or, when `path` is a plain file, a view of
/// its directory that shows only the names that begin with the file's: the file, and what lies
/// beside it under longer names (its index). Errors: those of OpenPosixStorage.
Result<std::unique_ptr<Storage>> OpenPosixPath(const std::string& path);

}  // namespace reshard
