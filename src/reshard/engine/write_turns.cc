#include "reshard/engine/write_turns.h"

#include <chrono>

namespace reshard {
namespace {

constexpr auto kBeatEvery = std::chrono::milliseconds(500);

}  // namespace

Status WriteTurns::Begin(int rank, const std::function<void()>& beat) {
  MutexLock lock(mutex_);
  waiting_.insert(rank);
  while (!failure_ && (writing_ >= at_once_ || rank != *waiting_.begin())) {
    wake_.wait_for(mutex_, kBeatEvery);
    beat();
  }
  waiting_.erase(rank);
  wake_.notify_all();  // another one may be the lowest now
  if (failure_) {
    return tl::unexpected<Error>(*failure_);
  }
  ++writing_;
  return OkStatus();
}

void WriteTurns::End(const Status& outcome) {
  MutexLock lock(mutex_);
  --writing_;
  if (!outcome.ok() && !failure_) {
    failure_ = outcome.error();
  }
  wake_.notify_all();
}

}  // namespace reshard
