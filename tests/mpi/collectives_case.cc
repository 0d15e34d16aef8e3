#include <fmt/format.h>

#include <thread>

#include "reshard/mpi/mpi_process_group.h"
#include "tests/mpi/mpi_case.h"
#include "tests/support/collective_checks.h"

namespace reshard::testing {

std::string CollectivesCase(const Arguments& /*arguments*/) {
  // Twice: a second group beside the first, with messages cut short.
  const auto group = NewMpiProcessGroup(MPI_COMM_WORLD);
  const auto cut = NewMpiProcessGroup(MPI_COMM_WORLD, {}, 10000);
  if (!group.ok() || !cut.ok()) {
    return "no group";
  }
  std::string wrong = CheckCollectives(**group) + CheckCollectives(**cut);
  // A large transfer each way, beyond what MPI sends eagerly.
  wrong += CheckAllToAllV(**group, 17, 5 << 20);
  // A background group on its own thread.
  auto twin = (*group)->Duplicate();
  if (!twin.ok()) {
    return wrong + twin.error().ToString();
  }
  std::string background;
  std::thread thread([&] { background = CheckCollectives(**twin); });
  wrong += CheckCollectives(**group);
  thread.join();
  const auto null = NewMpiProcessGroup(MPI_COMM_NULL);
  if (null.ok() || null.error().reason != "BAD_COMM") {
    wrong += "MPI_COMM_NULL was taken";
  }
  return wrong + background;
}

std::string SplitCase(const Arguments& /*arguments*/) {
  // Two halves in reversed order: group ranks and global ranks differ.
  int world_rank = 0;
  int world_size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, world_rank % 2, -world_rank, &half);
  const auto group = NewMpiProcessGroup(half);
  MPI_Comm_free(&half);
  if (!group.ok()) {
    return group.error().ToString();
  }
  for (int r = 0; r < (*group)->size(); ++r) {
    const int expected = world_size - 1 - (world_size - 1 + world_rank) % 2 - 2 * r;
    if ((*group)->global_rank(r) != expected) {
      return fmt::format("rank {} is global {}, expected {}", r, (*group)->global_rank(r),
                         expected);
    }
  }
  return CheckCollectives(**group);
}

std::string BeatCase(const Arguments& /*arguments*/) {
  const auto group = NewMpiProcessGroup(MPI_COMM_WORLD, ShortDeadlines());
  if (!group.ok()) {
    return group.error().ToString();
  }
  // Rank 1 is busy for three deadlines while another thread of it beats.
  const auto end = std::chrono::steady_clock::now() + 3 * ShortDeadlines().control;
  if ((*group)->rank() == 1) {
    std::thread beater([&] {
      while (std::chrono::steady_clock::now() < end) {
        (*group)->Beat();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    });
    beater.join();
  }
  const Status status = (*group)->Barrier();
  return status.ok() ? "" : status.error().ToString();
}

}  // namespace reshard::testing
