#include "reshard/mpi/mpi_process_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <list>
#include <thread>
#include <unordered_map>
#include <utility>

#include "reshard/base/check.h"
#include "reshard/base/mutex.h"

namespace reshard {
namespace {

using State = TransferStatus::State;

constexpr int kControlTag = 0;
constexpr int kMaxChannel = 1 << 30;
// Frames that wait for one peer before further ones are left out: it is stopped or gone.
constexpr int kMaxWaitingFrames = 64;

std::string MpiErrorText(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<std::size_t>(length));
}

bool IsFinalized() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  return finalized != 0;
}

// Tests one request; MPI_REQUEST_NULL is done.
bool IsDone(MPI_Request& request) {
  int done = 0;
  return MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
}

class MpiTransport final : public Transport {
 public:
  MpiTransport(MPI_Comm comm, std::size_t max_message);
  ~MpiTransport() override;

  int rank() const override { return rank_; }

  int size() const override { return static_cast<int>(global_ranks_.size()); }

  int global_rank(int rank) const override { return global_ranks_[static_cast<std::size_t>(rank)]; }

  bool shares_memory() const override { return false; }

  std::size_t max_message() const override { return max_message_; }

  int max_channel() const override { return max_channel_; }

  TransferId Send(int to, int channel, ByteSpan data) override;
  TransferId Receive(int from, int channel, MutableByteSpan out) override;
  TransferStatus Test(TransferId id) override;
  void Drop(std::span<const TransferId> ids, std::shared_ptr<const void> keep) override;
  void SendControl(int to, ByteSpan frame) override;
  bool PollControl(int& from, Bytes& frame) override;
  void Idle(std::uint64_t& token) override;

 private:
  struct Transfer {
    MPI_Request request = MPI_REQUEST_NULL;
    bool receive = false;
    int failure = MPI_SUCCESS;
  };

  struct Frame {
    int peer = 0;
    Bytes bytes;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  struct Dropped {
    MPI_Request request = MPI_REQUEST_NULL;
    std::shared_ptr<const void> keep;
  };

  /// What is still in MPI's hands. On the heap, so that it can be left behind.
  struct InFlight {
    std::list<Frame> outgoing;
    std::list<Frame> incoming;
    std::list<Dropped> dropped;
  };

  bool MayCall() const {
    return (threads_allowed_ || std::this_thread::get_id() == owner_) && !IsFinalized();
  }

  void FindGlobalRanks();
  void Reap() RESHARD_REQUIRES(mutex_);
  void StartIncoming() RESHARD_REQUIRES(mutex_);

  MPI_Comm comm_;
  std::size_t max_message_;
  int max_channel_ = 32767;
  int rank_ = 0;
  std::vector<int> global_ranks_;
  bool threads_allowed_ = false;
  std::thread::id owner_ = std::this_thread::get_id();
  Mutex mutex_;
  TransferId next_ RESHARD_GUARDED_BY(mutex_) = 1;
  std::unordered_map<TransferId, Transfer> transfers_ RESHARD_GUARDED_BY(mutex_);
  std::unique_ptr<InFlight> flight_ RESHARD_GUARDED_BY(mutex_) = std::make_unique<InFlight>();
  std::vector<int> waiting_ RESHARD_GUARDED_BY(mutex_);  // outgoing frames per peer
};

MpiTransport::MpiTransport(MPI_Comm comm, std::size_t max_message)
    : comm_(comm), max_message_(max_message) {
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  FindGlobalRanks();
  waiting_.assign(global_ranks_.size(), 0);
  void* upper = nullptr;
  int found = 0;
  MPI_Comm_get_attr(comm_, MPI_TAG_UB, &upper, &found);
  if (found != 0) {
    max_channel_ = std::min(*static_cast<int*>(upper), kMaxChannel);
  }
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  threads_allowed_ = level >= MPI_THREAD_SERIALIZED;
}

void MpiTransport::FindGlobalRanks() {
  int size = 0;
  MPI_Comm_size(comm_, &size);
  std::vector<int> ranks(static_cast<std::size_t>(size));
  for (int i = 0; i < size; ++i) {
    ranks[static_cast<std::size_t>(i)] = i;
  }
  global_ranks_ = ranks;
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Comm_group(comm_, &group);
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_translate_ranks(group, size, ranks.data(), world, global_ranks_.data());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    // Spawned processes are not in our MPI_COMM_WORLD: the rank in `comm` is the only one they
    // have.
    global_ranks_[i] = global_ranks_[i] == MPI_UNDEFINED ? ranks[i] : global_ranks_[i];
  }
  MPI_Group_free(&group);
  MPI_Group_free(&world);
}

