#pragma once

// One flat directory of immutable objects: the only way the library touches files.
//
// The interface is small enough for an object store: a new object's ranges are written in any
// order, each once, then Finish makes it durable; a finished object never changes; publishing makes
// an object visible under its final name in one step; reads are ranged. There is no append.
//
// Names are bare file names of 1-200 bytes from [A-Za-z0-9._-], not starting with '.' or '-' and
// without ".." (CheckName), except that foreign checkpoints may be read under names with '/'
// between such components and with a leading '.' where the caller allows it.
//
// Thread-safety: Storage and ReadableObject: all methods from any thread. WritableObject: WriteAt
// from any thread; Finish once, after all writes returned.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/byte_source.h"
#include "reshard/base/bytes.h"
#include "reshard/base/result.h"

namespace reshard {

/// An entry of a listing.
struct ObjectInfo {
  std::string name;
  std::uint64_t size = 0;
  std::int64_t mtime_ns = 0;  ///< Wall time of the last change, nanoseconds since 1970.
  bool regular = true;        ///< False for anything that is not a plain file.
};

/// A finished object, open for reading. Its size() is the one when it was opened; ReadAt loops over
/// short reads and EINTR, and its FILE_TRUNCATED names file, expected and actual size.
class ReadableObject : public ByteSource {
 public:
  virtual const std::string& name() const = 0;
  virtual std::int64_t mtime_ns() const = 0;

  /// Like ReadAt but by direct I/O where the store can (no page cache). `out` should be aligned to
  /// kDirectAlignment in address, size and offset; otherwise it falls back. Never required.
  virtual Status ReadAtDirect(std::uint64_t offset, MutableByteSpan out) {
    return ReadAt(offset, out);
  }

  /// Says that the range will be read soon, so that a store with latency can begin; a hint.
  virtual void WillNeed(ByteRange range) { static_cast<void>(range); }

  /// Whether most of the range is in memory already (page cache); a hint, false when unknown.
  virtual bool IsCached(ByteRange range) {
    static_cast<void>(range);
    return false;
  }
};

/// A new object, being written. Destroying it before Finish removes what was written.
class WritableObject {
 public:
  virtual ~WritableObject() = default;

  virtual const std::string& name() const = 0;

  /// Writes one range; ranges may come in any order, each byte once. Direct I/O when data address,
  /// size and offset are aligned to kDirectAlignment and the store has it. Errors: kIo WRITE,
  /// NO_SPACE.
  virtual Status WriteAt(std::uint64_t offset, ByteSpan data) = 0;

  /// Sets the exact size (cutting padding), makes the bytes durable, checks the size and closes.
  /// Errors: kIo SYNC (final for this object), WRITE, NO_SPACE.
  ///
  /// A lock taken at creation stays held until the object is destroyed. A hole (fewer bytes written
  /// than `size`) is kIo WRITE.
  virtual Status Finish(std::uint64_t size) = 0;

  /// Leaves what was written where it is and lets go of descriptors and locks, as the death of the
  /// process would; afterwards only destruction is allowed. For crash tests.
  virtual void Abandon() = 0;
};

/// A lock on an object name, released on destruction (or when the process dies).
class StorageLock {
 public:
  virtual ~StorageLock() = default;
};

/// How Publish treats an object of the final name.
enum class PublishMode {
  kNew,      ///< The final name must not exist: kAlreadyExists LOST_RACE otherwise.
  kReplace,  ///< Exchange when it exists: the source name then holds what was replaced.
};

/// What Publish did.
struct Published {
  bool replaced = false;  ///< The source name now holds the object that was replaced.
};

/// How to create an object.
struct CreateOptions {
  std::uint64_t size_hint = 0;  ///< Space to reserve; 0 = unknown. NO_SPACE comes early this way.
  bool lock = false;            ///< Hold the object's lock (Storage::TryLock) until destruction.
};

/// What each byte-aligned direct transfer must be a multiple of.
inline constexpr std::uint64_t kDirectAlignment = 4096;

/// A checkpoint directory.
class Storage {
 public:
  virtual ~Storage() = default;

  /// How the place is called in messages ("/data/run7/step-100", "memory").
  virtual const std::string& description() const = 0;

  /// All entries, sorted by name, unfinished objects included. Errors: kIo LIST.
  virtual Result<std::vector<ObjectInfo>> List() = 0;

  /// Errors: kNotFound FILE_MISSING; kCorruption NOT_REGULAR (symlink, directory, device, FIFO:
  /// never followed, never blocks); kInvalidArgument BAD_NAME; kIo OPEN.
  virtual Result<std::unique_ptr<ReadableObject>> Open(std::string_view name) = 0;

  /// As List, for reading a foreign checkpoint that the user named: where the storage allows it
  /// (POSIX with foreign_names), a symlink to a plain file is listed as that file.
  virtual Result<std::vector<ObjectInfo>> ListForeign() { return List(); }

  /// As Open, for the same purpose: a symlink as the last component is followed to a plain file,
  /// wherever that is. (All files of a Hugging Face cache are links into a folder of blobs.) Never
  /// for native files, our own index or anything that is written.
  virtual Result<std::unique_ptr<ReadableObject>> OpenForeign(std::string_view name) {
    return Open(name);
  }

  /// Creates exclusively. Errors: kAlreadyExists FILE_EXISTS (also for a symlink of that name), kIo
  /// CREATE, NO_SPACE, READ_ONLY, BAD_NAME.
  virtual Result<std::unique_ptr<WritableObject>> Create(std::string_view name,
                                                         const CreateOptions& options) = 0;

  /// Makes the finished object `from` visible as `to` in one step, all or nothing. The names are
  /// not durable before SyncNames. Errors: kAlreadyExists LOST_RACE; kNotFound FILE_MISSING
  /// (`from`); kIo PUBLISH.
  virtual Result<Published> Publish(std::string_view from, std::string_view to,
                                    PublishMode mode) = 0;

  /// Renames a finished object to a name that must not exist. Errors as Publish with kNew.
  virtual Status Rename(std::string_view from, std::string_view to) = 0;

  /// Removes; fine when it is not there. Errors: kIo REMOVE.
  virtual Status Remove(std::string_view name) = 0;

  /// Makes names durable: after it, every create, publish and remove before it survives a power
  /// cut. Errors: kIo SYNC.
  virtual Status SyncNames() = 0;

  /// Takes the lock of an existing object without waiting; null when another holds it. Errors:
  /// kNotFound FILE_MISSING; kCorruption NOT_REGULAR; kIo LOCK; kUnsupported NO_LOCKS.
  virtual Result<std::unique_ptr<StorageLock>> TryLock(std::string_view name) = 0;

  /// A number that is equal on two ranks when they look at the same directory; 0 when unknown.
  virtual std::uint64_t Identity() const { return 0; }
};

/// The rule for native names. Errors: kInvalidArgument BAD_NAME quoting the (escaped) name.
Status CheckName(std::string_view name);

/// The rule for names that foreign formats store: 1-8 components between '/', each a native name
/// except that it may start with '.'. Errors as CheckName.
Status CheckForeignName(std::string_view name);

}  // namespace reshard
