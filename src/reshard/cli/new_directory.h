#pragma once

// A directory that a command makes for its result, and takes away again when it fails.

#include <string>
#include <vector>

namespace reshard::cli {

/// Removes, on destruction, the directories on the way to `path` that were not there when this was
/// made, as far as they are empty, unless Keep was called. Makes nothing itself.
class NewDirectory {
 public:
  explicit NewDirectory(const std::string& path);
  ~NewDirectory();
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;

  /// Whether `path` was not there.
  bool is_new() const { return !missing_.empty(); }

  void Keep() { kept_ = true; }

 private:
  std::vector<std::string> missing_;  // the deepest first
  bool kept_ = false;
};

}  // namespace reshard::cli
