#include <algorithm>

#include "reshard/comm/job_internal.h"

namespace reshard {
namespace {

enum class Frame : std::uint8_t { kBeat = 1, kDeath = 2, kLeave = 3 };

// A rank sends this many beats within the shorter deadline.
constexpr int kBeatsPerDeadline = 8;

constexpr std::size_t kFrameHead = 5;  // kind and context

Bytes NewFrame(Frame kind, int context) {
  Bytes out(kFrameHead);
  StoreLittle(out.data(), kind);
  StoreLittle(out.data() + 1, static_cast<std::int32_t>(context));
  return out;
}

}  // namespace

CommJob::CommJob(std::unique_ptr<Transport> transport, Deadlines deadlines)
    : transport_(std::move(transport)),
      deadlines_(deadlines),
      beat_interval_(std::min(deadlines.control, deadlines.data) / kBeatsPerDeadline),
      heard_(static_cast<std::size_t>(transport_->size())),
      next_beat_((std::chrono::steady_clock::now() + beat_interval_).time_since_epoch().count()) {
  for (int rank = 0; rank < transport_->size(); ++rank) {
    Heard(rank);
  }
}

std::chrono::milliseconds CommJob::deadline(Wait wait) const {
  return wait == Wait::kControl ? deadlines_.control : deadlines_.data;
}

void CommJob::Heard(int rank) {
  heard_[Index(rank)] = std::chrono::steady_clock::now().time_since_epoch().count();
}

void CommJob::Poll() {
  int from = 0;
  Bytes frame;
  while (transport_->PollControl(from, frame)) {
    Heard(from);
    Handle(from, frame);
  }
}

void CommJob::Handle(int from, ByteSpan frame) {
  if (frame.size() < kFrameHead) {
    return;
  }
  const auto kind = LoadLittle<Frame>(frame.data());
  const auto context = LoadLittle<std::int32_t>(frame.data() + 1);
  const ByteSpan rest = frame.subspan(kFrameHead);
  MutexLock lock(mutex_);
  // A frame may come before this rank has made the group, so unknown contexts are remembered.
  if (closed_.contains(context)) {
    return;
  }
  if (kind == Frame::kDeath) {
    const Result<Status> status = DecodeStatus(rest);
    if (status.ok() && !status->ok()) {
      deaths_.emplace(context, status->error());
    }
  } else if (kind == Frame::kLeave && rest.size() == sizeof(Departure)) {
    left_[{context, from}] = LoadLittle<Departure>(rest.data());
  }
}

void CommJob::Beat() {
  const Time now = std::chrono::steady_clock::now();
  Time::rep next = next_beat_;
  if (now.time_since_epoch().count() < next ||
      !next_beat_.compare_exchange_strong(next,
                                          (now + beat_interval_).time_since_epoch().count())) {
    return;
  }
  const Bytes frame = NewFrame(Frame::kBeat, 0);
  for (int rank = 0; rank < transport_->size(); ++rank) {
    if (rank != transport_->rank()) {
      transport_->SendControl(rank, frame);
    }
  }
}

std::optional<Error> CommJob::Death(int context) {
  MutexLock lock(mutex_);
  const auto it = deaths_.find(context);
  return it == deaths_.end() ? std::nullopt : std::optional<Error>(it->second);
}

Error CommJob::Kill(int context, std::span<const int> members, Error error) {
  {
    MutexLock lock(mutex_);
    const auto [it, first] = deaths_.emplace(context, error);
    if (!first) {
      return it->second;
    }
  }
  Bytes frame = NewFrame(Frame::kDeath, context);
  const Bytes encoded = EncodeStatus(tl::unexpected<Error>(error));
  frame.insert(frame.end(), encoded.begin(), encoded.end());
  for (const int rank : members) {
    if (rank != transport_->rank()) {
      transport_->SendControl(rank, frame);
    }
  }
  return error;
}

std::optional<Departure> CommJob::LeftAfter(int context, int rank) {
  MutexLock lock(mutex_);
  const auto it = left_.find({context, rank});
  return it == left_.end() ? std::nullopt : std::optional<Departure>(it->second);
}

void CommJob::Leave(int context, std::span<const int> members, std::span<const Departure> counts) {
  bool dead = false;
  {
    MutexLock lock(mutex_);
    dead = deaths_.erase(context) > 0;
    closed_.insert(context);
    left_.erase(left_.lower_bound({context, 0}), left_.lower_bound({context + 1, 0}));
  }
  for (std::size_t i = 0; i < members.size() && !dead; ++i) {
    if (members[i] != transport_->rank()) {
      Bytes frame = NewFrame(Frame::kLeave, context);
      AppendLittle(frame, counts[i]);
      transport_->SendControl(members[i], frame);
    }
  }
}

bool CommJob::Reserve(int context) {
  MutexLock lock(mutex_);
  return reserved_.insert(context).second;
}

}  // namespace reshard
