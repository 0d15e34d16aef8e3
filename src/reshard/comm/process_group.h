#pragma once

// A group of ranks that act together. All collectives are called by every rank of the group in the
// same order, from one thread at a time per rank.
//
// Failure: a rank that gives no sign of life within the deadline becomes kPeerFailed PEER_TIMEOUT
// on all other ranks, naming the silent *global* rank; the group is dead afterwards: every later
// call returns the same error at once. A rank that destroys its group while others wait for it is
// named with PEER_LEFT. A rank that only sends (a leaf of Gather) may return OK before it can know
// of a failure; the next collective tells. Waiting in any group derived from one job is a sign of
// life for all of them. Group rank and global rank are kept apart: arguments named `rank` or `root`
// are group ranks; messages and file names use global ranks.

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "reshard/base/bytes.h"
#include "reshard/base/result.h"

namespace reshard {

/// How long a silent peer is waited for, counted from its last sign of life (a message or a beat).
struct Deadlines {
  std::chrono::milliseconds control = std::chrono::minutes(2);  ///< small messages
  std::chrono::milliseconds data = std::chrono::minutes(30);    ///< while peers move tensor bytes
};

/// Which of the two deadlines a collective uses.
enum class Wait { kControl, kData };

/// Communication between the ranks of one job. Collective: every method but the accessors and Beat.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// The rank in the whole job of a rank of this group.
  virtual int global_rank(int rank) const = 0;

  int global_rank() const { return global_rank(rank()); }

  /// Whether all ranks are threads of one process, so that each can reach the others' memory.
  virtual bool shares_memory() const { return false; }

  /// The group rank of a global rank, or -1.
  int FindGlobalRank(int global) const;

  /// Every rank's bytes at `root` (index = group rank); an empty vector elsewhere. Lengths may
  /// differ.
  virtual Result<std::vector<Bytes>> Gather(ByteSpan mine, int root,
                                            Wait wait = Wait::kControl) = 0;

  /// The root's bytes on every rank; `mine` counts on the root only.
  virtual Result<Bytes> Broadcast(ByteSpan mine, int root, Wait wait = Wait::kControl) = 0;

  /// Every rank's bytes on every rank.
  virtual Result<std::vector<Bytes>> AllGather(ByteSpan mine, Wait wait = Wait::kControl) = 0;

  /// Sends send[r] to rank r and fills receive[r] with what rank r sent here; sizes must agree
  /// pairwise. Transfers of any size: cut where the transport counts in int. After a kPeerFailed
  /// error over MPI the spans may still be in use by transfers that cannot be cancelled: keep their
  /// memory until the process ends.
  virtual Status AllToAllV(std::span<const ByteSpan> send, std::span<const MutableByteSpan> receive,
                           Wait wait = Wait::kData) = 0;

  virtual Status Barrier(Wait wait = Wait::kControl) = 0;

  /// A sign of life from a rank that is busy between two collectives; cheap, rate-limited inside,
  /// may be called from any thread. Never blocks.
  virtual void Beat() = 0;

  /// The vote that ends a phase: OK on every rank if all are OK; else on every rank the same error,
  /// that of the lowest failing rank, whose message names that global rank.
  Status Agree(const Status& mine, Wait wait = Wait::kControl);

  /// A group of the same ranks whose messages never mix with this one's (for background work).
  virtual Result<std::unique_ptr<ProcessGroup>> Duplicate() = 0;

  /// The subgroup of the given group ranks, in that order; every rank of this group calls it, ranks
  /// outside get null.
  virtual Result<std::unique_ptr<ProcessGroup>> Subgroup(std::span<const int> ranks) = 0;
};

/// Error <-> bytes, for votes.
Bytes EncodeStatus(const Status& status);
Result<Status> DecodeStatus(ByteSpan bytes);

/// The group of one rank.
std::unique_ptr<ProcessGroup> SingleProcessGroup(int global_rank = 0);

/// N ranks as threads of one process: element r is rank r's group, to be used by one thread each.
std::vector<std::unique_ptr<ProcessGroup>> ThreadProcessGroups(int size, Deadlines deadlines = {});

}  // namespace reshard