MpiTransport::~MpiTransport() {
  MutexLock lock(mutex_);
  for (int i = 0; i < 100 && MayCall(); ++i) {
    Reap();
    if (flight_->outgoing.empty() && flight_->dropped.empty()) {
      break;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(i < 50 ? 1 : 200));
  }
  if (!flight_->outgoing.empty() || !flight_->incoming.empty() || !flight_->dropped.empty()) {
    // MPI may still read or write this memory, so it must outlive us: lost on purpose.
    static_cast<void>(flight_.release());
  }
}

TransferId MpiTransport::Send(int to, int channel, ByteSpan data) {
  MutexLock lock(mutex_);
  Transfer transfer;
  transfer.failure = MPI_Isend(data.data(), static_cast<int>(data.size()), MPI_BYTE, to, channel,
                               comm_, &transfer.request);
  transfers_.emplace(next_, transfer);
  return next_++;
}

TransferId MpiTransport::Receive(int from, int channel, MutableByteSpan out) {
  MutexLock lock(mutex_);
  Transfer transfer;
  transfer.receive = true;
  transfer.failure = MPI_Irecv(out.data(), static_cast<int>(out.size()), MPI_BYTE, from, channel,
                               comm_, &transfer.request);
  transfers_.emplace(next_, transfer);
  return next_++;
}

TransferStatus MpiTransport::Test(TransferId id) {
  MutexLock lock(mutex_);
  const auto it = transfers_.find(id);
  RESHARD_CHECK(it != transfers_.end());
  Transfer& transfer = it->second;
  TransferStatus out;
  MPI_Status status = {};
  int done = 0;
  int error = transfer.failure;
  if (error == MPI_SUCCESS) {
    error = MPI_Test(&transfer.request, &done, &status);
  }
  if (error != MPI_SUCCESS) {
    out.state = State::kFailed;
    out.failure = MpiErrorText(error);
  } else if (done != 0) {
    out.state = State::kDone;
    int count = 0;
    if (transfer.receive) {
      MPI_Get_count(&status, MPI_BYTE, &count);
    }
    out.size = static_cast<std::size_t>(count);
  } else {
    return out;
  }
  transfers_.erase(it);
  return out;
}

void MpiTransport::Drop(std::span<const TransferId> ids, std::shared_ptr<const void> keep) {
  MutexLock lock(mutex_);
  for (const TransferId id : ids) {
    const auto it = transfers_.find(id);
    RESHARD_CHECK(it != transfers_.end());
    MPI_Request request = it->second.request;
    // A receive that no message has met yet can be cancelled. Sends cannot in most MPI libraries.
    if (it->second.receive && request != MPI_REQUEST_NULL) {
      MPI_Cancel(&request);
    }
    flight_->dropped.push_back({request, keep});
    transfers_.erase(it);
  }
  Reap();
}

void MpiTransport::Reap() {
  for (auto it = flight_->outgoing.begin(); it != flight_->outgoing.end();) {
    if (IsDone(it->request)) {
      --waiting_[static_cast<std::size_t>(it->peer)];
      it = flight_->outgoing.erase(it);
    } else {
      ++it;
    }
  }
  flight_->dropped.remove_if([](Dropped& dropped) { return IsDone(dropped.request); });
}

void MpiTransport::SendControl(int to, ByteSpan frame) {
  if (!MayCall()) {
    return;
  }
  MutexLock lock(mutex_);
  int& waiting = waiting_[static_cast<std::size_t>(to)];
  if (waiting >= kMaxWaitingFrames) {
    return;
  }
  Frame& out = flight_->outgoing.emplace_back();
  out.peer = to;
  out.bytes.assign(frame.begin(), frame.end());
  if (MPI_Isend(out.bytes.data(), static_cast<int>(out.bytes.size()), MPI_BYTE, to, kControlTag,
                comm_, &out.request) != MPI_SUCCESS) {
    flight_->outgoing.pop_back();
    return;
  }
  ++waiting;
}

