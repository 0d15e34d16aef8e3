#pragma once

// A wrapper that fails, or stops for ever, at chosen operations: the tool of the crash tests.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/storage/storage.h"

namespace reshard {

/// The operations that can fail, as a FaultPlan sees them.
enum class StorageOp {
  kList,
  kOpen,
  kRead,
  kCreate,
  kWrite,
  kFinish,
  kPublish,
  kRename,
  kRemove,
  kSyncNames,
  kTryLock,
};

/// What an operation does instead of its work.
enum class FaultAction {
  kNone,       ///< Works.
  kFail,       ///< Returns kIo INJECTED without effect.
  kFailAfter,  ///< Takes effect, then returns kIo INJECTED.
  kCrash,      ///< No effect, and from here on every operation of this wrapper fails with
               ///< kCancelled CRASHED and has no effect: the process "died" (destructors of
               ///< unfinished objects leave their bytes where they are).
  kFlip,       ///< Reads only: one bit of the result is wrong.
};

/// Decides per operation. Called with a counter (0, 1, 2, ... over all operations of the wrapper),
/// the kind and the object's name (the source's for publish and rename); must be thread-safe. It
/// may block, for a store that hangs.
using FaultPlan =
    std::function<FaultAction(std::uint64_t count, StorageOp op, std::string_view name)>;

/// A store that passes everything to `base` (which must outlive it) unless the plan says otherwise.
class FaultStorage final : public Storage {
 public:
  FaultStorage(Storage& base, FaultPlan plan);
  ~FaultStorage() override;

  /// Operations so far: a run without faults tells how many k there are to fail at.
  std::uint64_t operations() const;

  /// Whether a kCrash happened.
  bool crashed() const;

  const std::string& description() const override;
  Result<std::vector<ObjectInfo>> List() override;
  Result<std::unique_ptr<ReadableObject>> Open(std::string_view name) override;
  Result<std::unique_ptr<WritableObject>> Create(std::string_view name,
                                                 const CreateOptions& options) override;
  Result<Published> Publish(std::string_view from, std::string_view to, PublishMode mode) override;
  Status Rename(std::string_view from, std::string_view to) override;
  Status Remove(std::string_view name) override;
  Status SyncNames() override;
  Result<std::unique_ptr<StorageLock>> TryLock(std::string_view name) override;
  std::uint64_t Identity() const override;

  struct State;

 private:
  Storage& base_;
  // Shared with the objects, which may be destroyed after the wrapper.
  std::shared_ptr<State> state_;
};

/// The same, on the heap.
std::unique_ptr<FaultStorage> NewFaultStorage(Storage& base, FaultPlan plan);

}  // namespace reshard
