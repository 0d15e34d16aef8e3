#include "reshard/catalog/description.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "reshard/base/check.h"
#include "reshard/catalog/catalog.h"
#include "reshard/catalog/cbor.h"
#include "reshard/catalog/tiling.h"
#include "reshard/catalog/wire.h"

namespace reshard {
namespace {

tl::unexpected<Error> Invalid(std::string_view reason, std::string_view key, std::string what) {
  return MakeError(ErrorCode::kInvalidArgument, reason, fmt::format("tensor '{}': {}", key, what));
}

Status CheckShard(std::string_view key, const Tensor& tensor, const TensorShard& shard) {
  if (Status status = CheckBox(shard.box, tensor.global_shape, tensor.dtype); !status.ok()) {
    return Invalid(status.error().reason, key, status.error().message);
  }
  if (shard.sink) {
    return Invalid("SINK_ON_SAVE", key, "a shard with a sink can only be loaded; give it a view");
  }
  if (shard.source) {
    return OkStatus();
  }
  if (Status status = CheckView(shard.view); !status.ok()) {
    return Invalid(status.error().reason, key, status.error().message);
  }
  if (shard.view.dtype != tensor.dtype) {
    return Invalid("DTYPE_MISMATCH", key,
                   fmt::format("the tensor is {}, its memory {}", Info(tensor.dtype).name,
                               Info(shard.view.dtype).name));
  }
  if (shard.view.shape != shard.box.extent) {
    return Invalid("SHARD_SHAPE", key,
                   fmt::format("the box {} does not fit memory of shape {}", ToString(shard.box),
                               ToString(shard.view.shape)));
  }
  return OkStatus();
}

Status CheckDisjoint(std::string_view key, const std::vector<Box>& boxes) {
  if (boxes.size() < 2) {
    return OkStatus();
  }
  const std::vector<BoxView> views(boxes.begin(), boxes.end());
  const TilingFault fault = FindTilingFault(views);
  if (fault.overlap) {
    return Invalid("LOCAL_OVERLAP", key,
                   fmt::format("two shards of this rank overlap: {} and {}",
                               ToString(boxes[fault.first]), ToString(boxes[fault.second])));
  }
  return OkStatus();
}

/// Whether some bytes come from a source that does not say by its owner which bytes they are.
bool HasUnnamedSource(const Tensor& tensor) {
  return std::any_of(tensor.shards.begin(), tensor.shards.end(), [](const TensorShard& shard) {
    return shard.source != nullptr && shard.owner == nullptr;
  });
}

/// Where a tensor's elements lie: equal for two keys that share memory.
using MemoryKey = std::tuple<DType, Shape, std::vector<std::uint64_t>>;

MemoryKey MemoryOf(const Tensor& tensor) {
  std::vector<std::uint64_t> places;
  for (const TensorShard& shard : tensor.shards) {
    if (IsEmpty(shard.box)) {
      continue;
    }
    const void* memory = shard.source ? shard.owner.get() : shard.view.data;
    places.push_back(reinterpret_cast<std::uintptr_t>(memory));
    places.push_back(shard.source ? 1 : 0);
    places.insert(places.end(), shard.box.offset.begin(), shard.box.offset.end());
    places.insert(places.end(), shard.box.extent.begin(), shard.box.extent.end());
    for (const std::int64_t stride : shard.view.strides) {
      places.push_back(static_cast<std::uint64_t>(stride));
    }
  }
  return {tensor.dtype, tensor.global_shape, std::move(places)};
}

Result<TensorDescription> DescribeTensor(const FlatEntry& leaf, const Tensor& tensor) {
  if (Status status = CheckShape(tensor.global_shape, tensor.dtype); !status.ok()) {
    return Invalid(status.error().reason, leaf.key, status.error().message);
  }
  TensorDescription out;
  out.key = leaf.key;
  out.path = StoredPath(leaf.key, leaf.path);
  out.dtype = tensor.dtype;
  out.shape = tensor.global_shape;
  for (const TensorShard& shard : tensor.shards) {
    RESHARD_TRY(CheckShard(leaf.key, tensor, shard));
    if (!IsEmpty(shard.box)) {
      out.boxes.push_back(shard.box);
    }
  }
  RESHARD_TRY(CheckDisjoint(leaf.key, out.boxes));
  return out;
}

}  // namespace

Result<StateDescription> Describe(const std::vector<FlatEntry>& leaves) {
  StateDescription state;
  std::map<MemoryKey, std::uint32_t> places;
  for (const FlatEntry& leaf : leaves) {
    if (const auto* tensor = leaf.leaf->get_if<Tensor>()) {
      RESHARD_TRY_ASSIGN(TensorDescription out, DescribeTensor(leaf, *tensor));
      out.same_as = static_cast<std::uint32_t>(state.tensors.size());
      if (!out.boxes.empty() && !HasUnnamedSource(*tensor)) {
        out.same_as = places.emplace(MemoryOf(*tensor), out.same_as).first->second;
      }
      state.tensors.push_back(std::move(out));
      continue;
    }
    const auto* own = leaf.leaf->get_if<PerRank>();
    const Value& value = own != nullptr ? own->value() : *leaf.leaf;
    state.objects.push_back(
        {leaf.key, StoredPath(leaf.key, leaf.path), own != nullptr, EncodeObject(value)});
  }
  return state;
}

Bytes EncodeTensorDescriptions(const std::vector<TensorDescription>& tensors) {
  Bytes out;
  AppendLittle(out, static_cast<std::uint32_t>(tensors.size()));
  for (const TensorDescription& tensor : tensors) {
    AppendCounted(out, AsBytes(tensor.key));
    AppendCounted(out, tensor.path);
    out.push_back(static_cast<std::byte>(tensor.dtype));
    out.push_back(static_cast<std::byte>(tensor.shape.size()));
    AppendNumbers(out, tensor.shape);
    AppendLittle(out, tensor.same_as);
    AppendLittle(out, static_cast<std::uint32_t>(tensor.boxes.size()));
    for (const Box& box : tensor.boxes) {
      AppendNumbers(out, box.offset);
      AppendNumbers(out, box.extent);
    }
  }
  return out;
}

Bytes EncodeObjectDescriptions(const std::vector<ObjectDescription>& objects) {
  Bytes out;
  AppendLittle(out, static_cast<std::uint32_t>(objects.size()));
  for (const ObjectDescription& object : objects) {
    AppendCounted(out, AsBytes(object.key));
    AppendCounted(out, object.path);
    out.push_back(std::byte{object.per_rank});
    AppendCounted(out, object.value);
  }
  return out;
}

Result<std::vector<ObjectDescription>> DecodeObjectDescriptions(ByteSpan bytes) {
  WireReader reader(bytes);
  std::uint32_t count = 0;
  if (!reader.Read(count)) {
    return BadMessage("objects");
  }
  std::vector<ObjectDescription> out;
  for (std::uint32_t i = 0; i < count; ++i) {
    ByteSpan key;
    ByteSpan path;
    std::uint8_t per_rank = 0;
    ByteSpan value;
    if (!reader.ReadCounted(key) || !reader.ReadCounted(path) || !reader.Read(per_rank) ||
        !reader.ReadCounted(value)) {
      return BadMessage("objects");
    }
    out.push_back({std::string(AsText(key)), Bytes(path.begin(), path.end()), per_rank != 0,
                   Bytes(value.begin(), value.end())});
  }
  return out;
}

}  // namespace reshard
