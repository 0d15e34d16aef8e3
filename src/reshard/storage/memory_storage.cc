#include "reshard/storage/memory_storage.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <shared_mutex>

#include "reshard/base/checked.h"
#include "reshard/base/mutex.h"

namespace reshard {
namespace {

std::int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// What a name stands for; a lock belongs to it, not to the name.
struct Node {
  std::shared_mutex mutex;
  Bytes data;
  std::uint64_t written = 0;
  std::int64_t mtime_ns = NowNs();
  bool locked = false;
};

using NodePtr = std::shared_ptr<Node>;

void Unlock(Node& node) {
  std::unique_lock lock(node.mutex);
  node.locked = false;
}

// The names, shared with the objects because a caller may destroy the Storage first.
struct Names {
  std::string description;
  Mutex mutex;
  std::map<std::string, NodePtr, std::less<>> nodes RESHARD_GUARDED_BY(mutex);
};

class MemoryLock final : public StorageLock {
 public:
  explicit MemoryLock(NodePtr node) : node_(std::move(node)) {}

  ~MemoryLock() override { Unlock(*node_); }

 private:
  NodePtr node_;
};

class MemoryReadable final : public ReadableObject {
 public:
  MemoryReadable(std::string where, std::string name, NodePtr node)
      : where_(std::move(where)), name_(std::move(name)), node_(std::move(node)) {
    std::shared_lock lock(node_->mutex);
    size_ = node_->data.size();
    mtime_ns_ = node_->mtime_ns;
  }

  const std::string& name() const override { return name_; }

  std::uint64_t size() const override { return size_; }

  std::int64_t mtime_ns() const override { return mtime_ns_; }

  Status ReadAt(std::uint64_t offset, MutableByteSpan out) override {
    std::shared_lock lock(node_->mutex);
    const auto end = CheckedAdd(offset, out.size());
    if (!end || *end > std::min<std::uint64_t>(size_, node_->data.size())) {
      auto error = MakeError(ErrorCode::kCorruption, "FILE_TRUNCATED",
                             fmt::format("{}/{}: {} bytes at offset {} are wanted, but it has {}",
                                         where_, name_, out.size(), offset, node_->data.size()));
      error.value().data_loss = true;
      return error;
    }
    std::copy_n(node_->data.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
    return OkStatus();
  }

  bool IsCached(ByteRange range) override {
    return range.size > 0 && range.offset <= size_ && range.size <= size_ - range.offset;
  }

 private:
  std::string where_;
  std::string name_;
  NodePtr node_;
  std::uint64_t size_ = 0;
  std::int64_t mtime_ns_ = 0;
};

class MemoryWritable final : public WritableObject {
 public:
  MemoryWritable(std::shared_ptr<Names> names, std::string name, NodePtr node, bool locked)
      : names_(std::move(names)), name_(std::move(name)), node_(std::move(node)), locked_(locked) {}

  ~MemoryWritable() override {
    if (!keep_) {
      MutexLock lock(names_->mutex);
      const auto it = names_->nodes.find(name_);
      if (it != names_->nodes.end() && it->second == node_) {
        names_->nodes.erase(it);
      }
    }
    ReleaseLock();
  }

  const std::string& name() const override { return name_; }

  Status WriteAt(std::uint64_t offset, ByteSpan data) override {
    const auto end = CheckedAdd(offset, data.size());
    std::unique_lock lock(node_->mutex);
    if (!end || *end > node_->data.max_size()) {
      return MakeError(ErrorCode::kInvalidArgument, "BAD_RANGE",
                       fmt::format("{}/{}: {} bytes at offset {} do not fit in memory",
                                   names_->description, name_, data.size(), offset));
    }
    if (node_->data.size() < *end) {
      node_->data.resize(*end);
    }
    std::copy(data.begin(), data.end(), node_->data.begin() + static_cast<std::ptrdiff_t>(offset));
    node_->written += data.size();
    node_->mtime_ns = NowNs();
    return OkStatus();
  }

  Status Finish(std::uint64_t size) override {
    std::unique_lock lock(node_->mutex);
    if (node_->written < size || node_->data.size() < size) {
      return MakeError(ErrorCode::kIo, "WRITE",
                       fmt::format("{}/{}: only {} of {} bytes were written", names_->description,
                                   name_, node_->written, size));
    }
    node_->data.resize(size);
    keep_ = true;
    return OkStatus();
  }

  void Abandon() override {
    keep_ = true;
    ReleaseLock();
  }

 private:
  void ReleaseLock() {
    if (locked_) {
      Unlock(*node_);
      locked_ = false;
    }
  }