void MpiTransport::StartIncoming() {
  int found = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status = {};
  if (MPI_Improbe(MPI_ANY_SOURCE, kControlTag, comm_, &found, &message, &status) != MPI_SUCCESS ||
      found == 0) {
    return;
  }
  int count = 0;
  MPI_Get_count(&status, MPI_BYTE, &count);
  Frame& frame = flight_->incoming.emplace_back();
  frame.peer = status.MPI_SOURCE;
  frame.bytes.resize(static_cast<std::size_t>(std::max(count, 0)));
  MPI_Imrecv(frame.bytes.data(), count, MPI_BYTE, &message, &frame.request);
}

bool MpiTransport::PollControl(int& from, Bytes& frame) {
  if (!MayCall()) {
    return false;
  }
  MutexLock lock(mutex_);
  Reap();
  StartIncoming();
  for (auto it = flight_->incoming.begin(); it != flight_->incoming.end(); ++it) {
    if (IsDone(it->request)) {
      from = it->peer;
      frame = std::move(it->bytes);
      flight_->incoming.erase(it);
      return true;
    }
  }
  return false;
}

void MpiTransport::Idle(std::uint64_t& token) {
  // Short waits are the rule, so look again at once; then let other ranks on this machine run.
  constexpr std::uint64_t kSpins = 50;
  constexpr std::uint64_t kYields = 500;
  ++token;
  if (token > kYields) {
    std::this_thread::sleep_for(std::chrono::microseconds(token > 2 * kYields ? 500 : 50));
  } else if (token > kSpins) {
    std::this_thread::yield();
  }
}

// MPI_Comm_dup with a deadline.
Result<MPI_Comm> Duplicate(MPI_Comm comm, std::chrono::milliseconds deadline) {
  // On the heap: after a timeout MPI may still write it.
  auto out = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
  MPI_Request request = MPI_REQUEST_NULL;
  if (const int error = MPI_Comm_idup(comm, out.get(), &request); error != MPI_SUCCESS) {
    return MakeError(ErrorCode::kUnavailable, "MPI",
                     fmt::format("cannot duplicate the communicator: {}", MpiErrorText(error)));
  }
  const auto end = std::chrono::steady_clock::now() + deadline;
  for (int i = 0; !IsDone(request); ++i) {
    if (std::chrono::steady_clock::now() > end) {
      static_cast<void>(out.release());
      return MakeError(
          ErrorCode::kPeerFailed, "PEER_TIMEOUT",
          "some rank of the communicator takes no part in making the process group; do "
          "all its ranks call NewMpiProcessGroup?");
    }
    if (i > 100) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  return *out;
}

}  // namespace

Result<std::unique_ptr<ProcessGroup>> NewMpiProcessGroup(MPI_Comm comm, Deadlines deadlines,
                                                         std::size_t max_message) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized == 0 || IsFinalized()) {
    return MakeError(ErrorCode::kInvalidArgument, "NO_MPI",
                     "MPI is not running: make an MpiEnvironment or call MPI_Init_thread first");
  }
  int inter = 0;
  if (comm == MPI_COMM_NULL || MPI_Comm_test_inter(comm, &inter) != MPI_SUCCESS || inter != 0) {
    return MakeError(ErrorCode::kInvalidArgument, "BAD_COMM",
                     "a process group needs an intra-communicator that this rank belongs to");
  }
  if (max_message < 64 || max_message > std::numeric_limits<int>::max()) {
    return MakeError(ErrorCode::kInvalidArgument, "BAD_RANGE",
                     fmt::format("messages of at most {} bytes are not possible", max_message));
  }
  RESHARD_TRY_ASSIGN(const MPI_Comm own, Duplicate(comm, deadlines.control));
  return NewTransportGroup(std::make_unique<MpiTransport>(own, max_message), deadlines);
}

}  // namespace reshard
