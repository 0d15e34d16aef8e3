#pragma once

// Storage in a directory of a POSIX file system.

#include <memory>
#include <string>

#include "reshard/storage/storage.h"

namespace reshard {

/// Choices of OpenPosixStorage.
struct PosixStorageOptions {
  bool create = false;       ///< Make the directory (and parents), synced, when it is missing.
  bool direct_io = true;     ///< Use O_DIRECT for aligned writes where the file system has it.
  bool strict_links = false; ///< Refuse files with more than one hard link.
  bool foreign_names = false;  ///< Allow '/' between components and leading '.', for foreign formats.
};

/// Opens a directory. The directory itself may be reached through symlinks; nothing below it is.
/// Errors: kNotFound DIRECTORY_MISSING, kIo OPEN / READ_ONLY, kInvalidArgument NOT_A_DIRECTORY.
Result<std::unique_ptr<Storage>> OpenPosixStorage(const std::string& path,
                                                  const PosixStorageOptions& options = {});

}  // namespace reshard
