#include "reshard/storage/fault_storage.h"

#include <fmt/format.h>

#include <type_traits>
#include <utility>

namespace reshard {

struct FaultStorage::State {
  FaultPlan plan;
  std::string where;
  std::atomic<std::uint64_t> count = 0;
  std::atomic<bool> crashed = false;

  FaultAction Next(StorageOp op, std::string_view name) {
    if (crashed) {
      return FaultAction::kCrash;
    }
    const FaultAction action = plan ? plan(count++, op, name) : (++count, FaultAction::kNone);
    if (action == FaultAction::kCrash) {
      crashed = true;
    }
    return action;
  }

  tl::unexpected<Error> Failure(FaultAction action, std::string_view name) const {
    if (action == FaultAction::kCrash) {
      return MakeError(ErrorCode::kCancelled, "CRASHED",
                       fmt::format("{}/{}: the simulated process died", where, name));
    }
    return MakeError(ErrorCode::kIo, "INJECTED", fmt::format("{}/{}: injected fault", where, name));
  }
};

namespace {

using StatePtr = std::shared_ptr<FaultStorage::State>;

// Runs `work` as the action says.
template <typename Work>
auto Run(FaultStorage::State& state, StorageOp op, std::string_view name, Work work)
    -> decltype(work()) {
  const FaultAction action = state.Next(op, name);
  switch (action) {
    case FaultAction::kNone:
    case FaultAction::kFlip:
      return work();
    case FaultAction::kFailAfter: {
      auto result = work();
      if (!result.ok()) {
        return result;
      }
      if constexpr (std::is_same_v<decltype(result), Result<std::unique_ptr<WritableObject>>>) {
        (*result)->Abandon();  // the file was made, the caller does not know
      }
      return state.Failure(action, name);
    }
    default:
      return state.Failure(action, name);
  }
}

class FaultReadable final : public ReadableObject {
 public:
  FaultReadable(std::unique_ptr<ReadableObject> base, StatePtr state)
      : base_(std::move(base)), state_(std::move(state)) {}

  const std::string& name() const override { return base_->name(); }

  std::uint64_t size() const override { return base_->size(); }

  std::int64_t mtime_ns() const override { return base_->mtime_ns(); }

  Status ReadAt(std::uint64_t offset, MutableByteSpan out) override {
    return Read(offset, out, false);
  }

  Status ReadAtDirect(std::uint64_t offset, MutableByteSpan out) override {
    return Read(offset, out, true);
  }

  void WillNeed(ByteRange range) override { base_->WillNeed(range); }

  bool IsCached(ByteRange range) override { return base_->IsCached(range); }

 private:
  Status Read(std::uint64_t offset, MutableByteSpan out, bool direct) {
    const FaultAction action = state_->Next(StorageOp::kRead, name());
    if (action == FaultAction::kFail || action == FaultAction::kCrash) {
      return state_->Failure(action, name());
    }
    RESHARD_TRY(direct ? base_->ReadAtDirect(offset, out) : base_->ReadAt(offset, out));
    if (action == FaultAction::kFailAfter) {
      return state_->Failure(action, name());
    }
    if (action == FaultAction::kFlip && !out.empty()) {
      out[out.size() / 2] ^= std::byte{0x10};
    }
    return OkStatus();
  }

  std::unique_ptr<ReadableObject> base_;
  StatePtr state_;
};

class FaultWritable final : public WritableObject {
 public:
  FaultWritable(std::unique_ptr<WritableObject> base, StatePtr state)
      : base_(std::move(base)), state_(std::move(state)) {}

  ~FaultWritable() override {
    if (state_->crashed) {
      base_->Abandon();
    }
  }

  const std::string& name() const override { return base_->name(); }

  Status WriteAt(std::uint64_t offset, ByteSpan data) override {
    return Run(*state_, StorageOp::kWrite, name(), [&] { return base_->WriteAt(offset, data); });
  }

  Status Finish(std::uint64_t size) override {
    return Run(*state_, StorageOp::kFinish, name(), [&] { return base_->Finish(size); });
  }

  void Abandon() override { base_->Abandon(); }

 private:
  std::unique_ptr<WritableObject> base_;
  StatePtr state_;
};

}  // namespace

FaultStorage::FaultStorage(Storage& base, FaultPlan plan)
    : base_(base), state_(std::make_shared<State>()) {
  state_->plan = std::move(plan);
  state_->where = base.description();
}

FaultStorage::~FaultStorage() = default;

std::uint64_t FaultStorage::operations() const { return state_->count; }

bool FaultStorage::crashed() const { return state_->crashed; }

const std::string& FaultStorage::description() const { return state_->where; }

std::uint64_t FaultStorage::Identity() const { return base_.Identity(); }

Result<std::vector<ObjectInfo>> FaultStorage::List() {
  return Run(*state_, StorageOp::kList, "", [&] { return base_.List(); });
}

Result<std::unique_ptr<ReadableObject>> FaultStorage::Open(std::string_view name) {
  RESHARD_TRY_ASSIGN(auto object,
                     Run(*state_, StorageOp::kOpen, name, [&] { return base_.Open(name); }));
  return std::make_unique<FaultReadable>(std::move(object), state_);
}

Result<std::unique_ptr<WritableObject>> FaultStorage::Create(std::string_view name,
                                                             const CreateOptions& options) {
  RESHARD_TRY_ASSIGN(auto object, Run(*state_, StorageOp::kCreate, name,
                                      [&] { return base_.Create(name, options); }));
  return std::make_unique<FaultWritable>(std::move(object), state_);
}

Result<Published> FaultStorage::Publish(std::string_view from, std::string_view to,
                                        PublishMode mode) {
  return Run(*state_, StorageOp::kPublish, from, [&] { return base_.Publish(from, to, mode); });
}

Status FaultStorage::Rename(std::string_view from, std::string_view to) {
  return Run(*state_, StorageOp::kRename, from, [&] { return base_.Rename(from, to); });
}

Status FaultStorage::Remove(std::string_view name) {
  return Run(*state_, StorageOp::kRemove, name, [&] { return base_.Remove(name); });
}

Status FaultStorage::SyncNames() {
  return Run(*state_, StorageOp::kSyncNames, "", [&] { return base_.SyncNames(); });
}

Result<std::unique_ptr<StorageLock>> FaultStorage::TryLock(std::string_view name) {
  return Run(*state_, StorageOp::kTryLock, name, [&] { return base_.TryLock(name); });
}

std::unique_ptr<FaultStorage> NewFaultStorage(Storage& base, FaultPlan plan) {
  return std::make_unique<FaultStorage>(base, std::move(plan));
}

}  // namespace reshard
