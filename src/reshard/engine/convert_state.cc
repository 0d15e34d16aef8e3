#include "reshard/engine/convert_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <variant>

#include "reshard/catalog/cbor.h"
#include "reshard/engine/key_pattern.h"
#include "reshard/tensor/cast.h"

namespace reshard {
namespace {

/// A state dict while it is put together: unlike Value, it finds a child at once.
class Node {
 public:
  /// Errors: kCorruption PATH_CONFLICT; kInvalidArgument NESTING.
  static Status Insert(Node& root, const Path& path, Value leaf) {
    if (path.size() > kMaxNesting) {
      return MakeError(
          ErrorCode::kInvalidArgument, "NESTING",
          fmt::format("'{}' is nested deeper than {} levels", FlatKey(path), kMaxNesting));
    }
    Node* at = &root;
    for (const PathPart& part : path) {
      if (at->is_leaf_) {
        return Conflict(path);
      }
      at = &at->Child(part);
    }
    if (at->is_leaf_ || !at->children_.empty()) {
      return Conflict(path);
    }
    at->is_leaf_ = true;
    at->leaf_ = std::move(leaf);
    return OkStatus();
  }

  Value ToValue() && {
    if (is_leaf_) {
      return std::move(leaf_);
    }
    if (IsList()) {
      Value::List list(children_.size());
      for (auto& [part, node] : children_) {
        list[std::get<ListIndex>(part).position] = std::move(*node).ToValue();
      }
      return list;
    }
    Value::Map map;
    for (auto& [part, node] : children_) {
      map.emplace_back(KeyOf(part), std::move(*node).ToValue());
    }
    return map;
  }

 private:
  static tl::unexpected<Error> Conflict(const Path& path) {
    return MakeError(ErrorCode::kCorruption, "PATH_CONFLICT",
                     fmt::format("the path {} meets another leaf's", ToString(path)));
  }

  static MapKey KeyOf(const PathPart& part) {
    if (const auto* text = std::get_if<std::string>(&part)) {
      return *text;
    }
    const auto* position = std::get_if<ListIndex>(&part);
    return position != nullptr ? static_cast<std::int64_t>(position->position)
                               : std::get<std::int64_t>(part);
  }

  Node& Child(const PathPart& part) {
    const auto* text = std::get_if<std::string>(&part);
    const auto* number = std::get_if<std::int64_t>(&part);
    std::string name = text != nullptr     ? "t" + *text
                       : number != nullptr ? fmt::format("i{}", *number)
                                           : fmt::format("l{}", std::get<ListIndex>(part).position);
    const auto [place, is_new] = places_.emplace(std::move(name), children_.size());
    if (is_new) {
      children_.emplace_back(part, std::make_unique<Node>());
    }
    return *children_[place->second].second;
  }

  bool HoldsTensor() const {
    return is_leaf_ ? leaf_.get_if<Tensor>() != nullptr || leaf_.get_if<PerRank>() != nullptr
                    : std::any_of(children_.begin(), children_.end(),
                                  [](const auto& child) { return child.second->HoldsTensor(); });
  }

  /// Positions 0, 1, ..., and a tensor somewhere below, since Flatten enters no other list.
  bool IsList() const {
    return !children_.empty() &&
           std::all_of(children_.begin(), children_.end(),
                       [this](const auto& child) {
                         const auto* at = std::get_if<ListIndex>(&child.first);
                         return at != nullptr && at->position < children_.size();
                       }) &&
           HoldsTensor();
  }

