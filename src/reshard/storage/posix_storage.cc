#include "reshard/storage/posix_storage.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "reshard/storage/posix_internal.h"

namespace reshard {
namespace {

constexpr int kPublishTries = 16;

class PosixLock final : public StorageLock {
 public:
  explicit PosixLock(UniqueFd fd) : fd_(std::move(fd)) {}

 private:
  UniqueFd fd_;
};

std::uint64_t Mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15U;
  return hash ^ (hash >> 29);
}

// A number of this machine since it started; 0 when unknown.
std::uint64_t BootNumber() {
  UniqueFd fd(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  char text[40] = {};
  std::uint64_t out = 0;
  if (fd.valid() && ::read(fd.get(), text, sizeof(text) - 1) > 0) {
    for (const char* p = text; *p != '\0'; ++p) {
      out = Mix(out, static_cast<unsigned char>(*p));
    }
  }
  return out;
}

// A file system that only this machine sees: its numbers mean nothing elsewhere.
bool IsLocal(const struct statfs& info) {
  constexpr std::uint64_t kXfs = 0x58465342;
  constexpr std::uint64_t kZfs = 0x2fc12fc1;
  const auto type = static_cast<std::uint64_t>(info.f_type);
  return type == EXT4_SUPER_MAGIC || type == kXfs || type == BTRFS_SUPER_MAGIC ||
         type == TMPFS_MAGIC || type == RAMFS_MAGIC || type == OVERLAYFS_SUPER_MAGIC ||
         type == kZfs || type == F2FS_SUPER_MAGIC;
}

std::uint64_t DirectoryIdentity(int fd) {
  struct stat info = {};
  struct statfs system = {};
  if (::fstat(fd, &info) != 0 || ::fstatfs(fd, &system) != 0) {
    return 0;
  }
  std::uint64_t hash = Mix(1, info.st_ino);
  if (IsLocal(system)) {
    hash = Mix(Mix(hash, info.st_dev), BootNumber());
  } else {
    // Device numbers of network file systems differ between machines, the id of the export does
    // not.
    std::uint64_t id = 0;
    static_assert(sizeof(system.f_fsid) == sizeof(id));
    std::memcpy(&id, &system.f_fsid, sizeof(id));
    hash = Mix(hash, id);
  }
  return hash == 0 ? 1 : hash;
}

class PosixStorage final : public Storage {
 public:
  explicit PosixStorage(std::shared_ptr<const PosixDirectory> directory)
      : directory_(std::move(directory)), identity_(DirectoryIdentity(directory_->fd())) {}

  const std::string& description() const override { return directory_->path(); }

  std::uint64_t Identity() const override { return identity_; }

  Result<std::vector<ObjectInfo>> List() override;
  Result<std::unique_ptr<ReadableObject>> Open(std::string_view name) override;
  Result<std::vector<ObjectInfo>> ListForeign() override;
  Result<std::unique_ptr<ReadableObject>> OpenForeign(std::string_view name) override;
  Result<std::unique_ptr<WritableObject>> Create(std::string_view name,
                                                 const CreateOptions& options) override;
  Result<Published> Publish(std::string_view from, std::string_view to, PublishMode mode) override;
  Status Rename(std::string_view from, std::string_view to) override;
  Status Remove(std::string_view name) override;
  Status SyncNames() override;
  Result<std::unique_ptr<StorageLock>> TryLock(std::string_view name) override;

 private:
  tl::unexpected<Error> MoveFailure(int error, const std::string& from,
                                    const std::string& to) const;

  std::shared_ptr<const PosixDirectory> directory_;
  std::uint64_t identity_;
};

Result<std::vector<ObjectInfo>> PosixStorage::List() {
  // A descriptor of its own: the position of a directory stream must not be shared between threads.
  UniqueFd fd(::openat(directory_->fd(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) {
    return directory_->Failure(errno, "LIST", "", "open the directory");
  }
  std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(fd.get()), &::closedir);
  if (stream == nullptr) {
    return directory_->Failure(errno, "LIST", "", "list the directory");
  }
  fd.Release();
  std::vector<ObjectInfo> out;
  errno = 0;
  // readdir is safe here: no other thread has this stream.
  while (const dirent* entry = ::readdir(stream.get())) {  // NOLINT(concurrency-mt-unsafe)
    const std::string_view name = entry->d_name;
    struct stat info = {};
    const bool there = name != "." && name != ".." &&
                       ::fstatat(directory_->fd(), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0;
    if (there) {
      out.push_back({std::string(name), static_cast<std::uint64_t>(info.st_size), ModifiedNs(info),
                     S_ISREG(info.st_mode)});
    }
    errno = 0;
  }
  if (errno != 0) {
    return directory_->Failure(errno, "LIST", "", "list the directory");
  }
  std::sort(out.begin(), out.end(),
            [](const ObjectInfo& a, const ObjectInfo& b) { return a.name < b.name; });
  return out;
}

Result<std::unique_ptr<ReadableObject>> PosixStorage::Open(std::string_view name) {
  RESHARD_TRY(directory_->CheckReadable(name));
  struct stat info = {};
  std::string text(name);
  RESHARD_TRY_ASSIGN(UniqueFd fd, directory_->OpenRegular(text, O_RDONLY, info));
  return NewPosixReadable(directory_, std::move(text), std::move(fd), info);
}

Result<std::vector<ObjectInfo>> PosixStorage::ListForeign() {
  RESHARD_TRY_ASSIGN(std::vector<ObjectInfo> out, List());
  for (ObjectInfo& object : out) {
    struct stat info = {};
    if (!object.regular && directory_->options().foreign_names &&
        ::fstatat(directory_->fd(), object.name.c_str(), &info, 0) == 0 && S_ISREG(info.st_mode)) {
      object = {object.name, static_cast<std::uint64_t>(info.st_size), ModifiedNs(info), true};
    }
  }
  return out;
}

Result<std::unique_ptr<ReadableObject>> PosixStorage::OpenForeign(std::string_view name) {
  RESHARD_TRY(directory_->CheckReadable(name));
  std::string text(name);
  if (!directory_->options().foreign_names || !directory_->IsLink(text)) {
    return Open(name);
  }
  struct stat info = {};
  RESHARD_TRY_ASSIGN(UniqueFd fd, directory_->OpenTarget(text, info));
  return NewPosixReadable(directory_, std::move(text), std::move(fd), info);
}

Result<std::unique_ptr<WritableObject>> PosixStorage::Create(std::string_view name,
                                                             const CreateOptions& options) {
  RESHARD_TRY(directory_->CheckWritable(name));
  return CreatePosixWritable(directory_, std::string(name), options);
}

tl::unexpected<Error> PosixStorage::MoveFailure(int error, const std::string& from,
                                                const std::string& to) const {
  if (error == EEXIST) {
    return MakeError(
        ErrorCode::kAlreadyExists, "LOST_RACE",
        fmt::format("{}/{}: the name is taken; another writer was first", directory_->path(), to));
  }
  if (error == ENOENT) {
    return MakeError(
        ErrorCode::kNotFound, "FILE_MISSING",
        fmt::format("{}/{}: no such file to move to {}", directory_->path(), from, to));
  }
  return directory_->Failure(error, "PUBLISH", from, fmt::format("move to {}", to));
}

Result<Published> PosixStorage::Publish(std::string_view from, std::string_view to,
                                        PublishMode mode) {
  RESHARD_TRY(directory_->CheckWritable(from));
  RESHARD_TRY(directory_->CheckWritable(to));
  const std::string source(from);
  const std::string target(to);
  int error = EEXIST;
  // Names come and go between the two calls when several writers overwrite: bounded.
  for (int i = 0; i < kPublishTries && error == EEXIST; ++i) {
    if (mode == PublishMode::kReplace) {
      error = directory_->Exchange(source, target);
      if (error == 0) {
        return Published{true};
      }
      if (error != ENOENT || !directory_->Exists(source)) {
        break;
      }
    }
    error = directory_->RenameNew(source, target);
    if (error == 0) {
      return Published{false};
    }
    if (mode == PublishMode::kNew) {
      break;
    }
  }
  return MoveFailure(error, source, target);
}

Status PosixStorage::Rename(std::string_view from, std::string_view to) {
  RESHARD_TRY(Publish(from, to, PublishMode::kNew));
  // Without renameat2 the source can stay behind. Whoever renames to take a name away must know. A
  // new file of that name, of another writer, is left alone.
  const std::string source(from);
  const std::string target(to);
  struct stat old_name = {};
  struct stat new_name = {};
  const int fd = directory_->fd();
  if (::fstatat(fd, source.c_str(), &old_name, AT_SYMLINK_NOFOLLOW) == 0 &&
      ::fstatat(fd, target.c_str(), &new_name, AT_SYMLINK_NOFOLLOW) == 0 &&
      SameFile(old_name, new_name) && ::unlinkat(fd, source.c_str(), 0) != 0) {
    const int error = errno;
    ::unlinkat(fd, target.c_str(), 0);
    return directory_->Failure(error, "PUBLISH", from, "remove the old name");
  }
  return OkStatus();
}

Status PosixStorage::Remove(std::string_view name) {
  RESHARD_TRY(directory_->CheckWritable(name));
  if (::unlinkat(directory_->fd(), std::string(name).c_str(), 0) != 0 && errno != ENOENT) {
    return directory_->Failure(errno, "REMOVE", name, "remove");
  }
  return OkStatus();
}

Status PosixStorage::SyncNames() {
  // EINVAL: a file system whose directories cannot be synced, and need not be.
  if (::fsync(directory_->fd()) != 0 && errno != EINVAL) {
    return directory_->Failure(errno, "SYNC", "", "sync the directory");
  }
  return OkStatus();
}

Result<std::unique_ptr<StorageLock>> PosixStorage::TryLock(std::string_view name) {
  RESHARD_TRY(directory_->CheckReadable(name));
  const std::string text(name);
  struct stat info = {};
  // NFS locks for writing need a descriptor for writing; a file of another user can only be read.
  Result<UniqueFd> fd = directory_->OpenRegular(text, O_RDWR, info);
  if (!fd.ok() && fd.error().code == ErrorCode::kIo) {
    fd = directory_->OpenRegular(text, O_RDONLY, info);
  }
  if (!fd.ok()) {
    return tl::unexpected<Error>(std::move(fd).error());
  }
  const int error = LockWithin(fd->get(), 0);
  if (error == EWOULDBLOCK) {
    return std::unique_ptr<StorageLock>();
  }
  if (error == ENOLCK || error == EOPNOTSUPP || error == ENOSYS) {
    return MakeError(ErrorCode::kUnsupported, "NO_LOCKS",
                     fmt::format("{}: this file system has no file locks", directory_->path()));
  }
  if (error != 0) {
    return directory_->Failure(error, "LOCK", name, "lock");
  }
  return std::make_unique<PosixLock>(std::move(*fd));
}

std::string ParentOf(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) {
    return ".";
  }
  return slash == 0 ? "/" : path.substr(0, slash);
}

tl::unexpected<Error> PathFailure(int error, const std::string& path, std::string_view reason,
                                  std::string_view action) {
  if (error == ENOTDIR || error == EEXIST) {
    return MakeError(ErrorCode::kInvalidArgument, "NOT_A_DIRECTORY",
                     fmt::format("{}: not a directory", path));
  }
  if (error == ENOENT) {
    return MakeError(ErrorCode::kNotFound, "DIRECTORY_MISSING",
                     fmt::format("{}: no such directory; check the path", path));
  }
  return PosixDirectory(UniqueFd(), path, {}).Failure(error, reason, "", action);
}

tl::unexpected<Error> CannotMake(int error, const std::string& path) {
  if (error == ENOENT || error == ENOTDIR || error == ELOOP) {
    return MakeError(error == ENOTDIR ? ErrorCode::kInvalidArgument : ErrorCode::kIo,
                     error == ENOTDIR ? "NOT_A_DIRECTORY" : "CREATE",
                     fmt::format("cannot make directory {}: {}", path, ::strerrordesc_np(error)));
  }
  return PathFailure(error, path, "CREATE", "make the directory");
}

// Makes the missing directories of `path`, each durable in its parent.
Status MakeDirectories(const std::string& path) {
  std::vector<std::string> missing;
  std::string at = path;
  struct stat info = {};
  while (::stat(at.c_str(), &info) != 0 && errno == ENOENT && at != "." && at != "/") {
    missing.push_back(at);
    at = ParentOf(at);
  }
  for (; !missing.empty(); missing.pop_back()) {
    // EEXIST: another rank was faster, and syncs it.
    if (::mkdir(missing.back().c_str(), 0777) != 0 && errno != EEXIST) {
      return CannotMake(errno, missing.back());
    }
    UniqueFd parent(::open(ParentOf(missing.back()).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (parent.valid() && ::fsync(parent.get()) != 0 && errno != EINVAL) {
      return PathFailure(errno, missing.back(), "SYNC", "sync the directory");
    }
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<Storage>> OpenPosixStorage(const std::string& path,
                                                  const PosixStorageOptions& options) {
  std::string clean = path;
  while (clean.size() > 1 && clean.back() == '/') {
    clean.pop_back();
  }
  if (clean.empty() || clean.find('\0') != std::string::npos) {
    return MakeError(ErrorCode::kInvalidArgument, "NOT_A_DIRECTORY",
                     "the path of the checkpoint directory is empty or has a NUL byte");
  }
  if (options.create) {
    RESHARD_TRY(MakeDirectories(clean));
  }
  UniqueFd fd(::open(clean.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) {
    const bool dangling = options.create && errno == ENOENT;  // a link to nothing
    return dangling || (options.create && errno == ENOTDIR)
               ? CannotMake(errno, clean)
               : PathFailure(errno, clean, "OPEN", "open the directory");
  }
  return std::make_unique<PosixStorage>(
      std::make_shared<const PosixDirectory>(std::move(fd), std::move(clean), options));
}

}  // namespace reshard
