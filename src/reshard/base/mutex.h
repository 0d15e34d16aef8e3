#pragma once

// A mutex that clang's thread-safety analysis understands; elsewhere the annotations vanish.

#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define RESHARD_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define RESHARD_THREAD_ANNOTATION(x)
#endif

#define RESHARD_CAPABILITY(x) RESHARD_THREAD_ANNOTATION(capability(x))
#define RESHARD_SCOPED_CAPABILITY RESHARD_THREAD_ANNOTATION(scoped_lockable)
#define RESHARD_GUARDED_BY(x) RESHARD_THREAD_ANNOTATION(guarded_by(x))
#define RESHARD_REQUIRES(...) RESHARD_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define RESHARD_ACQUIRE(...) RESHARD_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define RESHARD_RELEASE(...) RESHARD_THREAD_ANNOTATION(release_capability(__VA_ARGS__))

namespace reshard {

/// std::mutex with annotations.
class RESHARD_CAPABILITY("mutex") Mutex {
 public:
  void lock() RESHARD_ACQUIRE() { mutex_.lock(); }

  void unlock() RESHARD_RELEASE() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

/// Holds a Mutex for a scope.
class RESHARD_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) RESHARD_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }

  ~MutexLock() RESHARD_RELEASE() { mutex_.unlock(); }

  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

/// Condition variable that waits on a Mutex.
using CondVar = std::condition_variable_any;

}  // namespace reshard
