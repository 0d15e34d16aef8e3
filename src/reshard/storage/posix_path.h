#pragma once

// Storage for a path that a user names: a directory, or one file of it.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "reshard/storage/storage.h"

namespace reshard {

/// PATH or PATH@ID, as commands and Load take it.
struct PathArgument {
  std::string path;
  std::optional<std::uint64_t> unique_id;
};

/// PATH@ID when ID is a canonical decimal and nothing exists under the literal name.
PathArgument ParsePath(const std::string& text);

/// Opens a directory for reading, foreign names allowed, or, when `path` is a plain file, a view of
/// its directory that shows only the file and its index (".reshard" behind its name). Errors: those
/// of OpenPosixStorage.
Result<std::unique_ptr<Storage>> OpenPosixPath(const std::string& path);

}  // namespace reshard
