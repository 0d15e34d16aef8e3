#include "reshard/base/thread_pool.h"

#include <optional>
#include <utility>

#include "reshard/base/check.h"

namespace reshard {

ThreadPool::ThreadPool(std::size_t threads) {
  RESHARD_CHECK(threads >= 1);
  threads_.reserve(threads);
  for (std::size_t i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { Run(); });
  }
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void ThreadPool::Submit(std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    queue_.push_back(std::move(task));
  }
  wake_.notify_one();
}

void ThreadPool::Run() {
  for (;;) {
    std::function<void()> task;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !stopping_) {
        wake_.wait(mutex_);
      }
      if (queue_.empty()) {
        return;
      }
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    task();
  }
}

struct TaskGroup::State {
  Mutex mutex;
  CondVar done;
  std::size_t submitted RESHARD_GUARDED_BY(mutex) = 0;
  std::size_t finished RESHARD_GUARDED_BY(mutex) = 0;
  std::optional<std::pair<std::size_t, Error>> first_error RESHARD_GUARDED_BY(mutex);
};

TaskGroup::TaskGroup(ThreadPool& pool) : pool_(pool), state_(std::make_shared<State>()) {}

TaskGroup::~TaskGroup() {
  MutexLock lock(state_->mutex);
  RESHARD_CHECK(state_->finished == state_->submitted);
}

void TaskGroup::Submit(std::function<Status()> task) {
  std::size_t index = 0;
  {
    MutexLock lock(state_->mutex);
    index = state_->submitted++;
  }
  pool_.Submit([state = state_, index, task = std::move(task)] {
    bool skip = false;
    {
      MutexLock lock(state->mutex);
      skip = state->first_error.has_value();
    }
    Status status = skip ? OkStatus() : task();
    MutexLock lock(state->mutex);
    if (!status.ok() && (!state->first_error || index < state->first_error->first)) {
      state->first_error.emplace(index, std::move(status).error());
    }
    ++state->finished;
    state->done.notify_all();
  });
}

Status TaskGroup::Wait() {
  MutexLock lock(state_->mutex);
  while (state_->finished != state_->submitted) {
    state_->done.wait(state_->mutex);
  }
  if (state_->first_error) {
    return tl::unexpected<Error>(state_->first_error->second);
  }
  return OkStatus();
}

}  // namespace reshard
