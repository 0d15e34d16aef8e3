#include <fcntl.h>
#include <fmt/format.h>
#include <linux/openat2.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "reshard/storage/posix_internal.h"

namespace reshard {
namespace {

constexpr int kReplaceLockSeconds = 60;

// What these calls answer when the kernel, the sandbox or the file system lacks them.
bool IsMissingCall(int error) {
  return error == ENOSYS || error == EINVAL || error == EPERM || error == EOPNOTSUPP;
}

std::string_view Hint(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "; free space on the disk or raise the quota";
    case EROFS:
      return "; the file system is read-only: choose another directory or mount it writable";
    case EACCES:
    case EPERM:
      return "; check the owner and the permissions of the directory and the file";
    case EMFILE:
    case ENFILE:
      return "; too many open files: raise the limit (ulimit -n)";
    case EFBIG:
      return "; raise the limit of the file size (ulimit -f) or choose another file system";
    case EIO:
      return "; the disk reports an error: see the kernel's log";
    case EXDEV:
      return "; a mount point or a link that leads out of the directory";
    default:
      return "";
  }
}

/// A checkpoint of many ranks has more files than the usual soft limit of 1024 descriptors allows.
bool RaiseFileLimit() {
  struct rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) {
    return false;
  }
  limit.rlim_cur = limit.rlim_max;
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

bool IsTransient(int error) {
  return error == EMFILE || error == ENFILE || error == ESTALE || error == EAGAIN ||
         error == ETIMEDOUT || error == ENOMEM;
}

}  // namespace

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = other.Release();
  }
  return *this;
}

UniqueFd::~UniqueFd() { Close(); }

int UniqueFd::Release() {
  const int fd = fd_;
  fd_ = -1;
  return fd;
}

int UniqueFd::Close() {
  if (fd_ < 0) {
    return 0;
  }
  const int saved = errno;
  // On Linux the descriptor is gone even after EINTR, so that is no error and never retried.
  const int error = ::close(Release()) != 0 && errno != EINTR ? errno : 0;
  errno = saved;
  return error;
}

