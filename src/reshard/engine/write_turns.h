#pragma once

// Turns at writing, for ranks that are threads of one process: many may take part in a save while
// only some of them have buffers.

#include <functional>
#include <optional>
#include <set>

#include "reshard/base/mutex.h"
#include "reshard/base/result.h"

namespace reshard {

/// Lets some ranks write at once, of those that wait the lowest first. Thread-safe.
class WriteTurns {
 public:
  /// `at_once` >= 1.
  explicit WriteTurns(int at_once) : at_once_(at_once) {}

  /// Waits for a turn; `beat` is called now and then meanwhile. An error, that of a turn that ended
  /// with one, means that this rank has none and need not write: the save has failed.
  Status Begin(int rank, const std::function<void()>& beat);

  /// Ends a turn that began, with what came of it.
  void End(const Status& outcome);

 private:
  const int at_once_;
  Mutex mutex_;
  CondVar wake_;
  int writing_ RESHARD_GUARDED_BY(mutex_) = 0;
  std::set<int> waiting_ RESHARD_GUARDED_BY(mutex_);
  std::optional<Error> failure_ RESHARD_GUARDED_BY(mutex_);
};

}  // namespace reshard
