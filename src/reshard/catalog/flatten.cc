#include "reshard/catalog/flatten.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace reshard {
namespace {

/// List positions beyond this come only from a damaged file.
constexpr std::uint64_t kMaxListLength = 1 << 24;

bool HoldsTensor(const Value& value) {
  if (value.get_if<Tensor>() != nullptr || value.get_if<PerRank>() != nullptr) {
    return true;
  }
  if (const auto* list = value.get_if<Value::List>()) {
    return std::any_of(list->begin(), list->end(), HoldsTensor);
  }
  if (const auto* map = value.get_if<Value::Map>()) {
    return std::any_of(map->begin(), map->end(),
                       [](const auto& entry) { return HoldsTensor(entry.second); });
  }
  return false;
}

PathPart PartOf(const MapKey& key) {
  if (const auto* text = std::get_if<std::string>(&key)) {
    return *text;
  }
  return std::get<std::int64_t>(key);
}

template <typename ValueType>
class Flattener {
 public:
  Status Walk(ValueType& value) {
    if (path_.size() > kMaxNesting) {
      return MakeError(
          ErrorCode::kInvalidArgument, "NESTING",
          fmt::format("{} is nested deeper than {} levels", ToString(path_), kMaxNesting));
    }
    if (auto* map = value.template get_if<Value::Map>(); map != nullptr && !map->empty()) {
      for (auto& [key, child] : *map) {
        RESHARD_TRY(Enter(PartOf(key), child));
      }
      return OkStatus();
    }
    if (auto* list = value.template get_if<Value::List>(); list != nullptr && HoldsTensor(value)) {
      for (std::size_t i = 0; i < list->size(); ++i) {
        RESHARD_TRY(Enter(ListIndex{i}, (*list)[i]));
      }
      return OkStatus();
    }
    return AddLeaf(value);
  }

  std::vector<FlatEntryOf<ValueType>> entries;

 private:
  Status Enter(PathPart part, ValueType& child) {
    path_.push_back(std::move(part));
    RESHARD_TRY(Walk(child));
    path_.pop_back();
    return OkStatus();
  }

  /// What would be saved but could not be loaded, or not be saved at all.
  Status CheckObject(const Value& value, std::size_t depth) const {
    if (depth > kMaxNesting) {
      return MakeError(ErrorCode::kInvalidArgument, "NESTING",
                       fmt::format("the object {} is nested deeper than {} levels", ToString(path_),
                                   kMaxNesting));
    }
    if (value.is_too_large()) {
      return MakeError(ErrorCode::kInvalidArgument, "BAD_VALUE",
                       fmt::format("{} holds an integer beyond 2^63 - 1; keep it as text or bytes",
                                   ToString(path_)));
    }
    if (const auto* list = value.get_if<Value::List>()) {
      for (const Value& item : *list) {
        RESHARD_TRY(CheckObject(item, depth + 1));
      }
    } else if (const auto* map = value.get_if<Value::Map>()) {
      std::set<MapKey> seen;
      for (const auto& [key, item] : *map) {
        if (!seen.insert(key).second) {
          return MakeError(ErrorCode::kInvalidArgument, "DUPLICATE_FLAT_KEY",
                           fmt::format("a map in the object {} has the key {} twice",
                                       ToString(path_), ToString(Path{PartOf(key)})));
        }
        RESHARD_TRY(CheckObject(item, depth + 1));
      }
    }
    return OkStatus();
  }

  Status CheckLeaf(const Value& value) const {
    if (value.get_if<Tensor>() != nullptr) {
      return OkStatus();
    }
    const auto* own = value.get_if<PerRank>();
    if (own == nullptr) {
      return CheckObject(value, 0);
    }
    if (HoldsTensor(own->value())) {
      return MakeError(ErrorCode::kInvalidArgument, "PER_RANK_TENSOR",
                       fmt::format("the per-rank value {} holds a tensor or another per-rank "
                                   "value; give its bytes, or a key of its own per rank",
                                   ToString(path_)));
    }
    return CheckObject(own->value(), 0);
  }

