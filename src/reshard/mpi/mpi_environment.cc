#include "reshard/mpi/mpi_environment.h"

#include <mpi.h>

#include <cstdlib>

namespace reshard {
namespace {

bool IsRunning() {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized != 0 && finalized == 0;
}

}  // namespace

Result<std::unique_ptr<MpiEnvironment>> MpiEnvironment::Start(int& argc, char**& argv) {
  if (IsRunning()) {
    return std::unique_ptr<MpiEnvironment>(new MpiEnvironment(false));
  }
  int provided = 0;
  if (MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS) {
    return MakeError(ErrorCode::kUnavailable, "MPI_INIT",
                     "MPI does not start; is the program run by mpirun of the same MPI library?");
  }
  return std::unique_ptr<MpiEnvironment>(new MpiEnvironment(true));
}

MpiEnvironment::~MpiEnvironment() {
  if (owner_ && IsRunning()) {
    MPI_Finalize();
  }
}

void AbortJob(int exit_code) {
  if (IsRunning()) {
    MPI_Abort(MPI_COMM_WORLD, exit_code);
  }
  std::_Exit(exit_code);
}

}  // namespace reshard
