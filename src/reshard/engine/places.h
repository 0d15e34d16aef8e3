#pragma once

// The directories of a run that may hold checkpoints, in the order of the run.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// Where checkpoints are looked for.
struct Places {
  std::vector<std::string> paths;  ///< Oldest first.
  /// Opens one of them. kNotFound says that it went away meanwhile.
  std::function<Result<std::unique_ptr<Storage>>(const std::string& path)> open;
  /// Removes one that became empty; may be missing.
  std::function<Status(const std::string& path)> remove_if_empty;
};

/// `root` and every directory below it, ordered by ComparePaths of their names below `root`.
/// Names that begin with '.' (snapshots of file systems, half-copied trees), `lost+found` and
/// symlinks are not entered; `root` itself may be a symlink and is never removed.
/// Errors: kNotFound DIRECTORY_MISSING, kInvalidArgument NOT_A_DIRECTORY for `root`; kIo LIST for
/// any directory, because what cannot be seen could be the newest.
Result<Places> FindPlaces(const std::string& root);

/// Compares texts with runs of digits as numbers of any length: "step-9" < "step-10". Equal numbers
/// with different leading zeros compare bytewise last. Negative, zero or positive.
int CompareNaturally(std::string_view a, std::string_view b);

/// CompareNaturally for each component between '/'; a directory comes before what is in it.
int ComparePaths(std::string_view a, std::string_view b);

}  // namespace reshard