  bool is_leaf_ = false;
  Value leaf_;
  std::vector<std::pair<PathPart, std::unique_ptr<Node>>> children_;
  std::unordered_map<std::string, std::size_t> places_;
};

}  // namespace

bool IsSelected(std::string_view key, const std::vector<std::string>& include,
                const std::vector<std::string>& exclude) {
  return MatchesAnyKey(include, key) && (exclude.empty() || !MatchesAnyKey(exclude, key));
}

ConvertSelection SelectKeys(const Catalog& catalog, const std::vector<std::string>& include,
                            const std::vector<std::string>& exclude) {
  ConvertSelection out;
  for (TensorId tensor = 0; tensor < catalog.num_tensors(); ++tensor) {
    if (IsSelected(catalog.key(tensor), include, exclude)) {
      out.tensors.push_back(tensor);
    }
  }
  for (std::size_t i = 0; i < catalog.num_objects();
       i = catalog.FindObjects(catalog.object_key(i)).second) {
    if (IsSelected(catalog.object_key(i), include, exclude)) {
      out.objects.push_back(i);
    }
  }
  return out;
}

Result<int> PerRankCount(const Catalog& catalog, const ConvertSelection& selection, int ranks) {
  int count = ranks;
  for (const std::size_t first : selection.objects) {
    if (catalog.object_rank(first) < 0) {
      continue;
    }
    const std::string_view key = catalog.object_key(first);
    const std::size_t last = catalog.FindObjects(key).second;
    const int values = static_cast<int>(last - first);
    const bool all = catalog.object_rank(first) == 0 && catalog.object_rank(last - 1) == values - 1;
    count = count == 0 ? values : count;
    if (!all || values != count) {
      return MakeError(
          ErrorCode::kInvalidArgument, "MISSING_PER_RANK",
          fmt::format("'{}' has a value of its own for each of {} ranks, the destination has {} "
                      "ranks\nconvert to as many ranks, or exclude '{}'",
                      key, values, count, key));
    }
  }
  return count;
}

ConvertState::ConvertState(const Catalog& catalog, const ConvertSelection& selection,
                           const ConvertLayout& layout, TensorReader& reader,
                           std::size_t cast_bytes)
    : catalog_(catalog),
      selection_(selection),
      layout_(layout),
      reader_(reader),
      cast_bytes_(cast_bytes),
      identities_(catalog.num_tensors()) {}

Result<StateDict> ConvertState::OfRank(int rank) const { return Make(rank, false); }

Result<StateDict> ConvertState::Outline() const { return Make(0, true); }

Result<StateDict> ConvertState::Make(int rank, bool outline) const {
  Node root;
  for (const TensorId id : selection_.tensors) {
    std::optional<Box> box = layout_.BoxOf(id, rank);
    if (!box && layout_.whole() && !outline) {
      continue;  // many files of many tensors: each rank describes its own only
    }
    RESHARD_TRY(Node::Insert(root, catalog_.path(id), TensorOf(id, std::move(box))));
  }
  for (const std::size_t first : selection_.objects) {
    RESHARD_TRY_ASSIGN(Value leaf, ObjectOf(first, rank));
    RESHARD_TRY(Node::Insert(root, catalog_.object_path(first), std::move(leaf)));
  }
  return std::move(root).ToValue();
}

Value ConvertState::TensorOf(TensorId id, std::optional<Box> box) const {
  const auto shape = catalog_.shape(id);
  Tensor tensor{layout_.dtype(id), Shape(shape.begin(), shape.end()), {}};
  if (box && !IsEmpty(*box)) {
    TensorShard shard;
    shard.box = std::move(*box);
    if (tensor.dtype == catalog_.dtype(id)) {
      shard.source = [this, id](const Box& part, MutableByteSpan out) {
        return reader_.ReadBox(id, part, out);
      };
    } else {
      shard.source = [this, id](const Box& part, MutableByteSpan out) {
        return ReadCast(id, part, out);
      };
    }
    // Owns nothing: equal pointers say that two tensors share their bytes.
    shard.owner = std::shared_ptr<const void>(std::shared_ptr<const void>(),
                                              &identities_[layout_.identity(id)]);
    tensor.shards.push_back(std::move(shard));
  }
  return Value(std::move(tensor));
}

/// Reads as many elements as the buffer holds, converts them, and goes on.
Status ConvertState::ReadCast(TensorId id, const Box& box, MutableByteSpan out) const {
  const DType from = catalog_.dtype(id);
  const DType to = layout_.dtype(id);
  const std::uint64_t elements = NumElements(box);
  const std::uint64_t at_once = cast_bytes_ / Info(from).unit_bytes;
  RESHARD_TRY_ASSIGN(StagingBuffer buffer, TakeBuffer());
  CastCounts counts;
  for (std::uint64_t begin = 0; begin < elements; begin += at_once) {
    RESHARD_TRY_ASSIGN(const std::vector<Box> parts,
                       FlattenedRangeToBoxes(box, begin, std::min(elements, begin + at_once)));
    for (const Box& part : parts) {
      const MutableByteSpan read = buffer.span().first(NumBytes(part, from));
      RESHARD_TRY(reader_.ReadBox(id, part, read));
      const MutableByteSpan target = out.first(NumBytes(part, to));
      RESHARD_TRY(CastElements(from, read, to, target, counts));
      out = out.subspan(target.size());
    }
  }
  MutexLock lock(mutex_);
  buffers_.push_back(std::move(buffer));
  if (counts.overflowed > 0) {
    std::uint64_t first = 0;
    for (std::size_t axis = 0; axis < box.offset.size(); ++axis) {
      first = first * catalog_.shape(id)[axis] + box.offset[axis];
    }
    overflows_[id][first] = counts.overflowed;
  }
  return OkStatus();
}

Result<StagingBuffer> ConvertState::TakeBuffer() const {
  {
    MutexLock lock(mutex_);
    if (!buffers_.empty()) {
      StagingBuffer buffer = std::move(buffers_.back());
      buffers_.pop_back();
      return buffer;
    }
  }
  return StagingBuffer::Allocate(cast_bytes_);
}

std::map<TensorId, std::uint64_t> ConvertState::Overflows() const {
  MutexLock lock(mutex_);
  std::map<TensorId, std::uint64_t> out;
  for (const auto& [tensor, boxes] : overflows_) {
    for (const auto& [first, count] : boxes) {
      out[tensor] += count;
    }
  }
  return out;
}

Result<Value> ConvertState::ObjectOf(std::size_t first, int rank) const {
  if (catalog_.object_rank(first) < 0) {
    return DecodeObject(catalog_.object_value(first));
  }
  const std::size_t last = catalog_.FindObjects(catalog_.object_key(first)).second;
  const std::size_t own = first + static_cast<std::size_t>(rank);
  if (own >= last) {  // only where the format holds no objects, so that the numbers may differ
    return Value(PerRank(Value()));
  }
  RESHARD_TRY_ASSIGN(Value value, DecodeObject(catalog_.object_value(own)));
  return Value(PerRank(std::move(value)));
}

}  // namespace reshard
