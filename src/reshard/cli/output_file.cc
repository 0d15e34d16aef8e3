#include "reshard/cli/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "reshard/cli/text.h"

namespace reshard::cli {
namespace {

constexpr std::size_t kMostNameBytes = 200;

tl::unexpected<Error> SystemError(std::string_view reason, const std::string& path,
                                  std::string_view what) {
  const char* text = ::strerrordesc_np(errno);
  return MakeError(ErrorCode::kIo, reason,
                   fmt::format("{}: cannot {}: {}", Printable(path), what,
                               text == nullptr ? "unknown error" : text));
}

tl::unexpected<Error> Exists(const std::string& path) {
  return MakeError(ErrorCode::kAlreadyExists, "OUTPUT_EXISTS",
                   fmt::format("{}: exists already\npass --force to replace it, or another name "
                               "with -o",
                               Printable(path)));
}

std::filesystem::path FolderOf(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

Status SyncFolder(const std::string& path) {
  const int folder = ::open(FolderOf(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) {
    return SystemError("SYNC", path, "open its folder");
  }
  const bool synced = ::fsync(folder) == 0 || errno == EINVAL;
  Status status = synced ? OkStatus() : Status(SystemError("SYNC", path, "sync its folder"));
  ::close(folder);
  return status;
}

}  // namespace

Result<OutputFile> OutputFile::Create(const std::string& path, bool replace) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (descriptor < 0) {
      return SystemError("CREATE", path, "write to it");
    }
    return OutputFile(path, "", descriptor, true);
  }
  if (::lstat(path.c_str(), &info) == 0 && !replace) {
    return Exists(path);
  }
  const std::filesystem::path name = std::filesystem::path(path).filename();
  const std::string temporary =
      (FolderOf(path) / fmt::format(".{}.{}.tmp", SafeFileName(name.string()), ::getpid()))
          .string();
  const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) {
    return SystemError("CREATE", path, "make a file in its folder");
  }
  return OutputFile(path, temporary, descriptor, replace);
}

OutputFile::OutputFile(std::string path, std::string temporary, int descriptor, bool replace)
    : path_(std::move(path)),
      temporary_(std::move(temporary)),
      descriptor_(descriptor),
      replace_(replace) {}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      descriptor_(other.descriptor_),
      replace_(other.replace_) {
  other.descriptor_ = -1;
  other.temporary_.clear();
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
  }
}

Status OutputFile::Write(ByteSpan bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      const bool full = errno == ENOSPC || errno == EDQUOT;
      return SystemError(full ? "NO_SPACE" : "WRITE", path_, "write to it");
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return OkStatus();
}

Status OutputFile::Commit() {
  if (temporary_.empty()) {
    return OkStatus();
  }
  if (::fsync(descriptor_) != 0) {
    return SystemError("SYNC", path_, "make it durable");
  }
  if (replace_) {
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
      return SystemError("PUBLISH", path_, "give the file its name");
    }
    temporary_.clear();
  } else if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_NOREPLACE) ==
             0) {
    temporary_.clear();
  } else if (errno == EEXIST) {
    return Exists(path_);
  } else if (::link(temporary_.c_str(), path_.c_str()) != 0) {  // no renameat2; the name goes later
    return errno == EEXIST ? Exists(path_)
                           : SystemError("PUBLISH", path_, "give the file its name");
  }
  return SyncFolder(path_);
}

std::string SafeFileName(std::string_view text) {
  std::string out(text.substr(0, kMostNameBytes));
  std::replace_if(
      out.begin(), out.end(),
      [](char c) {
        const auto byte = static_cast<unsigned char>(c);
        return byte >= 0x80 || (std::isalnum(byte) == 0 && c != '.' && c != '_' && c != '-');
      },
      '_');
  if (out.empty() || out.front() == '.' || out.front() == '-') {
    out.insert(0, "_");
    out.erase(std::min(out.size(), kMostNameBytes));
  }
  return out;
}

}  // namespace reshard::cli
