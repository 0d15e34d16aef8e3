#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "reshard/comm/job_internal.h"

namespace reshard {
namespace {

using std::chrono::steady_clock;
using State = TransferStatus::State;

// A blob travels as its length and its first bytes in one message, and the rest in as many as
// needed.
constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);
constexpr std::size_t kHeadBytes = 1024;
constexpr std::uint64_t kMaxBlob = std::uint64_t{1} << 40;
constexpr int kContextTries = 64;

// A transfer that a collective waits for.
struct Pending {
  TransferId id = 0;
  int peer = 0;  // group rank
  bool receive = false;
  std::size_t* size = nullptr;  // where to put the received size, if anyone asks
  std::size_t expected = 0;     // otherwise it must be this
};

// Memory that transfers use; outlives the collective when it fails with transfers in flight.
struct Buffers {
  Bytes outgoing;
  std::vector<Bytes> heads;
  std::vector<std::size_t> head_sizes;
  std::vector<Bytes> blobs;
};

// The next candidate for the context of a child group; equal on all ranks, different from most
// others.
int ContextCandidate(int parent, int child, int attempt, int max_channel) {
  std::uint64_t hash = static_cast<std::uint32_t>(parent);
  for (const int value : {child, attempt}) {
    hash = (hash ^ static_cast<std::uint32_t>(value)) * 0x9e3779b97f4a7c15U;
    hash ^= hash >> 32;
  }
  return static_cast<int>(hash % static_cast<std::uint64_t>(max_channel)) + 1;
}

class TransportGroup final : public ProcessGroup {
 public:
  TransportGroup(std::shared_ptr<CommJob> job, int context, std::vector<int> members)
      : job_(std::move(job)),
        context_(context),
        members_(std::move(members)),
        counts_(members_.size()) {
    const auto me = std::find(members_.begin(), members_.end(), job_->transport().rank());
    rank_ = static_cast<int>(me - members_.begin());
  }

  ~TransportGroup() override { job_->Leave(context_, members_, counts_); }

  using ProcessGroup::global_rank;

  int rank() const override { return rank_; }

  int size() const override { return static_cast<int>(members_.size()); }

  bool shares_memory() const override { return job_->transport().shares_memory(); }

  int global_rank(int rank) const override {
    return IsRank(rank) ? job_->transport().global_rank(Member(rank)) : -1;
  }

  Result<std::vector<Bytes>> Gather(ByteSpan mine, int root, Wait wait) override;
  Result<Bytes> Broadcast(ByteSpan mine, int root, Wait wait) override;
  Result<std::vector<Bytes>> AllGather(ByteSpan mine, Wait wait) override;
  Status AllToAllV(std::span<const ByteSpan> send, std::span<const MutableByteSpan> receive,
                   Wait wait) override;
  Status Barrier(Wait wait) override;

  void Beat() override {
    job_->Beat();
    job_->Poll();
  }

  Result<std::unique_ptr<ProcessGroup>> Duplicate() override;
  Result<std::unique_ptr<ProcessGroup>> Subgroup(std::span<const int> ranks) override;

 private:
  bool IsRank(int rank) const { return rank >= 0 && rank < size(); }

  int Member(int rank) const { return members_[static_cast<std::size_t>(rank)]; }

  std::size_t max_message() const { return job_->transport().max_message(); }

  std::size_t head_size() const { return std::min(kHeadBytes, max_message()); }

  /// The error of a dead group; reads the news first.
  Status CheckAlive();
  Status CheckRoot(int root) const;
  tl::unexpected<Error> Die(ErrorCode code, std::string_view reason, std::string message);

  void Send(int to, ByteSpan data, std::vector<Pending>& pending);
  void Receive(int from, MutableByteSpan out, std::vector<Pending>& pending);
  void SendBlob(int to, const Bytes& framed, std::vector<Pending>& pending);

  /// Receives one blob of each of `from`, in that order, into buffers->blobs.
  Status ReceiveBlobs(std::span<const int> from, const std::shared_ptr<Buffers>& buffers,
                      Wait wait);

