#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <vector>

#include "reshard/storage/posix_internal.h"

namespace reshard {
namespace {

constexpr int kCreateLockSeconds = 10;
constexpr std::uint64_t kMaxOffset = std::numeric_limits<off_t>::max();

bool IsValidRange(std::uint64_t offset, std::uint64_t size) {
  return offset <= kMaxOffset && size <= kMaxOffset - offset;
}

tl::unexpected<Error> BadRange(const std::string& where, std::uint64_t offset, std::uint64_t size) {
  return MakeError(
      ErrorCode::kInvalidArgument, "BAD_RANGE",
      fmt::format("{}: {} bytes at offset {} do not fit in a file", where, size, offset));
}

class PosixReadable final : public ReadableObject {
 public:
  PosixReadable(std::shared_ptr<const PosixDirectory> directory, std::string name, UniqueFd fd,
                const struct stat& info)
      : directory_(std::move(directory)), name_(std::move(name)), fd_(std::move(fd)), info_(info) {}

  const std::string& name() const override { return name_; }

  std::uint64_t size() const override { return static_cast<std::uint64_t>(info_.st_size); }

  std::int64_t mtime_ns() const override { return ModifiedNs(info_); }

  Status ReadAt(std::uint64_t offset, MutableByteSpan out) override {
    return Read(offset, out, false);
  }

  Status ReadAtDirect(std::uint64_t offset, MutableByteSpan out) override {
    return Read(offset, out, directory_->options().direct_io);
  }

  void WillNeed(ByteRange range) override {
    static_cast<void>(::posix_fadvise(fd_.get(), static_cast<off_t>(range.offset),
                                      static_cast<off_t>(range.size), POSIX_FADV_WILLNEED));
  }

  bool IsCached(ByteRange range) override;

 private:
  Status Read(std::uint64_t offset, MutableByteSpan out, bool direct);
  int DescriptorFor(std::uint64_t offset, MutableByteSpan out, bool direct);
  tl::unexpected<Error> Truncated(std::uint64_t offset, std::uint64_t size) const;

  std::shared_ptr<const PosixDirectory> directory_;
  std::string name_;
  UniqueFd fd_;
  struct stat info_;
  DirectDescriptor direct_;
};

int PosixReadable::DescriptorFor(std::uint64_t offset, MutableByteSpan out, bool direct) {
  if (direct && IsAligned(out.data(), offset, out.size())) {
    const int fd = direct_.Get(*directory_, name_, O_RDONLY, info_, fd_.get());
    return fd >= 0 ? fd : fd_.get();
  }
  return fd_.get();
}

Status PosixReadable::Read(std::uint64_t offset, MutableByteSpan out, bool direct) {
  if (!IsValidRange(offset, out.size())) {
    return BadRange(directory_->path() + "/" + name_, offset, out.size());
  }
  if (offset + out.size() > size()) {
    return Truncated(offset, out.size());
  }
  const std::uint64_t whole = out.size();
  const std::uint64_t begin = offset;
  while (!out.empty()) {
    const int fd = DescriptorFor(offset, out, direct);
    const ssize_t n = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (n > 0) {
      offset += static_cast<std::uint64_t>(n);
      out = out.subspan(static_cast<std::size_t>(n));
    } else if (n == 0) {
      return Truncated(begin, whole);
    } else if (errno == EINVAL && fd != fd_.get()) {
      direct_.Disable();
    } else if (errno != EINTR) {
      return directory_->Failure(errno, "READ", name_,
                                 fmt::format("read {} bytes at offset {}", out.size(), offset));
    }
  }
  return OkStatus();
}

tl::unexpected<Error> PosixReadable::Truncated(std::uint64_t offset, std::uint64_t size) const {
  struct stat now = info_;
  ::fstat(fd_.get(), &now);
  auto out = MakeError(
      ErrorCode::kCorruption, "FILE_TRUNCATED",
      fmt::format("{}/{}: {} bytes at offset {} need a file of at least {} bytes, but it has {} "
                  "(it had {} when it was opened); restore the file from a copy",
                  directory_->path(), name_, size, offset, offset + size, now.st_size,
                  info_.st_size));
  out.value().data_loss = true;
  return out;
}

bool PosixReadable::IsCached(ByteRange range) {
  if (range.size == 0 || !IsValidRange(range.offset, range.size) || range.end() > size()) {
    return false;
  }
  // The mapping is asked about and never touched, so a truncated file cannot raise SIGBUS.
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t begin = range.offset / page * page;
  const std::uint64_t length = range.end() - begin;
  void* map = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, fd_.get(), static_cast<off_t>(begin));
  if (map == MAP_FAILED) {
    return false;
  }
  constexpr std::uint64_t kWindows = 8;
  constexpr std::uint64_t kWindowPages = 16;
  const std::uint64_t pages = (length + page - 1) / page;
  const std::uint64_t step = std::max(kWindowPages, (pages + kWindows - 1) / kWindows);
  std::uint64_t asked = 0;
  std::uint64_t cached = 0;
  for (std::uint64_t first = 0; first < pages; first += step) {
    unsigned char resident[kWindowPages] = {};
    const std::uint64_t count = std::min(kWindowPages, pages - first);
    if (::mincore(static_cast<char*>(map) + first * page, count * page, resident) == 0) {
      asked += count;
      cached += static_cast<std::uint64_t>(std::count_if(
          resident, resident + count, [](unsigned char bits) { return (bits & 1) != 0; }));
    }
  }
  ::munmap(map, length);
  return cached * 2 > asked;
}

class PosixWritable final : public WritableObject {
 public:
  PosixWritable(std::shared_ptr<const PosixDirectory> directory, std::string name, UniqueFd fd,
                const struct stat& info)
      : directory_(std::move(directory)), name_(std::move(name)), fd_(std::move(fd)), info_(info) {}

