#pragma once

// Cases of the test program that runs under mpirun: `reshard_mpi_test CASE [ARGUMENT...]`. A new
// case is a function below, a row in kCases (mpi_main.cc) and a line in CMakeLists.txt.

#include <functional>
#include <string>
#include <vector>

#include "reshard/comm/process_group.h"

namespace reshard::testing {

/// Arguments after the case's name.
using Arguments = std::vector<std::string>;

/// A case runs on every rank of MPI_COMM_WORLD and returns "" or what is wrong.
using MpiCase = std::string (*)(const Arguments& arguments);

std::string CollectivesCase(const Arguments& arguments);
std::string SplitCase(const Arguments& arguments);
std::string BeatCase(const Arguments& arguments);
std::string StopCase(const Arguments& arguments);
std::string AbortCase(const Arguments& arguments);
std::string SaveLoadCase(const Arguments& arguments);
std::string NodeLocalCase(const Arguments& arguments);
std::string StopStorageCase(const Arguments& arguments);

/// The short deadlines of the stop cases.
Deadlines ShortDeadlines();

/// Stops this process until another sends SIGCONT.
void StopMyself();

/// Runs `work` on every rank of `group`, which has ShortDeadlines(); `work` calls StopMyself() on
/// the rank `victim` at the moment in question. Checks that all other ranks get PEER_TIMEOUT, or an
/// unknown outcome because of it, within three deadlines of the stop and that the message names the
/// victim; then wakes the victim, which
/// must fail, too, so that the job can end as usual.
std::string ExpectVictimIsNamed(ProcessGroup& group, int victim,
                                const std::function<Status(ProcessGroup&)>& work);

}  // namespace reshard::testing
