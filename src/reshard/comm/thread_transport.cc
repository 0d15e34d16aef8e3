#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <unordered_map>
#include <utility>

#include "reshard/base/check.h"
#include "reshard/base/mutex.h"
#include "reshard/comm/transport.h"

namespace reshard {
namespace {

using State = TransferStatus::State;

// Shorter messages are copied at once, so that their sender need not wait for the receiver.
constexpr std::size_t kEagerBytes = 64 << 10;

// One message on its way. Its sender may give up at any moment: the bytes are touched under the
// lock.
struct Letter {
  Mutex mutex;
  ByteSpan data RESHARD_GUARDED_BY(mutex);
  Bytes owned RESHARD_GUARDED_BY(mutex);
  bool taken RESHARD_GUARDED_BY(mutex) = false;
  bool cancelled RESHARD_GUARDED_BY(mutex) = false;
};

struct Posted {
  MutableByteSpan out;
  TransferStatus status;
};

// What was sent from one rank on one channel, and the receives that wait for it.
struct Lane {
  std::deque<std::shared_ptr<Letter>> letters;
  std::deque<std::shared_ptr<Posted>> posted;
};

struct Mailbox {
  Mutex mutex;
  CondVar bell;
  std::uint64_t news RESHARD_GUARDED_BY(mutex) = 1;
  std::map<std::pair<int, int>, Lane> lanes RESHARD_GUARDED_BY(mutex);
  std::deque<std::pair<int, Bytes>> control RESHARD_GUARDED_BY(mutex);

  void Ring() RESHARD_REQUIRES(mutex) {
    ++news;
    bell.notify_all();
  }
};

struct Hub {
  explicit Hub(int size) : boxes(static_cast<std::size_t>(size)) {}

  Mailbox& at(int rank) { return boxes[static_cast<std::size_t>(rank)]; }

  std::vector<Mailbox> boxes;
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<Hub> hub, int rank, std::size_t max_message, bool shares_memory)
      : hub_(std::move(hub)),
        rank_(rank),
        max_message_(max_message),
        shares_memory_(shares_memory) {}

  int rank() const override { return rank_; }

  int size() const override { return static_cast<int>(hub_->boxes.size()); }

  int global_rank(int rank) const override { return rank; }

  bool shares_memory() const override { return shares_memory_; }

  std::size_t max_message() const override { return max_message_; }

  int max_channel() const override { return 1 << 30; }

  TransferId Send(int to, int channel, ByteSpan data) override;
  TransferId Receive(int from, int channel, MutableByteSpan out) override;
  TransferStatus Test(TransferId id) override;
  void Drop(std::span<const TransferId> ids, std::shared_ptr<const void> keep) override;
  void SendControl(int to, ByteSpan frame) override;
  bool PollControl(int& from, Bytes& frame) override;
  void Idle(std::uint64_t& token) override;

 private:
  struct Transfer {
    std::shared_ptr<Letter> letter;  // of a send
    std::shared_ptr<Posted> posted;  // of a receive
    int from = 0;
    int channel = 0;
  };

  TransferId Add(Transfer transfer);
  void Deliver(int from, int channel);
  void Copy(int from, Letter& letter, Posted& posted);

