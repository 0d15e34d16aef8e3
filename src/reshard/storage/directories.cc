#include "reshard/storage/directories.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string_view>

#include "reshard/storage/posix_internal.h"

namespace reshard {
namespace {

tl::unexpected<Error> DirectoryFailure(int error, const std::string& path, std::string_view reason,
                                       std::string_view action) {
  if (error == ENOENT) {
    return MakeError(ErrorCode::kNotFound, "DIRECTORY_MISSING",
                     fmt::format("{}: no such directory", path));
  }
  if (error == ENOTDIR) {
    return MakeError(ErrorCode::kInvalidArgument, "NOT_A_DIRECTORY",
                     fmt::format("{}: not a directory", path));
  }
  return PosixDirectory(UniqueFd(), path, {}).Failure(error, reason, "", action);
}

}  // namespace

Result<std::vector<std::string>> ListDirectories(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) {
    return DirectoryFailure(errno, path, "LIST", "open the directory");
  }
  std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(fd.get()), &::closedir);
  if (stream == nullptr) {
    return DirectoryFailure(errno, path, "LIST", "list the directory");
  }
  const int directory = fd.Release();
  std::vector<std::string> out;
  errno = 0;
  // readdir is safe here: no other thread has this stream.
  while (const dirent* entry = ::readdir(stream.get())) {  // NOLINT(concurrency-mt-unsafe)
    const std::string_view name = entry->d_name;
    bool is_directory = entry->d_type == DT_DIR;
    if (entry->d_type == DT_UNKNOWN) {  // file systems that do not say
      struct stat info = {};
      if (::fstatat(directory, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0) {
        is_directory = S_ISDIR(info.st_mode);
      } else if (errno != ENOENT) {
        return DirectoryFailure(errno, path, "LIST", "list the directory");
      }
    }
    if (is_directory && name != "." && name != "..") {
      out.emplace_back(name);
    }
    errno = 0;
  }
  if (errno != 0) {
    return DirectoryFailure(errno, path, "LIST", "list the directory");
  }
  std::sort(out.begin(), out.end());
  return out;
}

Status RemoveDirectoryIfEmpty(const std::string& path) {
  if (::rmdir(path.c_str()) != 0 && errno != ENOTEMPTY && errno != EEXIST && errno != ENOENT) {
    return DirectoryFailure(errno, path, "REMOVE", "remove the directory");
  }
  return OkStatus();
}

}  // namespace reshard
