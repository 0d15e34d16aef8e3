#pragma once

// Ranks of a simulated save: what each holds, described as a save does it. The memory is never
// touched, so tensors may be of any size.

#include <algorithm>
#include <string>
#include <vector>

#include "reshard/catalog/description.h"
#include "reshard/catalog/save_plan.h"

namespace reshard::testing {

/// A view of dense memory at a made-up address that nothing else uses.
inline TensorView MadeUpView(DType dtype, Shape shape) {
  static std::uintptr_t next = 1ULL << 40;
  next += (1ULL << 40);
  return DenseView(reinterpret_cast<std::byte*>(next), dtype, std::move(shape));
}

/// N ranks; global ranks are 10, 11, ... so that a mix-up with group ranks shows.
class PlanRanks {
 public:
  explicit PlanRanks(std::size_t count) : states(count) {
    for (std::size_t rank = 0; rank < count; ++rank) {
      global_ranks.push_back(static_cast<int>(rank) + 10);
    }
  }

  /// Adds one more box of the tensor `key` to `rank`.
  void Add(std::size_t rank, const std::string& key, DType dtype, const Shape& shape, Box box) {
    Value& leaf = states[rank][key];
    if (leaf.get_if<Tensor>() == nullptr) {
      leaf = Tensor::Absent(dtype, shape);
    }
    TensorView view = MadeUpView(dtype, box.extent);
    leaf.get_if<Tensor>()->shards.push_back({std::move(box), std::move(view), {}, {}});
  }

  /// The whole tensor on every rank.
  void AddReplicated(const std::string& key, DType dtype, const Shape& shape) {
    for (std::size_t rank = 0; rank < states.size(); ++rank) {
      Add(rank, key, dtype, shape, WholeBox(shape));
    }
  }

  /// Describes all ranks and plans.
  Result<SavePlan> Plan(const SavePlanOptions& options = {}) {
    described.clear();
    std::vector<Bytes> encoded;
    for (const Value& state : states) {
      RESHARD_TRY_ASSIGN(const std::vector<FlatEntry> leaves, Flatten(state));
      RESHARD_TRY_ASSIGN(StateDescription description, Describe(leaves));
      encoded.push_back(EncodeTensorDescriptions(description.tensors));
      described.push_back(std::move(description));
    }
    const std::vector<ByteSpan> spans(encoded.begin(), encoded.end());
    return PlanSave(spans, global_ranks, options);
  }

  /// The merged objects of the last Plan.
  Result<std::vector<MergedObject>> Objects(const SavePlan& plan) const {
    std::vector<std::vector<ObjectDescription>> objects;
    for (const StateDescription& description : described) {
      objects.push_back(description.objects);
    }
    return MergeObjects(objects, plan, global_ranks);
  }

  std::vector<Value> states;
  std::vector<int> global_ranks;
  std::vector<StateDescription> described;
};

/// Bytes that all ranks write.
inline std::uint64_t TotalBytes(const SavePlan& plan) {
  std::uint64_t total = 0;
  for (const std::uint64_t bytes : plan.payload_bytes) {
    total += bytes;
  }
  return total;
}

/// "key writer box" of each chunk.
inline std::vector<std::string> ChunkTexts(const SavePlan& plan) {
  std::vector<std::string> out;
  for (const PlannedChunk& chunk : plan.chunks) {
    out.push_back(plan.tensors[chunk.tensor].key + " " + std::to_string(chunk.writer) + " " +
                  ToString(plan.box(chunk)));
  }
  return out;
}

}  // namespace reshard::testing
