// Uses the installed reshard::mpi: a barrier over MPI_COMM_WORLD.

#include <cstdio>

#include "reshard/mpi/mpi_environment.h"
#include "reshard/mpi/mpi_process_group.h"

int main(int argc, char** argv) {
  const auto environment = reshard::MpiEnvironment::Start(argc, argv);
  if (!environment.ok()) {
    return 1;
  }
  const auto group = reshard::NewMpiProcessGroup(MPI_COMM_WORLD);
  if (!group.ok() || !(*group)->Barrier().ok()) {
    return 1;
  }
  std::printf("rank %d of %d\n", (*group)->rank(), (*group)->size());
  return 0;
}