  /// Waits until all transfers are done. On an error the group is dead and the rest is dropped.
  Status WaitAll(std::vector<Pending>& pending, Wait wait, std::shared_ptr<const void> keep);

  /// Tests every transfer once; true when one of them is done.
  Result<bool> TestAll(std::vector<Pending>& pending);

  /// Looks for a peer that is silent or has left.
  Status CheckPeers(const std::vector<Pending>& pending, Wait wait, steady_clock::time_point start);

  Result<int> AgreeOnContext();

  std::shared_ptr<CommJob> job_;
  int context_;
  std::vector<int> members_;
  int rank_ = 0;
  int children_ = 0;
  std::vector<Departure> counts_;  // messages to and from each member
};

Bytes Framed(ByteSpan data) {
  Bytes out(kLengthBytes + data.size());
  StoreLittle(out.data(), static_cast<std::uint64_t>(data.size()));
  std::copy(data.begin(), data.end(), out.begin() + kLengthBytes);
  return out;
}

Status TransportGroup::CheckAlive() {
  job_->Poll();
  if (const auto death = job_->Death(context_)) {
    return tl::unexpected<Error>(*death);
  }
  return OkStatus();
}

Status TransportGroup::CheckRoot(int root) const {
  if (!IsRank(root)) {
    return MakeError(ErrorCode::kInvalidArgument, "BAD_RANKS",
                     fmt::format("rank {} is outside the group of {} ranks", root, size()));
  }
  return OkStatus();
}

tl::unexpected<Error> TransportGroup::Die(ErrorCode code, std::string_view reason,
                                          std::string message) {
  Error error{code, std::string(reason), std::move(message), false, false};
  return tl::unexpected<Error>(job_->Kill(context_, members_, std::move(error)));
}

void TransportGroup::Send(int to, ByteSpan data, std::vector<Pending>& pending) {
  while (!data.empty()) {
    const ByteSpan piece = data.first(std::min(data.size(), max_message()));
    pending.push_back({job_->transport().Send(Member(to), context_, piece), to, false});
    ++counts_[static_cast<std::size_t>(to)].sent;
    data = data.subspan(piece.size());
  }
}

void TransportGroup::Receive(int from, MutableByteSpan out, std::vector<Pending>& pending) {
  while (!out.empty()) {
    const MutableByteSpan piece = out.first(std::min(out.size(), max_message()));
    pending.push_back({job_->transport().Receive(Member(from), context_, piece), from, true,
                       nullptr, piece.size()});
    out = out.subspan(piece.size());
  }
}

void TransportGroup::SendBlob(int to, const Bytes& framed, std::vector<Pending>& pending) {
  const ByteSpan all(framed);
  const std::size_t head = std::min(all.size(), head_size());
  Send(to, all.first(head), pending);
  Send(to, all.subspan(head), pending);
}

Status TransportGroup::ReceiveBlobs(std::span<const int> from,
                                    const std::shared_ptr<Buffers>& buffers, Wait wait) {
  std::vector<Pending> pending;
  buffers->heads.assign(from.size(), Bytes(head_size()));
  buffers->head_sizes.assign(from.size(), 0);
  buffers->blobs.assign(from.size(), Bytes());
  for (std::size_t i = 0; i < from.size(); ++i) {
    Receive(from[i], buffers->heads[i], pending);
    pending.back().size = &buffers->head_sizes[i];
  }
  RESHARD_TRY(WaitAll(pending, wait, buffers));
  for (std::size_t i = 0; i < from.size(); ++i) {
    const ByteSpan head = ByteSpan(buffers->heads[i]).first(buffers->head_sizes[i]);
    const std::uint64_t length =
        head.size() < kLengthBytes ? ~std::uint64_t{0} : LoadLittle<std::uint64_t>(head.data());
    if (length > kMaxBlob ||
        head.size() != std::min<std::uint64_t>(head_size(), kLengthBytes + length)) {
      return Die(ErrorCode::kInternal, "BAD_MESSAGE",
                 fmt::format("rank {} got a message of rank {} that belongs to another collective; "
                             "do all ranks call the same ones in the same order?",
                             global_rank(), global_rank(from[i])));
    }
    Bytes& blob = buffers->blobs[i];
    blob.resize(length);
    const ByteSpan first = head.subspan(kLengthBytes);
    std::copy(first.begin(), first.end(), blob.begin());
    Receive(from[i], MutableByteSpan(blob).subspan(first.size()), pending);
  }
  return WaitAll(pending, wait, buffers);
}

Result<bool> TransportGroup::TestAll(std::vector<Pending>& pending) {
  const std::size_t before = pending.size();
  std::size_t kept = 0;
  for (std::size_t i = 0; i < pending.size(); ++i) {
    const Pending entry = pending[i];
    const TransferStatus status = job_->transport().Test(entry.id);
    if (status.state == State::kPending) {
      pending[kept++] = entry;
      continue;
    }
    const bool short_message = entry.receive && entry.size == nullptr &&
                               status.size != entry.expected && status.state == State::kDone;
    if (status.state == State::kFailed || short_message) {
      // The ids from i on are dropped by the caller, this one is gone.
      pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(kept),
                    pending.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      return Die(
          ErrorCode::kInternal, "BAD_MESSAGE",
          fmt::format("rank {} {} rank {}: {}", global_rank(),
                      entry.receive ? "receiving from" : "sending to", global_rank(entry.peer),
                      short_message ? fmt::format("{} bytes came where {} were expected",
                                                  status.size, entry.expected)
                                    : status.failure));
    }
    if (entry.receive) {
      ++counts_[static_cast<std::size_t>(entry.peer)].received;
      job_->Heard(Member(entry.peer));
      if (entry.size != nullptr) {
        *entry.size = status.size;
      }
    }
  }
  pending.resize(kept);
  return kept != before;
}

Status TransportGroup::CheckPeers(const std::vector<Pending>& pending, Wait wait,
                                  steady_clock::time_point start) {
  const auto now = steady_clock::now();
  int silent = -1;
  auto oldest = now;
  for (const Pending& entry : pending) {
    // A member may leave as soon as it is done: what it sent can still be on its way, and what it
    // has received may not be reported here yet. Only what it never sent or took will not come.
    const Departure& mine = counts_[static_cast<std::size_t>(entry.peer)];
    const auto theirs = job_->LeftAfter(context_, Member(entry.peer));
    if (theirs && (entry.receive ? theirs->sent <= mine.received : theirs->received < mine.sent)) {
      return Die(ErrorCode::kPeerFailed, "PEER_LEFT",
                 fmt::format("rank {} left the group while rank {} was waiting for it",
                             global_rank(entry.peer), global_rank()));
    }
    const auto heard = std::max(start, job_->LastHeard(Member(entry.peer)));
    if (heard < oldest) {
      oldest = heard;
      silent = entry.peer;
    }
  }
  if (silent >= 0 && now - oldest > job_->deadline(wait)) {
    return Die(
        ErrorCode::kPeerFailed, "PEER_TIMEOUT",
        fmt::format("rank {} gave no sign of life for {:.1f} s (noticed by rank {}); it is dead, "
                    "stopped or stuck: see its machine, then start the job again",
                    global_rank(silent), std::chrono::duration<double>(now - oldest).count(),
                    global_rank()));
  }
  return OkStatus();
}

Status TransportGroup::WaitAll(std::vector<Pending>& pending, Wait wait,
                               std::shared_ptr<const void> keep) {
  auto start = steady_clock::now();
  auto last = start;
  std::uint64_t token = 0;
  Status status;
  while (!pending.empty()) {
    Result<bool> progress = TestAll(pending);
    if (!progress.ok()) {
      status = tl::unexpected<Error>(std::move(progress).error());
      break;
    }
    if (pending.empty()) {
      break;
    }
    token = *progress ? 0 : token;
    status = CheckAlive();
    // A rank that slept itself (stopped, suspended) must not take the others for silent.
    const auto now = steady_clock::now();
    start = now - last > job_->deadline(wait) / 2 ? now : start;
    last = now;
    status = status.ok() ? CheckPeers(pending, wait, start) : status;
    if (!status.ok()) {
      break;
    }
    job_->Beat();
    job_->transport().Idle(token);
  }
  std::vector<TransferId> rest;
  rest.reserve(pending.size());
  for (const Pending& entry : pending) {
    rest.push_back(entry.id);
  }
  if (!rest.empty()) {
    job_->transport().Drop(rest, std::move(keep));
    pending.clear();
  }
  return status;
}

Result<std::vector<Bytes>> TransportGroup::Gather(ByteSpan mine, int root, Wait wait) {
  RESHARD_TRY(CheckRoot(root));
  RESHARD_TRY(CheckAlive());
  auto buffers = std::make_shared<Buffers>();
  if (rank_ != root) {
    std::vector<Pending> pending;
    buffers->outgoing = Framed(mine);
    SendBlob(root, buffers->outgoing, pending);
    RESHARD_TRY(WaitAll(pending, wait, buffers));
    return std::vector<Bytes>();
  }
  std::vector<int> others;
  for (int i = 0; i < size(); ++i) {
    if (i != root) {
      others.push_back(i);
    }
  }
  RESHARD_TRY(ReceiveBlobs(others, buffers, wait));
  std::vector<Bytes> out = std::move(buffers->blobs);
  out.insert(out.begin() + root, Bytes(mine.begin(), mine.end()));
  return out;
}

// A binomial tree: rank v (counted from the root) hears from v without its lowest bit, and passes
// on to v + 2^k below that bit. Each rank waits for one that waits and beats itself, so blame falls
// on the silent one alone.
Result<Bytes> TransportGroup::Broadcast(ByteSpan mine, int root, Wait wait) {
  RESHARD_TRY(CheckRoot(root));
  RESHARD_TRY(CheckAlive());
  auto buffers = std::make_shared<Buffers>();
  const int v = (rank_ - root + size()) % size();
  const auto group_rank = [&](int from_root) { return (from_root + root) % size(); };
  if (v == 0) {
    buffers->outgoing = Framed(mine);
  } else {
    const int parent[] = {group_rank(v & (v - 1))};
    RESHARD_TRY(ReceiveBlobs(parent, buffers, wait));
    buffers->outgoing = Framed(buffers->blobs[0]);
  }
  std::vector<Pending> pending;
  const int low_bit = v == 0 ? size() : v & -v;
  for (int step = 1; step < low_bit && v + step < size(); step *= 2) {
    SendBlob(group_rank(v + step), buffers->outgoing, pending);
  }
  RESHARD_TRY(WaitAll(pending, wait, buffers));
  return v == 0 ? Bytes(mine.begin(), mine.end()) : std::move(buffers->blobs[0]);
}

Result<std::vector<Bytes>> TransportGroup::AllGather(ByteSpan mine, Wait wait) {
  RESHARD_TRY_ASSIGN(std::vector<Bytes> all, Gather(mine, 0, wait));
  Bytes packed;
  for (const Bytes& each : all) {
    AppendLittle(packed, static_cast<std::uint64_t>(each.size()));
    packed.insert(packed.end(), each.begin(), each.end());
  }
  RESHARD_TRY_ASSIGN(packed, Broadcast(packed, 0, wait));
  if (rank_ == 0) {
    return all;
  }
  ByteSpan rest(packed);
  for (int i = 0; i < size(); ++i) {
    const std::uint64_t length =
        rest.size() < kLengthBytes ? ~std::uint64_t{0} : LoadLittle<std::uint64_t>(rest.data());
    if (length > rest.size() - std::min(rest.size(), kLengthBytes)) {
      return Die(ErrorCode::kInternal, "BAD_MESSAGE",
                 fmt::format("rank {} got a cut allgather", global_rank()));
    }
    const ByteSpan each = rest.subspan(kLengthBytes, length);
    all.emplace_back(each.begin(), each.end());
    rest = rest.subspan(kLengthBytes + length);
  }
  return all;
}

Status TransportGroup::AllToAllV(std::span<const ByteSpan> send,
                                 std::span<const MutableByteSpan> receive, Wait wait) {
  RESHARD_TRY(CheckAlive());
  const auto me = static_cast<std::size_t>(rank_);
  if (send.size() != members_.size() || receive.size() != members_.size() ||
      send[me].size() != receive[me].size()) {
    return Die(
        ErrorCode::kInvalidArgument, "SIZE_MISMATCH",
        fmt::format("rank {}: AllToAllV needs {} buffers each way, and the one for itself of "
                    "one size",
                    global_rank(), members_.size()));
  }
  std::vector<Pending> pending;
  for (int step = 1; step < size(); ++step) {
    const int from = (rank_ - step + size()) % size();
    Receive(from, receive[static_cast<std::size_t>(from)], pending);
  }
  // Each rank starts with another peer, so that not all press on rank 0 first.
  for (int step = 1; step < size(); ++step) {
    const int to = (rank_ + step) % size();
    Send(to, send[static_cast<std::size_t>(to)], pending);
  }
  std::copy(send[me].begin(), send[me].end(), receive[me].begin());
  return WaitAll(pending, wait, nullptr);
}

Status TransportGroup::Barrier(Wait wait) {
  RESHARD_TRY(Gather({}, 0, wait));
  RESHARD_TRY(Broadcast({}, 0, wait));
  return OkStatus();
}

Result<int> TransportGroup::AgreeOnContext() {
  const int child = children_++;
  for (int attempt = 0; attempt < kContextTries; ++attempt) {
    const int candidate =
        ContextCandidate(context_, child, attempt, job_->transport().max_channel());
    const std::byte vote[] = {job_->Reserve(candidate) ? std::byte{1} : std::byte{0}};
    RESHARD_TRY_ASSIGN(const std::vector<Bytes> votes, AllGather(vote, Wait::kControl));
    if (std::all_of(votes.begin(), votes.end(),
                    [](const Bytes& each) { return each == Bytes{std::byte{1}}; })) {
      return candidate;
    }
  }
  return Die(ErrorCode::kUnavailable, "NO_CONTEXT",
             "no free message context for another group: too many groups were made");
}

Result<std::unique_ptr<ProcessGroup>> TransportGroup::Subgroup(std::span<const int> ranks) {
  std::vector<int> members;
  for (const int rank : ranks) {
    RESHARD_TRY(CheckRoot(rank));
    if (std::find(members.begin(), members.end(), Member(rank)) != members.end()) {
      return MakeError(ErrorCode::kInvalidArgument, "BAD_RANKS",
                       fmt::format("rank {} stands in a subgroup twice", rank));
    }
    members.push_back(Member(rank));
  }
  RESHARD_TRY_ASSIGN(const int context, AgreeOnContext());
  if (std::find(ranks.begin(), ranks.end(), rank_) == ranks.end()) {
    return std::unique_ptr<ProcessGroup>();
  }
  return NewGroupOfJob(job_, context, std::move(members));
}

Result<std::unique_ptr<ProcessGroup>> TransportGroup::Duplicate() {
  RESHARD_TRY_ASSIGN(const int context, AgreeOnContext());
  return NewGroupOfJob(job_, context, members_);
}

}  // namespace

std::unique_ptr<ProcessGroup> NewGroupOfJob(std::shared_ptr<CommJob> job, int context,
                                            std::vector<int> members) {
  return std::make_unique<TransportGroup>(std::move(job), context, std::move(members));
}

std::unique_ptr<ProcessGroup> NewTransportGroup(std::unique_ptr<Transport> transport,
                                                Deadlines deadlines) {
  constexpr int kFirstContext = 1;
  std::vector<int> members(static_cast<std::size_t>(transport->size()));
  for (std::size_t i = 0; i < members.size(); ++i) {
    members[i] = static_cast<int>(i);
  }
  auto job = std::make_shared<CommJob>(std::move(transport), deadlines);
  job->Reserve(kFirstContext);
  return NewGroupOfJob(std::move(job), kFirstContext, std::move(members));
}

}  // namespace reshard
