#include "reshard/engine/rank_files.h"

#include <algorithm>
#include <utility>

#include "reshard/catalog/wire.h"

namespace reshard {

Result<PayloadSegment> RankContent::SegmentOf(const RankChunk& chunk) const {
  const TensorDescription& tensor = description.tensors[chunk.tensor];
  // Other leaves lie between those that are described.
  const auto leaf =
      std::lower_bound(leaves.begin(), leaves.end(), tensor.key,
                       [](const FlatEntry& entry, const std::string& k) { return entry.key < k; });
  for (const TensorShard& shard : leaf->leaf->get_if<Tensor>()->shards) {
    if (Contains(shard.box, chunk.box)) {
      return PayloadSegment{tensor.key, &shard, tensor.dtype, tensor.shape, chunk.box, {}};
    }
  }
  return BadMessage("plan names a box that this rank does not hold");
}

Status OwnedFile::Create(std::string name, std::uint64_t size) {
  Result<std::unique_ptr<WritableObject>> created = storage_.Create(name, {size, false});
  if (!created.ok()) {
    met_stray_ = created.error().reason == "FILE_EXISTS";
    return tl::unexpected<Error>(std::move(created).error());
  }
  object_ = std::move(*created);
  name_ = std::move(name);
  return OkStatus();
}

Status OwnedFile::Finish(std::uint64_t size) {
  may_stay_ = true;
  return object_->Finish(size);
}

void OwnedFile::Keep() {
  may_stay_ = false;
  object_.reset();
}

void OwnedFile::Discard() {
  // A failed Finish may have taken effect. The name goes before the object does: afterwards it
  // could be another writer's.
  if (may_stay_) {
    static_cast<void>(storage_.Remove(name_).ok());
    may_stay_ = false;
  }
  object_.reset();
}

}  // namespace reshard
