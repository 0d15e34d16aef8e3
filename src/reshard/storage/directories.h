#pragma once

// The few things that are done to directories as a whole; what is in a checkpoint directory goes
// through Storage.

#include <string>
#include <vector>

#include "reshard/base/result.h"

namespace reshard {

/// The names of the directories directly inside `path`, sorted bytewise. Symlinks are not followed
/// and not listed; `path` itself may be one.
/// Errors: kNotFound DIRECTORY_MISSING; kInvalidArgument NOT_A_DIRECTORY; kIo LIST.
Result<std::vector<std::string>> ListDirectories(const std::string& path);

/// Removes the directory `path` if it is empty; fine when it is not, or is gone. Errors: kIo
/// REMOVE.
Status RemoveDirectoryIfEmpty(const std::string& path);

}  // namespace reshard