  std::shared_ptr<Hub> hub_;
  int rank_;
  std::size_t max_message_;
  bool shares_memory_;
  Mutex mutex_;
  TransferId next_ RESHARD_GUARDED_BY(mutex_) = 1;
  std::unordered_map<TransferId, Transfer> transfers_ RESHARD_GUARDED_BY(mutex_);
};

TransferId ThreadTransport::Add(Transfer transfer) {
  MutexLock lock(mutex_);
  transfers_.emplace(next_, std::move(transfer));
  return next_++;
}

TransferId ThreadTransport::Send(int to, int channel, ByteSpan data) {
  auto letter = std::make_shared<Letter>();
  {
    MutexLock lock(letter->mutex);
    letter->data = data;
    if (data.size() <= kEagerBytes) {
      letter->owned.assign(data.begin(), data.end());
      letter->data = letter->owned;
    }
  }
  Mailbox& box = hub_->at(to);
  {
    MutexLock lock(box.mutex);
    box.lanes[{rank_, channel}].letters.push_back(letter);
    box.Ring();
  }
  return Add({std::move(letter), nullptr, 0, 0});
}

TransferId ThreadTransport::Receive(int from, int channel, MutableByteSpan out) {
  auto posted = std::make_shared<Posted>();
  posted->out = out;
  Mailbox& box = hub_->at(rank_);
  {
    MutexLock lock(box.mutex);
    box.lanes[{from, channel}].posted.push_back(posted);
  }
  return Add({nullptr, std::move(posted), from, channel});
}

void ThreadTransport::Copy(int from, Letter& letter, Posted& posted) {
  {
    MutexLock lock(letter.mutex);
    if (letter.cancelled) {
      return;  // the group is dead: the receive stays pending until it is dropped, too
    }
    if (letter.data.size() > posted.out.size()) {
      posted.status.state = State::kFailed;
      posted.status.failure = "a message of " + std::to_string(letter.data.size()) +
                              " bytes came where " + std::to_string(posted.out.size()) +
                              " were expected";
    } else {
      std::copy(letter.data.begin(), letter.data.end(), posted.out.begin());
      posted.status.state = State::kDone;
      posted.status.size = letter.data.size();
    }
    letter.taken = true;
  }
  Mailbox& sender = hub_->at(from);
  MutexLock lock(sender.mutex);
  sender.Ring();
}

// Hands the letters of a lane to the receives that wait there, in order.
void ThreadTransport::Deliver(int from, int channel) {
  Mailbox& box = hub_->at(rank_);
  for (;;) {
    std::shared_ptr<Letter> letter;
    std::shared_ptr<Posted> posted;
    {
      MutexLock lock(box.mutex);
      Lane& lane = box.lanes[{from, channel}];
      if (lane.letters.empty() || lane.posted.empty()) {
        return;
      }
      letter = std::move(lane.letters.front());
      lane.letters.pop_front();
      posted = std::move(lane.posted.front());
      lane.posted.pop_front();
    }
    Copy(from, *letter, *posted);
  }
}

TransferStatus ThreadTransport::Test(TransferId id) {
  Transfer transfer;
  {
    MutexLock lock(mutex_);
    const auto it = transfers_.find(id);
    RESHARD_CHECK(it != transfers_.end());
    transfer = it->second;
  }
  TransferStatus out;
  if (transfer.letter != nullptr) {
    MutexLock lock(transfer.letter->mutex);
    const bool done =
        transfer.letter->taken || !transfer.letter->owned.empty() || transfer.letter->data.empty();
    out.state = done ? State::kDone : State::kPending;
  } else {
    Deliver(transfer.from, transfer.channel);
    out = transfer.posted->status;
  }
  if (out.state != State::kPending) {
    MutexLock lock(mutex_);
    transfers_.erase(id);
  }
  return out;
}

void ThreadTransport::Drop(std::span<const TransferId> ids, std::shared_ptr<const void> keep) {
  // Everything can be cancelled here, so nothing needs to be kept.
  keep.reset();
  for (const TransferId id : ids) {
    Transfer transfer;
    {
      MutexLock lock(mutex_);
      const auto it = transfers_.find(id);
      RESHARD_CHECK(it != transfers_.end());
      transfer = std::move(it->second);
      transfers_.erase(it);
    }
    if (transfer.letter != nullptr) {
      MutexLock lock(transfer.letter->mutex);
      transfer.letter->cancelled = !transfer.letter->taken && transfer.letter->owned.empty();
    } else {
      Mailbox& box = hub_->at(rank_);
      MutexLock lock(box.mutex);
      auto& posted = box.lanes[{transfer.from, transfer.channel}].posted;
      posted.erase(std::remove(posted.begin(), posted.end(), transfer.posted), posted.end());
    }
  }
}

void ThreadTransport::SendControl(int to, ByteSpan frame) {
  Mailbox& box = hub_->at(to);
  MutexLock lock(box.mutex);
  box.control.emplace_back(rank_, Bytes(frame.begin(), frame.end()));
  box.Ring();
}

bool ThreadTransport::PollControl(int& from, Bytes& frame) {
  Mailbox& box = hub_->at(rank_);
  MutexLock lock(box.mutex);
  if (box.control.empty()) {
    return false;
  }
  from = box.control.front().first;
  frame = std::move(box.control.front().second);
  box.control.pop_front();
  return true;
}

void ThreadTransport::Idle(std::uint64_t& token) {
  Mailbox& box = hub_->at(rank_);
  MutexLock lock(box.mutex);
  if (token == box.news) {
    box.bell.wait_for(box.mutex, std::chrono::milliseconds(2));
  }
  token = box.news;
}

}  // namespace

std::vector<std::unique_ptr<Transport>> ThreadTransports(int size, std::size_t max_message,
                                                         bool shares_memory) {
  RESHARD_CHECK(size >= 1);
  auto hub = std::make_shared<Hub>(size);
  std::vector<std::unique_ptr<Transport>> out;
  out.reserve(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    out.push_back(std::make_unique<ThreadTransport>(hub, rank, max_message, shares_memory));
  }
  return out;
}

std::vector<std::unique_ptr<ProcessGroup>> ThreadProcessGroups(int size, Deadlines deadlines) {
  std::vector<std::unique_ptr<ProcessGroup>> out;
  for (auto& transport : ThreadTransports(size)) {
    out.push_back(NewTransportGroup(std::move(transport), deadlines));
  }
  return out;
}

}  // namespace reshard
