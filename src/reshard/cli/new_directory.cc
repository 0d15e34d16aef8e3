#include "reshard/cli/new_directory.h"

#include <filesystem>

#include "reshard/storage/directories.h"

namespace reshard::cli {

NewDirectory::NewDirectory(const std::string& path) {
  std::error_code error;
  std::filesystem::path at = std::filesystem::absolute(path, error).lexically_normal();
  if (!at.has_filename()) {
    at = at.parent_path();
  }
  while (!error && !std::filesystem::exists(std::filesystem::symlink_status(at, error)) &&
         at != at.parent_path()) {
    error.clear();  // "not there" is one
    missing_.push_back(at.string());
    at = at.parent_path();
  }
}

NewDirectory::~NewDirectory() {
  for (const std::string& directory : missing_) {
    if (!kept_ && !RemoveDirectoryIfEmpty(directory).ok()) {
      return;
    }
  }
}

}  // namespace reshard::cli
