#pragma once

// The ranks of an MPI communicator as a ProcessGroup.
//
// Only non-blocking calls are used, on a duplicate of the communicator, so the program's own
// messages never mix with ours and a rank that is gone becomes an error within the deadline. After
// such an error end the program with AbortJob (mpi_environment.h).
//
// Threads: MPI calls are serialized inside. With MPI_THREAD_SERIALIZED or more, groups may be used,
// and Beat be called, from any thread. Below that only the thread that made the group may use it,
// and Beat from other threads does nothing.

#include <mpi.h>

#include <memory>

#include "reshard/comm/process_group.h"
#include "reshard/comm/transport.h"

namespace reshard {

/// The group of the ranks of `comm`; global ranks are those of MPI_COMM_WORLD. Collective over
/// `comm`.
///
/// Each call takes one communicator for the rest of the process's life: freeing it while a late
/// message is on its way would hand that message to the next communicator of the same number.
///
/// `max_message`  longer transfers are cut; at most 2^31 - 1.
/// Errors: kInvalidArgument NO_MPI, BAD_COMM, BAD_RANGE; kPeerFailed PEER_TIMEOUT when some rank
/// does not
///         take part; kUnavailable MPI.
Result<std::unique_ptr<ProcessGroup>> NewMpiProcessGroup(MPI_Comm comm, Deadlines deadlines = {},
                                                         std::size_t max_message = kMaxMessage);

}  // namespace reshard
