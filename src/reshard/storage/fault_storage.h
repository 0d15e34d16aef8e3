#pragma once

// A wrapper that fails, or stops for ever, at chosen operations: the tool of the crash tests.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "reshard/storage/storage.h"

namespace reshard {

/// The operations that can fail, as FaultPlan::decide sees them.
enum class StorageOp {
  kList, kOpen, kRead, kCreate, kWrite, kFinish, kPublish, kRename, kRemove, kSyncNames, kTryLock,
};

/// What an operation does instead of its work.
enum class FaultAction {
  kNone,           ///< Works.
  kFail,           ///< Returns kIo INJECTED without effect.
  kFailAfter,      ///< Takes effect, then returns kIo INJECTED.
  kCrash,          ///< No effect, and from here on every operation of this wrapper fails with
                   ///< kCancelled CRASHED and has no effect: the process "died" (destructors of
                   ///< unfinished objects leave their bytes where they are).
  kFlip,           ///< Reads only: one bit of the result is wrong.
};

/// Decides per operation. Called with a counter (0, 1, 2, ... over all operations of the wrapper), the
/// kind and the object's name; must be thread-safe.
using FaultPlan = std::function<FaultAction(std::uint64_t count, StorageOp op, std::string_view name)>;

/// A store that passes everything to `base` (which must outlive it) unless the plan says otherwise.
class FaultStorage;
std::unique_ptr<FaultStorage> NewFaultStorage(Storage& base, FaultPlan plan);

}  // namespace reshard
