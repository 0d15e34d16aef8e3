#pragma once

// What the groups of one rank share: the transport, when each peer was last heard, and which groups
// have died or lost a member.
//
// Signs of life belong to ranks, not to groups: a rank that waits in any group of the job beats to
// all ranks, so none of its groups takes it for dead. Errors and departures belong to one group
// ("context").
//
// Thread-safety: all methods from any thread.

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "reshard/base/mutex.h"
#include "reshard/comm/transport.h"

namespace reshard {

/// How many messages went between a member that has left a group and this rank, as that member saw
/// it.
struct Departure {
  std::uint64_t sent = 0;      ///< by it to this rank
  std::uint64_t received = 0;  ///< by it from this rank
};

/// One rank's view of a job. Ranks are those of the transport.
class CommJob {
 public:
  using Time = std::chrono::steady_clock::time_point;

  CommJob(std::unique_ptr<Transport> transport, Deadlines deadlines);

  Transport& transport() { return *transport_; }

  std::chrono::milliseconds deadline(Wait wait) const;

  /// Reads the control frames that have come.
  void Poll();

  /// Sends a sign of life to all ranks, at most once per interval.
  void Beat();

  Time LastHeard(int rank) const { return Time(Time::duration(heard_[Index(rank)].load())); }

  void Heard(int rank);

  /// Why a group is dead; nothing while it lives.
  std::optional<Error> Death(int context);

  /// Declares a group dead and tells its members; the first error stays. Returns what stays.
  Error Kill(int context, std::span<const int> members, Error error);

  /// What a member that has left the group said; nothing while it stays.
  std::optional<Departure> LeftAfter(int context, int rank);

  /// Tells the members that this rank has left; counts[i] is about members[i], as it will read it.
  void Leave(int context, std::span<const int> members, std::span<const Departure> counts);

  /// Takes a context that no group of this rank has ever had; false when it is taken.
  bool Reserve(int context);

 private:
  static std::size_t Index(int rank) { return static_cast<std::size_t>(rank); }

  void Handle(int from, ByteSpan frame);

  std::unique_ptr<Transport> transport_;
  Deadlines deadlines_;
  std::chrono::milliseconds beat_interval_;
  std::vector<std::atomic<Time::rep>> heard_;
  std::atomic<Time::rep> next_beat_;
  Mutex mutex_;
  std::set<int> reserved_ RESHARD_GUARDED_BY(mutex_);
  std::set<int> closed_ RESHARD_GUARDED_BY(mutex_);
  std::map<int, Error> deaths_ RESHARD_GUARDED_BY(mutex_);
  std::map<std::pair<int, int>, Departure> left_ RESHARD_GUARDED_BY(mutex_);
};

/// The group of `members` (transport ranks, in group order), of which this rank is one.
std::unique_ptr<ProcessGroup> NewGroupOfJob(std::shared_ptr<CommJob> job, int context,
                                            std::vector<int> members);

}  // namespace reshard
