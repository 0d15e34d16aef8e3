#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>

#include "reshard/mpi/mpi_environment.h"
#include "reshard/mpi/mpi_process_group.h"
#include "tests/mpi/mpi_case.h"

namespace reshard::testing {
namespace {

using std::chrono::steady_clock;

// "" when `status` says that `victim` is silent.
std::string CheckNamed(const Status& status, int victim) {
  if (status.ok()) {
    return "the collective succeeded without the stopped rank";
  }
  const std::string begin = fmt::format("rank {} gave no sign of life", victim);
  const Error& error = status.error();
  const bool right_kind =
      (error.code == ErrorCode::kPeerFailed && error.reason == "PEER_TIMEOUT") ||
      (error.code == ErrorCode::kIndeterminate && error.reason == "COMMIT_UNKNOWN");
  return right_kind && error.message.find(begin) != std::string::npos ? "" : error.ToString();
}

// Exchanges large buffers, so that transfers are under way when the victim stops.
Status Exchange(ProcessGroup& group) {
  const auto n = static_cast<std::size_t>(group.size());
  // Kept for ever: after a failure MPI may still use the memory.
  auto& out = *new Bytes(1 << 20);
  auto& in = *new Bytes(n << 20);
  const std::vector<ByteSpan> send(n, out);
  std::vector<MutableByteSpan> receive;
  for (std::size_t i = 0; i < n; ++i) {
    receive.push_back(MutableByteSpan(in).subspan(i << 20, 1 << 20));
  }
  return group.AllToAllV(send, receive);
}

Status OneCollective(ProcessGroup& group, const std::string& phase) {
  if (phase == "barrier") {
    return group.Barrier();
  }
  if (phase == "allgather") {
    RESHARD_TRY(group.AllGather(Bytes(100000)));
    return OkStatus();
  }
  return Exchange(group);
}

}  // namespace

Deadlines ShortDeadlines() {
  return {.control = std::chrono::milliseconds(1500), .data = std::chrono::milliseconds(1500)};
}

void StopMyself() { std::raise(SIGSTOP); }

std::string ExpectVictimIsNamed(ProcessGroup& group, int victim,
                                const std::function<Status(ProcessGroup&)>& work) {
  const pid_t mine = ::getpid();
  const auto pids =
      group.AllGather(ByteSpan(reinterpret_cast<const std::byte*>(&mine), sizeof(mine)));
  std::vector<int> others;
  for (int r = 0; r < group.size(); ++r) {
    if (r != victim) {
      others.push_back(r);
    }
  }
  const auto survivors = group.Subgroup(others);
  if (!pids.ok() || !survivors.ok()) {
    return "the group failed before the stop";
  }
  const auto start = steady_clock::now();
  const Status status = work(group);
  const auto took = steady_clock::now() - start;
  if (group.rank() == victim) {
    return status.ok() ? "the rank that was stopped noticed nothing" : "";
  }
  std::string wrong = CheckNamed(status, group.global_rank(victim));
  if (took > 3 * ShortDeadlines().control) {
    wrong += fmt::format("it took {} ms",
                         std::chrono::duration_cast<std::chrono::milliseconds>(took).count());
  }
  const Status verdict =
      wrong.empty() ? OkStatus() : Status(MakeError(ErrorCode::kInternal, "WRONG", wrong));
  const Status agreed = (*survivors)->Agree(verdict);
  if (!agreed.ok()) {
    return agreed.error().ToString();
  }
  if ((*survivors)->rank() == 0) {
    const Bytes& pid = (*pids)[static_cast<std::size_t>(victim)];
    ::kill(LoadLittle<pid_t>(pid.data()), SIGCONT);
  }
  return "";
}

std::string StopCase(const Arguments& arguments) {
  if (arguments.size() != 2) {
    return "usage: stop VICTIM barrier|allgather|alltoallv";
  }
  const int victim = std::stoi(arguments[0]);
  const auto group = NewMpiProcessGroup(MPI_COMM_WORLD, ShortDeadlines());
  if (!group.ok()) {
    return group.error().ToString();
  }
  return ExpectVictimIsNamed(**group, victim, [&](ProcessGroup& g) -> Status {
    for (int round = 0; round < 10; ++round) {
      if (g.rank() == victim && round == 3) {
        StopMyself();
      }
      RESHARD_TRY(OneCollective(g, arguments[1]));
    }
    return OkStatus();
  });
}

std::string AbortCase(const Arguments& /*arguments*/) {
  auto group = NewMpiProcessGroup(MPI_COMM_WORLD, ShortDeadlines());
  if (!group.ok()) {
    return group.error().ToString();
  }
  if ((*group)->rank() == 1) {
    StopMyself();
  }
  const std::string wrong = CheckNamed((*group)->Barrier(), 1);
  // Destroying the dead group must not wait for the stopped rank; MPI_Finalize would.
  group->reset();
  if (wrong.empty()) {
    fmt::print("abort case: rank 1 was named\n");
    std::fflush(stdout);
    ::usleep(200000);
    AbortJob(3);
  }
  return wrong;
}

}  // namespace reshard::testing
