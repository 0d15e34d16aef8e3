#pragma once

// What the parts of the POSIX storage share: descriptors, the directory, and errors from errno.

#include <sys/stat.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "reshard/base/result.h"
#include "reshard/storage/posix_storage.h"

namespace reshard {

/// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;

  explicit UniqueFd(int fd) : fd_(fd) {}

  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}

  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd();

  int get() const { return fd_; }

  bool valid() const { return fd_ >= 0; }

  /// Gives the descriptor away.
  int Release();

  /// Closes; 0 or the errno that close reported (NFS reports late write errors here).
  int Close();

 private:
  int fd_ = -1;
};

/// Whether two files are one.
bool SameFile(const struct stat& a, const struct stat& b);

/// Modification time in nanoseconds since 1970.
std::int64_t ModifiedNs(const struct stat& info);

/// An open checkpoint directory. Thread-safe.
class PosixDirectory {
 public:
  PosixDirectory(UniqueFd fd, std::string path, const PosixStorageOptions& options);

  int fd() const { return fd_.get(); }

  const std::string& path() const { return path_; }

  const PosixStorageOptions& options() const { return options_; }

  Status CheckReadable(std::string_view name) const;
  Status CheckWritable(std::string_view name) const;

  /// Opens beneath the directory: no symlink, no "..", no other file system, never blocking.
  /// Returns the descriptor, or an invalid one with errno set.
  UniqueFd OpenBeneath(const std::string& name, int flags, mode_t mode = 0) const;

  /// Opens an existing plain file and describes it in `info`. Errors as Storage::Open.
  Result<UniqueFd> OpenRegular(const std::string& name, int flags, struct stat& info) const;

  /// Whether the last component of an existing name is a symlink.
  bool IsLink(const std::string& name) const;

  /// Opens for reading the plain file that the link `name` leads to, anywhere. No other component
  /// may be a link. Errors as Storage::Open.
  Result<UniqueFd> OpenTarget(const std::string& name, struct stat& info) const;

  /// Renames to a name that must not exist; 0 or errno (EEXIST: the target exists).
  int RenameNew(const std::string& from, const std::string& to) const;

  /// Swaps two names; 0 or errno (ENOENT: one of them is missing). Where the file system cannot,
  /// holds the replace lock and renames over a kept hard link.
  int Exchange(const std::string& from, const std::string& to) const;

  bool Exists(const std::string& name) const;

  /// An error about `name`: "path/name: cannot <action>: <errno text>; <what to do>". The reason
  /// becomes NO_SPACE or READ_ONLY where that is the cause.
  tl::unexpected<Error> Failure(int error, std::string_view reason, std::string_view name,
                                std::string_view action) const;

 private:
  UniqueFd OpenFolderOf(const std::string& name, std::string& last) const;
  UniqueFd OpenByComponents(const std::string& name, int flags, mode_t mode) const;
  int ExchangeByLinks(const std::string& from, const std::string& to) const;
  int RenameNewByLinks(const std::string& from, const std::string& to) const;

  UniqueFd fd_;
  std::string path_;
  PosixStorageOptions options_;
  dev_t device_ = 0;
  mutable std::atomic<bool> has_openat2_;
  mutable std::atomic<bool> has_rename_flags_;
};

/// Takes a file lock within `seconds`; 0 or errno (EWOULDBLOCK: another holds it).
int LockWithin(int fd, int seconds);

/// A second descriptor of a file for O_DIRECT, opened when first wanted. Thread-safe.
class DirectDescriptor {
 public:
  /// The descriptor, or -1 where direct I/O does not work. `flags` is O_RDONLY or O_WRONLY;
  /// `expected` the file that `name` must still be.
  /// `open_fd`: a descriptor of it, or -1.
  int Get(const PosixDirectory& directory, const std::string& name, int flags,
          const struct stat& expected, int open_fd = -1);

  /// Stops its use, after the file system refused a transfer.
  void Disable() { disabled_ = true; }

 private:
  std::once_flag once_;
  UniqueFd fd_;
  std::atomic<bool> disabled_ = false;
};

/// Whether a transfer may use direct I/O.
bool IsAligned(const void* data, std::uint64_t offset, std::uint64_t size);

// The objects share the directory because a caller may destroy the Storage first.
std::unique_ptr<ReadableObject> NewPosixReadable(std::shared_ptr<const PosixDirectory> directory,
                                                 std::string name, UniqueFd fd,
                                                 const struct stat& info);
Result<std::unique_ptr<WritableObject>> CreatePosixWritable(
    std::shared_ptr<const PosixDirectory> directory, std::string name,
    const CreateOptions& options);

}  // namespace reshard
