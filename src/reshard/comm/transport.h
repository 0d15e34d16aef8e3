#pragma once

// What carries the messages of process groups: non-blocking point-to-point transfers between the
// ranks of one job, and nothing else. The collectives, deadlines and the naming of failed ranks are
// written once on top (NewTransportGroup), so that threads, MPI and whatever comes next share them.
//
// Order: messages from one rank to another on one channel are received in the order in which they
// were sent. Different channels never mix. Control frames are a path of their own without such an
// order.
//
// Thread-safety: all methods from any thread; one channel is used by one thread at a time.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "reshard/base/bytes.h"
#include "reshard/comm/process_group.h"

namespace reshard {

/// A transfer that was started.
using TransferId = std::uint64_t;

/// How far a transfer is.
struct TransferStatus {
  enum class State { kPending, kDone, kFailed };
  State state = State::kPending;
  std::size_t size = 0;  ///< Bytes received, when done.
  std::string failure;   ///< The transport's words, when failed (a message longer than the buffer).
};

/// One rank's end of the connections of a job. Ranks here are 0..size-1; no method blocks.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// The rank in messages and file names.
  virtual int global_rank(int rank) const = 0;

  /// Whether all ranks are threads of this process.
  virtual bool shares_memory() const = 0;

  /// Longest message; longer transfers are cut above. At least 64.
  virtual std::size_t max_message() const = 0;

  /// Channels are 1..max_channel.
  virtual int max_channel() const = 0;

  /// Starts sending. `data` must stay as it is until Test says done or Drop took over.
  virtual TransferId Send(int to, int channel, ByteSpan data) = 0;

  /// Starts receiving the next message, which may be shorter than `out`.
  virtual TransferId Receive(int from, int channel, MutableByteSpan out) = 0;

  /// Moves on and tells how far it is. An id that was answered with done or failed is gone.
  virtual TransferStatus Test(TransferId id) = 0;

  /// Gives up transfers: cancels what can be cancelled. What cannot stays pending, and `keep`,
  /// which owns its memory, is kept alive as long.
  virtual void Drop(std::span<const TransferId> ids, std::shared_ptr<const void> keep) = 0;

  /// Sends a short frame, copied. A peer that takes none for long may miss some beats.
  virtual void SendControl(int to, ByteSpan frame) = 0;

  /// Takes one arrived control frame; false when there is none.
  virtual bool PollControl(int& from, Bytes& frame) = 0;

  /// Lets time pass, at most some milliseconds and less when a message comes. `token` belongs to
  /// one waiting loop, which sets it to 0 at first and after each progress.
  virtual void Idle(std::uint64_t& token) = 0;
};

/// The group of all ranks of a transport.
std::unique_ptr<ProcessGroup> NewTransportGroup(std::unique_ptr<Transport> transport,
                                                Deadlines deadlines = {});

/// Most bytes of one message by default: MPI counts are int, and pieces show progress.
inline constexpr std::size_t kMaxMessage = std::size_t{256} << 20;

/// The connected ends of `size` ranks that are threads of this process. `shares_memory` false: that
/// do not say so, as if each were a process.
std::vector<std::unique_ptr<Transport>> ThreadTransports(int size,
                                                         std::size_t max_message = kMaxMessage,
                                                         bool shares_memory = true);

}  // namespace reshard