  Status AddLeaf(ValueType& value) {
    RESHARD_TRY(CheckLeaf(value));
    std::string key = FlatKey(path_);
    if (key.empty() || key.find('\0') != std::string::npos) {
      return MakeError(ErrorCode::kInvalidArgument, "BAD_KEY",
                       fmt::format("{} gives an empty flat key or one with a NUL character; "
                                   "rename it",
                                   ToString(path_)));
    }
    entries.push_back({std::move(key), path_, &value});
    return OkStatus();
  }

  Path path_;
};

template <typename ValueType>
Result<std::vector<FlatEntryOf<ValueType>>> FlattenAny(ValueType& state) {
  if (state.is_null()) {
    return std::vector<FlatEntryOf<ValueType>>();
  }
  const auto* map = state.template get_if<Value::Map>();
  if (map == nullptr) {
    return MakeError(ErrorCode::kInvalidArgument, "NOT_A_MAP",
                     fmt::format("a state dict must be a map, not a {}", state.kind()));
  }
  if (map->empty()) {
    return std::vector<FlatEntryOf<ValueType>>();
  }
  Flattener<ValueType> flattener;
  RESHARD_TRY(flattener.Walk(state));
  auto entries = std::move(flattener.entries);
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.key < b.key; });
  for (std::size_t i = 1; i < entries.size(); ++i) {
    if (entries[i].key == entries[i - 1].key) {
      return MakeError(
          ErrorCode::kInvalidArgument, "DUPLICATE_FLAT_KEY",
          fmt::format("{} and {} both give the flat key '{}'; rename one of them",
                      ToString(entries[i - 1].path), ToString(entries[i].path), entries[i].key));
    }
  }
  return entries;
}

tl::unexpected<Error> Conflict(const Path& path) {
  return MakeError(
      ErrorCode::kCorruption, "PATH_CONFLICT",
      fmt::format("the path {} runs through a leaf or mixes list and map", ToString(path)));
}

/// The child of `at` under `part`, made when missing; null when `at` is of another kind.
Value* Descend(Value& at, const PathPart& part) {
  if (const auto* index = std::get_if<ListIndex>(&part)) {
    if (at.is_null()) {
      at = Value::List();
    }
    auto* list = at.get_if<Value::List>();
    if (list == nullptr || index->position >= kMaxListLength) {
      return nullptr;
    }
    if (list->size() <= index->position) {
      list->resize(index->position + 1);
    }
    return &(*list)[index->position];
  }
  if (!at.is_null() && at.get_if<Value::Map>() == nullptr) {
    return nullptr;
  }
  if (const auto* text = std::get_if<std::string>(&part)) {
    return &at[MapKey(*text)];
  }
  return &at[MapKey(std::get<std::int64_t>(part))];
}

}  // namespace

std::string FlatKey(const Path& path) {
  std::string key;
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (i > 0) {
      key += '.';
    }
    if (const auto* text = std::get_if<std::string>(&path[i])) {
      key += *text;
    } else if (const auto* number = std::get_if<std::int64_t>(&path[i])) {
      key += std::to_string(*number);
    } else {
      key += std::to_string(std::get<ListIndex>(path[i]).position);
    }
  }
  return key;
}

std::string ToString(const Path& path) {
  std::string out;
  for (const PathPart& part : path) {
    if (const auto* text = std::get_if<std::string>(&part)) {
      out += fmt::format("['{}']", *text);
    } else if (const auto* number = std::get_if<std::int64_t>(&part)) {
      out += fmt::format("[{}]", *number);
    } else {
      out += fmt::format("[#{}]", std::get<ListIndex>(part).position);
    }
  }
  return out;
}

Result<std::vector<FlatEntry>> Flatten(const StateDict& state) { return FlattenAny(state); }

Result<std::vector<MutableFlatEntry>> Flatten(StateDict& state) { return FlattenAny(state); }

Status InsertAtPath(StateDict& state, const Path& path, Value leaf) {
  Value* at = &state;
  for (const PathPart& part : path) {
    at = Descend(*at, part);
    if (at == nullptr) {
      return Conflict(path);
    }
  }
  if (!at->is_null()) {
    return Conflict(path);
  }
  *at = std::move(leaf);
  return OkStatus();
}

}  // namespace reshard