  std::shared_ptr<Names> names_;
  std::string name_;
  NodePtr node_;
  bool locked_;
  bool keep_ = false;
};

/// A name without folders; a leading dot is for foreign formats.
Status CheckBareName(std::string_view name) {
  return name.find('/') == std::string_view::npos ? CheckForeignName(name) : CheckName(name);
}

class MemoryStorage final : public Storage {
 public:
  explicit MemoryStorage(std::string description) : names_(std::make_shared<Names>()) {
    names_->description = std::move(description);
  }

  const std::string& description() const override { return names_->description; }

  // The address: two ranks that share this store are threads of one process.
  std::uint64_t Identity() const override { return reinterpret_cast<std::uintptr_t>(names_.get()); }

  Result<std::vector<ObjectInfo>> List() override;
  Result<std::unique_ptr<ReadableObject>> Open(std::string_view name) override;
  Result<std::unique_ptr<WritableObject>> Create(std::string_view name,
                                                 const CreateOptions& options) override;
  Result<Published> Publish(std::string_view from, std::string_view to, PublishMode mode) override;

  Status Rename(std::string_view from, std::string_view to) override {
    RESHARD_TRY(Publish(from, to, PublishMode::kNew));
    return OkStatus();
  }

  Status Remove(std::string_view name) override {
    RESHARD_TRY(CheckBareName(name));
    MutexLock lock(names_->mutex);
    const auto it = names_->nodes.find(name);
    if (it != names_->nodes.end()) {
      names_->nodes.erase(it);
    }
    return OkStatus();
  }

  Status SyncNames() override { return OkStatus(); }

  Result<std::unique_ptr<StorageLock>> TryLock(std::string_view name) override;

 private:
  Result<NodePtr> Find(std::string_view name) {
    MutexLock lock(names_->mutex);
    const auto it = names_->nodes.find(name);
    if (it == names_->nodes.end()) {
      return MakeError(ErrorCode::kNotFound, "FILE_MISSING",
                       fmt::format("{}/{}: no such file", description(), name));
    }
    return it->second;
  }

  std::shared_ptr<Names> names_;
};

Result<std::vector<ObjectInfo>> MemoryStorage::List() {
  std::vector<ObjectInfo> out;
  MutexLock lock(names_->mutex);
  for (const auto& [name, node] : names_->nodes) {
    std::shared_lock node_lock(node->mutex);
    out.push_back({name, node->data.size(), node->mtime_ns, true});
  }
  return out;
}

Result<std::unique_ptr<ReadableObject>> MemoryStorage::Open(std::string_view name) {
  RESHARD_TRY(CheckBareName(name));
  RESHARD_TRY_ASSIGN(NodePtr node, Find(name));
  return std::make_unique<MemoryReadable>(description(), std::string(name), std::move(node));
}

Result<std::unique_ptr<WritableObject>> MemoryStorage::Create(std::string_view name,
                                                              const CreateOptions& options) {
  RESHARD_TRY(CheckBareName(name));
  auto node = std::make_shared<Node>();
  node->locked = options.lock;
  MutexLock lock(names_->mutex);
  if (!names_->nodes.emplace(std::string(name), node).second) {
    return MakeError(ErrorCode::kAlreadyExists, "FILE_EXISTS",
                     fmt::format("{}/{}: the name is taken", description(), name));
  }
  return std::make_unique<MemoryWritable>(names_, std::string(name), std::move(node), options.lock);
}

Result<Published> MemoryStorage::Publish(std::string_view from, std::string_view to,
                                         PublishMode mode) {
  RESHARD_TRY(CheckBareName(from));
  RESHARD_TRY(CheckBareName(to));
  MutexLock lock(names_->mutex);
  const auto source = names_->nodes.find(from);
  if (source == names_->nodes.end()) {
    return MakeError(ErrorCode::kNotFound, "FILE_MISSING",
                     fmt::format("{}/{}: no such file to move to {}", description(), from, to));
  }
  const auto target = names_->nodes.find(to);
  if (target == names_->nodes.end()) {
    NodePtr node = source->second;
    names_->nodes.erase(source);
    names_->nodes.emplace(std::string(to), std::move(node));
    return Published{false};
  }
  if (mode == PublishMode::kNew) {
    return MakeError(
        ErrorCode::kAlreadyExists, "LOST_RACE",
        fmt::format("{}/{}: the name is taken; another writer was first", description(), to));
  }
  std::swap(source->second, target->second);
  return Published{true};
}

Result<std::unique_ptr<StorageLock>> MemoryStorage::TryLock(std::string_view name) {
  RESHARD_TRY(CheckBareName(name));
  RESHARD_TRY_ASSIGN(NodePtr node, Find(name));
  {
    std::unique_lock lock(node->mutex);
    if (node->locked) {
      return std::unique_ptr<StorageLock>();
    }
    node->locked = true;
  }
  return std::make_unique<MemoryLock>(std::move(node));
}

}  // namespace

std::unique_ptr<Storage> NewMemoryStorage(std::string description) {
  return std::make_unique<MemoryStorage>(std::move(description));
}

}  // namespace reshard
