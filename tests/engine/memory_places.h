#pragma once

// Places in memory, for tests of what looks over several directories.

#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "reshard/engine/places.h"
#include "reshard/storage/fault_storage.h"
#include "reshard/storage/memory_storage.h"
#include "tests/support/status_matchers.h"

namespace reshard::testing {

/// Directories in memory by path. With faults, all operations on all of them count together.
class MemoryPlaces {
 public:
  /// The directory, made when missing.
  Storage& At(const std::string& path) {
    auto& storage = stores_[path];
    if (storage == nullptr) {
      storage = NewMemoryStorage(path);
    }
    return *storage;
  }

  /// From now on operations through places() follow the plan; null: no faults.
  void SetFaults(FaultPlan plan) {
    count_ = 0;
    crashed_ = false;
    plan_ = std::move(plan);
  }

  std::uint64_t operations() const { return count_; }

  /// In the order of FindPlaces.
  Places places() {
    Places out;
    for (const auto& [path, storage] : stores_) {
      out.paths.push_back(path);
    }
    std::sort(out.paths.begin(), out.paths.end(),
              [](const std::string& a, const std::string& b) { return ComparePaths(a, b) < 0; });
    out.open = [this](const std::string& path) -> Result<std::unique_ptr<Storage>> {
      const auto plan = [this](std::uint64_t, StorageOp op, std::string_view name) {
        if (crashed_) {
          return FaultAction::kCrash;
        }
        const FaultAction action = plan_ ? plan_(count_, op, name) : FaultAction::kNone;
        ++count_;
        crashed_ = action == FaultAction::kCrash;
        return action;
      };
      return NewFaultStorage(At(path), plan);
    };
    return out;
  }

 private:
  std::map<std::string, std::unique_ptr<Storage>> stores_;
  FaultPlan plan_;
  std::uint64_t count_ = 0;
  bool crashed_ = false;
};

/// Replaces the content of an object.
inline void Rewrite(Storage& storage, const std::string& name, const Bytes& bytes) {
  ASSERT_OK(storage.Remove(name));
  auto object = storage.Create(name, {});
  ASSERT_OK(object);
  ASSERT_OK((*object)->WriteAt(0, bytes));
  ASSERT_OK((*object)->Finish(bytes.size()));
}

/// Names in a directory.
inline std::vector<std::string> NamesIn(Storage& storage) {
  std::vector<std::string> names;
  const auto objects = storage.List();
  for (const ObjectInfo& object : *objects) {
    names.push_back(object.name);
  }
  return names;
}

}  // namespace reshard::testing
