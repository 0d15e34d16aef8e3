#pragma once

// Storage in a directory of a POSIX file system.

#include <memory>
#include <string>

#include "reshard/storage/storage.h"

namespace reshard {

/// Choices of OpenPosixStorage.
struct PosixStorageOptions {
  bool create = false;        ///< Make the directory (and parents), synced, when it is missing.
  bool direct_io = true;      ///< Use O_DIRECT for aligned writes where the file system has it.
  bool strict_links = false;  ///< Refuse files with more than one hard link.
  /// Names follow CheckForeignName ('/' for reading only), and ListForeign and OpenForeign follow
  /// links.
  bool foreign_names = false;
  /// Use openat2 and the flags of renameat2 where the kernel and the file system have them. False
  /// runs the fallbacks (openat per component, hard links, a lock on `reshard.lock`), as old
  /// kernels, strict sandboxes and NFS do anyway.
  bool modern_calls = true;
};

/// The lock file of an overwrite where the file system cannot exchange two names. It stays in the
/// directory: a lock file that is removed excludes nobody.
inline constexpr char kReplaceLockName[] = "reshard.lock";

/// What is appended to the source name of such an overwrite while it lasts. A crash can leave a
/// file of this name: a hard link to a catalog that was, or was about to be, replaced.
inline constexpr char kReplaceKeepSuffix[] = ".old";

/// Opens a directory. The directory itself may be reached through symlinks; nothing below it is.
/// Errors: kNotFound DIRECTORY_MISSING, kIo OPEN / READ_ONLY, kInvalidArgument NOT_A_DIRECTORY.
Result<std::unique_ptr<Storage>> OpenPosixStorage(const std::string& path,
                                                  const PosixStorageOptions& options = {});

}  // namespace reshard
