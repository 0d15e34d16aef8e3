#pragma once

// MPI_Init and MPI_Finalize as one object, and the way out when a rank is gone.

#include <memory>

#include "reshard/base/result.h"

namespace reshard {

/// MPI for the life of the object. Make it first in main, so that it is destroyed after all groups.
///
/// MPI_Finalize waits for every rank of the job. After a collective has returned kPeerFailed it may
/// wait for ever: end the program with AbortJob instead.
class MpiEnvironment {
 public:
  /// Starts MPI with MPI_THREAD_MULTIPLE if it can, else what the library offers. Does nothing, and
  /// finalizes nothing later, when MPI runs already. Errors: kUnavailable MPI_INIT.
  static Result<std::unique_ptr<MpiEnvironment>> Start(int& argc, char**& argv);

  ~MpiEnvironment();
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;

 private:
  explicit MpiEnvironment(bool owner) : owner_(owner) {}

  bool owner_;
};

/// Ends all processes of the job, stopped ones too (MPI_Abort on MPI_COMM_WORLD). For programs that
/// got kPeerFailed; write out what must be kept before. Without MPI it ends this process.
[[noreturn]] void AbortJob(int exit_code);

}  // namespace reshard