  ~PosixWritable() override {
    if (!keep_) {
      RemoveOwnFile();
    }
  }

  const std::string& name() const override { return name_; }

  /// Locks and reserves, right after creation.
  Status Prepare(const CreateOptions& options);

  Status WriteAt(std::uint64_t offset, ByteSpan data) override;
  Status Finish(std::uint64_t size) override;

  void Abandon() override {
    keep_ = true;
    fd_.Close();
    lock_.Close();
  }

 private:
  int DescriptorFor(std::uint64_t offset, ByteSpan data);
  Status TakeLock();
  void RemoveOwnFile() const;

  std::shared_ptr<const PosixDirectory> directory_;
  std::string name_;
  UniqueFd fd_;
  UniqueFd lock_;  // a duplicate of fd_: a file lock lives until the last duplicate is closed
  struct stat info_;
  DirectDescriptor direct_;
  std::atomic<std::uint64_t> written_ = 0;
  bool keep_ = false;
};

Status PosixWritable::Prepare(const CreateOptions& options) {
  if (options.lock) {
    RESHARD_TRY(TakeLock());
  }
  if (options.size_hint == 0) {
    return OkStatus();
  }
  if (!IsValidRange(0, options.size_hint)) {
    return BadRange(directory_->path() + "/" + name_, 0, options.size_hint);
  }
  int error = 0;
  do {
    error = ::fallocate(fd_.get(), 0, 0, static_cast<off_t>(options.size_hint)) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == 0 || error == EOPNOTSUPP || error == ENOSYS) {
    return OkStatus();
  }
  return directory_->Failure(error, "CREATE", name_,
                             fmt::format("reserve {} bytes", options.size_hint));
}

Status PosixWritable::TakeLock() {
  const int error = LockWithin(fd_.get(), kCreateLockSeconds);
  if (error == ENOLCK || error == EOPNOTSUPP || error == ENOSYS) {
    return MakeError(ErrorCode::kUnsupported, "NO_LOCKS",
                     fmt::format("{}: this file system has no file locks; mount it with locks "
                                 "(NFS: without nolock) or choose another directory",
                                 directory_->path()));
  }
  if (error != 0) {
    return directory_->Failure(error, "LOCK", name_, "lock");
  }
  lock_ = UniqueFd(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  if (!lock_.valid()) {
    return directory_->Failure(errno, "LOCK", name_, "duplicate the descriptor");
  }
  // A cleaner may have taken the lock first, and the file with it.
  struct stat now = {};
  if (::fstat(fd_.get(), &now) != 0 || now.st_nlink == 0) {
    return directory_->Failure(ESTALE, "CREATE", name_, "keep the new file, it was removed");
  }
  return OkStatus();
}

int PosixWritable::DescriptorFor(std::uint64_t offset, ByteSpan data) {
  if (directory_->options().direct_io && IsAligned(data.data(), offset, data.size())) {
    const int fd = direct_.Get(*directory_, name_, O_WRONLY, info_);
    return fd >= 0 ? fd : fd_.get();
  }
  return fd_.get();
}

Status PosixWritable::WriteAt(std::uint64_t offset, ByteSpan data) {
  if (!IsValidRange(offset, data.size())) {
    return BadRange(directory_->path() + "/" + name_, offset, data.size());
  }
  const std::uint64_t whole = data.size();
  while (!data.empty()) {
    const int fd = DescriptorFor(offset, data);
    const ssize_t n = ::pwrite(fd, data.data(), data.size(), static_cast<off_t>(offset));
    if (n > 0) {
      offset += static_cast<std::uint64_t>(n);
      data = data.subspan(static_cast<std::size_t>(n));
    } else if (n < 0 && errno == EINVAL && fd != fd_.get()) {
      direct_.Disable();
    } else if (n == 0 || errno != EINTR) {
      return directory_->Failure(n == 0 ? EIO : errno, "WRITE", name_,
                                 fmt::format("write {} bytes at offset {}", data.size(), offset));
    }
  }
  written_ += whole;
  return OkStatus();
}

Status PosixWritable::Finish(std::uint64_t size) {
  if (written_ < size) {
    return MakeError(ErrorCode::kIo, "WRITE",
                     fmt::format("{}/{}: only {} of {} bytes were written", directory_->path(),
                                 name_, written_.load(), size));
  }
  int error = 0;
  do {
    error = ::ftruncate(fd_.get(), static_cast<off_t>(size)) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error != 0) {
    return directory_->Failure(error, "WRITE", name_, fmt::format("set the size to {}", size));
  }
  // Never tried twice: the kernel drops dirty pages it could not write, and the next fsync says OK.
  if (::fsync(fd_.get()) != 0) {
    return directory_->Failure(errno, "SYNC", name_, fmt::format("sync {} bytes", size));
  }
  struct stat now = {};
  if (::fstat(fd_.get(), &now) != 0 || static_cast<std::uint64_t>(now.st_size) != size) {
    return MakeError(ErrorCode::kIo, "WRITE",
                     fmt::format("{}/{}: has {} bytes after the sync, expected {}; another process "
                                 "changed it",
                                 directory_->path(), name_, now.st_size, size));
  }
  if (const int late = fd_.Close(); late != 0) {
    return directory_->Failure(late, "SYNC", name_, "close");
  }
  keep_ = true;
  return OkStatus();
}

void PosixWritable::RemoveOwnFile() const {
  struct stat now = {};
  if (::fstatat(directory_->fd(), name_.c_str(), &now, AT_SYMLINK_NOFOLLOW) == 0 &&
      SameFile(now, info_)) {
    ::unlinkat(directory_->fd(), name_.c_str(), 0);
  }
}

}  // namespace

int DirectDescriptor::Get(const PosixDirectory& directory, const std::string& name, int flags,
                          const struct stat& expected, int open_fd) {
  if (disabled_) {
    return -1;
  }
  std::call_once(once_, [&] {
    fd_ = directory.OpenBeneath(name, flags | O_DIRECT);
    if (!fd_.valid() && open_fd >= 0) {  // opened through a link: the same file, whatever its name
      fd_ = UniqueFd(::open(fmt::format("/proc/self/fd/{}", open_fd).c_str(),
                            flags | O_DIRECT | O_CLOEXEC | O_NONBLOCK));
    }
    struct stat info = {};
    if (!fd_.valid() || ::fstat(fd_.get(), &info) != 0 || !SameFile(info, expected)) {
      disabled_ = true;
    }
  });
  return disabled_ ? -1 : fd_.get();
}

bool IsAligned(const void* data, std::uint64_t offset, std::uint64_t size) {
  return (reinterpret_cast<std::uintptr_t>(data) | offset | size) % kDirectAlignment == 0;
}

std::unique_ptr<ReadableObject> NewPosixReadable(std::shared_ptr<const PosixDirectory> directory,
                                                 std::string name, UniqueFd fd,
                                                 const struct stat& info) {
  return std::make_unique<PosixReadable>(std::move(directory), std::move(name), std::move(fd),
                                         info);
}

Result<std::unique_ptr<WritableObject>> CreatePosixWritable(
    std::shared_ptr<const PosixDirectory> directory, std::string name,
    const CreateOptions& options) {
  UniqueFd fd = directory->OpenBeneath(name, O_RDWR | O_CREAT | O_EXCL, 0644);
  if (!fd.valid() && (errno == EEXIST || errno == ELOOP)) {
    return MakeError(ErrorCode::kAlreadyExists, "FILE_EXISTS",
                     fmt::format("{}/{}: the name is taken", directory->path(), name));
  }
  if (!fd.valid()) {
    return directory->Failure(errno, "CREATE", name, "create");
  }
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) {
    return directory->Failure(errno, "CREATE", name, "stat");
  }
  auto out =
      std::make_unique<PosixWritable>(std::move(directory), std::move(name), std::move(fd), info);
  RESHARD_TRY(out->Prepare(options));
  return out;
}

}  // namespace reshard