bool SameFile(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

std::int64_t ModifiedNs(const struct stat& info) {
  return static_cast<std::int64_t>(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec;
}

PosixDirectory::PosixDirectory(UniqueFd fd, std::string path, const PosixStorageOptions& options)
    : fd_(std::move(fd)),
      path_(std::move(path)),
      options_(options),
      has_openat2_(options.modern_calls),
      has_rename_flags_(options.modern_calls) {
  struct stat info = {};
  if (::fstat(fd_.get(), &info) == 0) {
    device_ = info.st_dev;
  }
}

Status PosixDirectory::CheckReadable(std::string_view name) const {
  return options_.foreign_names ? CheckForeignName(name) : CheckName(name);
}

Status PosixDirectory::CheckWritable(std::string_view name) const {
  // SyncNames covers this directory alone, so nothing is written below it.
  return name.find('/') != std::string_view::npos ? CheckName(name) : CheckReadable(name);
}

UniqueFd PosixDirectory::OpenBeneath(const std::string& name, int flags, mode_t mode) const {
  flags |= O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY;
  while (has_openat2_) {
    struct open_how how = {};
    how.flags = static_cast<std::uint64_t>(flags);
    how.mode = mode;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV;
    const long fd = ::syscall(SYS_openat2, fd_.get(), name.c_str(), &how, sizeof(how));
    if (fd >= 0) {
      return UniqueFd(static_cast<int>(fd));
    }
    if (errno == EINTR) {
      continue;
    }
    if (errno == ENOSYS) {
      has_openat2_ = false;
    } else if (errno != EPERM) {
      return UniqueFd();
    }
    break;  // EPERM: a sandbox, or the file's own answer, which the fallback repeats.
  }
  return OpenByComponents(name, flags, mode);
}

UniqueFd PosixDirectory::OpenByComponents(const std::string& name, int flags, mode_t mode) const {
  UniqueFd parent;
  std::size_t begin = 0;
  for (;;) {
    const std::size_t slash = name.find('/', begin);
    const bool last = slash == std::string::npos;
    const std::string part = name.substr(begin, last ? slash : slash - begin);
    const int step_flags = last ? flags : O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    int fd = -1;
    do {
      fd = ::openat(parent.valid() ? parent.get() : fd_.get(), part.c_str(), step_flags, mode);
    } while (fd < 0 && errno == EINTR);
    UniqueFd opened(fd);
    struct stat info = {};
    if (!opened.valid()) {
      return opened;
    }
    if (::fstat(opened.get(), &info) != 0 || info.st_dev != device_) {
      errno = EXDEV;
      return UniqueFd();
    }
    if (last) {
      return opened;
    }
    parent = std::move(opened);
    begin = slash + 1;
  }
}

Result<UniqueFd> PosixDirectory::OpenRegular(const std::string& name, int flags,
                                             struct stat& info) const {
  UniqueFd fd = OpenBeneath(name, flags);
  if (!fd.valid() && errno == EMFILE && RaiseFileLimit()) {
    fd = OpenBeneath(name, flags);
  }
  if (!fd.valid() && errno == ENOENT) {
    return MakeError(ErrorCode::kNotFound, "FILE_MISSING",
                     fmt::format("{}/{}: no such file", path_, name));
  }
  const bool not_regular = !fd.valid() && (errno == ELOOP || errno == ENXIO || errno == ENODEV ||
                                           errno == EISDIR || errno == ENOTDIR);
  if (!fd.valid() && !not_regular) {
    return Failure(errno, "OPEN", name, "open");
  }
  if (fd.valid() && ::fstat(fd.get(), &info) != 0) {
    return Failure(errno, "OPEN", name, "stat");
  }
  if (not_regular || !S_ISREG(info.st_mode)) {
    return MakeError(ErrorCode::kCorruption, "NOT_REGULAR",
                     fmt::format("{}/{}: not a plain file (a link, directory, pipe or device): "
                                 "refused",
                                 path_, name));
  }
  if (options_.strict_links && info.st_nlink > 1) {
    return MakeError(ErrorCode::kCorruption, "NOT_REGULAR",
                     fmt::format("{}/{}: has {} hard links, and strict_links allows one", path_,
                                 name, info.st_nlink));
  }
  return fd;
}

UniqueFd PosixDirectory::OpenFolderOf(const std::string& name, std::string& last) const {
  const std::size_t slash = name.rfind('/');
  last = slash == std::string::npos ? name : name.substr(slash + 1);
  return slash == std::string::npos
             ? UniqueFd(::openat(fd_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC))
             : OpenBeneath(name.substr(0, slash), O_RDONLY | O_DIRECTORY);
}

bool PosixDirectory::IsLink(const std::string& name) const {
  std::string last;
  const UniqueFd folder = OpenFolderOf(name, last);
  struct stat info = {};
  return folder.valid() && ::fstatat(folder.get(), last.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
         S_ISLNK(info.st_mode);
}

Result<UniqueFd> PosixDirectory::OpenTarget(const std::string& name, struct stat& info) const {
  std::string last;
  const UniqueFd folder = OpenFolderOf(name, last);
  // The target is looked at before it is opened: opening a device can do things.
  if (!folder.valid() || ::fstatat(folder.get(), last.c_str(), &info, 0) != 0) {
    if (errno == ENOENT) {
      return MakeError(ErrorCode::kNotFound, "FILE_MISSING",
                       fmt::format("{}/{}: a link whose target is missing; was it removed from the "
                                   "cache that the link leads to?",
                                   path_, name));
    }
    if (errno != ELOOP && errno != ENOTDIR) {
      return Failure(errno, "OPEN", name, "follow the link");
    }
    info.st_mode = 0;
  }
  UniqueFd fd;
  if (S_ISREG(info.st_mode)) {
    fd = UniqueFd(
        ::openat(folder.get(), last.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
    if (!fd.valid() || ::fstat(fd.get(), &info) != 0) {
      return Failure(errno, "OPEN", name, "open what the link leads to");
    }
  }
  if (!S_ISREG(info.st_mode)) {
    return MakeError(
        ErrorCode::kCorruption, "NOT_REGULAR",
        fmt::format("{}/{}: a link that leads to no plain file: refused", path_, name));
  }
  return fd;
}

bool PosixDirectory::Exists(const std::string& name) const {
  struct stat info = {};
  return ::fstatat(fd_.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0;
}

int PosixDirectory::RenameNew(const std::string& from, const std::string& to) const {
  if (has_rename_flags_) {
    if (::renameat2(fd_.get(), from.c_str(), fd_.get(), to.c_str(), RENAME_NOREPLACE) == 0) {
      return 0;
    }
    if (!IsMissingCall(errno)) {
      return errno;
    }
  }
  return RenameNewByLinks(from, to);
}

int PosixDirectory::RenameNewByLinks(const std::string& from, const std::string& to) const {
  if (::linkat(fd_.get(), from.c_str(), fd_.get(), to.c_str(), 0) != 0) {
    const int error = errno;
    // NFS may repeat a request whose answer was lost: the link count tells whether it was done.
    struct stat source = {};
    struct stat target = {};
    const bool done = ::fstatat(fd_.get(), from.c_str(), &source, AT_SYMLINK_NOFOLLOW) == 0 &&
                      ::fstatat(fd_.get(), to.c_str(), &target, AT_SYMLINK_NOFOLLOW) == 0 &&
                      SameFile(source, target) && source.st_nlink == 2;
    if (!done) {
      return error;
    }
  }
  // The target exists from here on: a source that stays is a leftover, not a failure.
  ::unlinkat(fd_.get(), from.c_str(), 0);
  return 0;
}

int PosixDirectory::Exchange(const std::string& from, const std::string& to) const {
  if (has_rename_flags_) {
    if (::renameat2(fd_.get(), from.c_str(), fd_.get(), to.c_str(), RENAME_EXCHANGE) == 0) {
      return 0;
    }
    if (!IsMissingCall(errno)) {
      return errno;
    }
  }
  return ExchangeByLinks(from, to);
}

int PosixDirectory::ExchangeByLinks(const std::string& from, const std::string& to) const {
  if (!Exists(from) || !Exists(to)) {
    return ENOENT;
  }
  UniqueFd lock = OpenBeneath(kReplaceLockName, O_RDWR | O_CREAT, 0666);
  if (!lock.valid()) {
    return errno;
  }
  if (const int error = LockWithin(lock.get(), kReplaceLockSeconds); error != 0) {
    return error;
  }
  const std::string keep = from + kReplaceKeepSuffix;
  // Left by a writer that died: whoever holds the lock may remove it.
  ::unlinkat(fd_.get(), keep.c_str(), 0);
  if (::linkat(fd_.get(), to.c_str(), fd_.get(), keep.c_str(), 0) != 0) {
    return errno;
  }
  if (::renameat(fd_.get(), from.c_str(), fd_.get(), to.c_str()) != 0) {
    const int error = errno;
    ::unlinkat(fd_.get(), keep.c_str(), 0);
    return error;
  }
  // The target is replaced from here on: at worst the old file keeps the other name.
  static_cast<void>(::renameat(fd_.get(), keep.c_str(), fd_.get(), from.c_str()));
  return 0;
}

tl::unexpected<Error> PosixDirectory::Failure(int error, std::string_view reason,
                                              std::string_view name,
                                              std::string_view action) const {
  if (error == ENOSPC || error == EDQUOT) {
    reason = "NO_SPACE";
  } else if (error == EROFS) {
    reason = "READ_ONLY";
  }
  const char* text = ::strerrordesc_np(error);
  auto out = MakeError(ErrorCode::kIo, reason,
                       fmt::format("{}{}{}: cannot {}: {}{}", path_, name.empty() ? "" : "/", name,
                                   action, text == nullptr ? "unknown error" : text, Hint(error)));
  out.value().retryable = IsTransient(error);
  return out;
}

int LockWithin(int fd, int seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  for (;;) {
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) {
      return 0;
    }
    if (errno != EINTR && errno != EWOULDBLOCK) {
      return errno;
    }
    if (errno == EWOULDBLOCK && std::chrono::steady_clock::now() >= end) {
      return EWOULDBLOCK;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(errno == EINTR ? 0 : 5));
  }
}

}  // namespace reshard
