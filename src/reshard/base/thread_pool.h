#pragma once

// A fixed set of worker threads and groups of tasks that fail together.

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "reshard/base/mutex.h"
#include "reshard/base/result.h"

namespace reshard {

/// Runs tasks on a fixed number of threads, in the order they were submitted. The destructor runs
/// what is queued, then joins. Thread-safe.
class ThreadPool {
 public:
  /// `threads` >= 1.
  explicit ThreadPool(std::size_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  std::size_t size() const { return threads_.size(); }

  /// Queues one task; it must not throw.
  void Submit(std::function<void()> task);

 private:
  void Run();

  Mutex mutex_;
  CondVar wake_;
  std::deque<std::function<void()>> queue_ RESHARD_GUARDED_BY(mutex_);
  bool stopping_ RESHARD_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

/// Tasks whose first error (by submission order) is the group's result; after an error the tasks
/// that have not started are skipped. Wait() must be called before destruction. Submit from one
/// thread.
class TaskGroup {
 public:
  explicit TaskGroup(ThreadPool& pool);
  ~TaskGroup();
  TaskGroup(const TaskGroup&) = delete;
  TaskGroup& operator=(const TaskGroup&) = delete;

  void Submit(std::function<Status()> task);

  /// Blocks until every task has ended; returns the first error.
  Status Wait();

 private:
  struct State;
  ThreadPool& pool_;
  std::shared_ptr<State> state_;
};

}  // namespace reshard
