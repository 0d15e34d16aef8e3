#pragma once

// A small checkpoint with a bit of everything, the same bytes each time: sharded, replicated,
// aliased, scalar and empty tensors, objects of every kind, values per rank. Saved by two ranks.

#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include "reshard/engine/save.h"
#include "reshard/storage/storage.h"
#include "tests/support/ranks.h"

namespace reshard::testing {

/// A tensor whose axis `axis` is cut over the ranks.
inline Tensor CutTensor(DType dtype, Shape shape, std::size_t axis, const ProcessGroup& group,
                        std::uint64_t salt) {
  const auto rank = static_cast<std::uint64_t>(group.rank());
  const auto size = static_cast<std::uint64_t>(group.size());
  Box box = WholeBox(shape);
  box.offset[axis] = shape[axis] * rank / size;
  box.extent[axis] = shape[axis] * (rank + 1) / size - box.offset[axis];
  Tensor tensor{dtype, std::move(shape), {}};
  tensor.shards.push_back(AllocateShard(dtype, std::move(box)));
  FillPattern(tensor, salt);
  return tensor;
}

inline Tensor WholeTensor(DType dtype, Shape shape, std::uint64_t salt) {
  Box box = WholeBox(shape);
  Tensor tensor{dtype, std::move(shape), {}};
  tensor.shards.push_back(AllocateShard(dtype, std::move(box)));
  FillPattern(tensor, salt);
  return tensor;
}

/// The state of one rank.
inline StateDict SmallState(const ProcessGroup& group, std::uint64_t salt) {
  StateDict state;
  const Tensor emb = CutTensor(DType::kBfloat16, {64, 32}, 0, group, salt + 1);
  state["model"]["emb"] = emb;
  state["model"]["head"] = emb;  // the same memory: an alias
  state["model"]["w"] = CutTensor(DType::kFloat32, {300, 1024}, 1, group, salt + 2);
  state["model"]["bias"] = WholeTensor(DType::kFloat16, {7}, salt + 3);
  state["model"]["none"] = WholeTensor(DType::kFloat32, {0, 5}, salt);
  state["opt"]["step"] = WholeTensor(DType::kInt64, {}, salt + 4);
  state["train"]["step"] = static_cast<std::int64_t>(salt);
  state["train"]["lr"] = 0.25;
  state["train"]["loss"] = std::numeric_limits<double>::quiet_NaN();
  state["train"]["name"] = "adam\x1b[31m";
  state["train"]["on"] = true;
  state["train"]["nothing"] = Value();
  state["train"]["list"] = Value::List{1, "two"};
  state["layers"][MapKey(std::int64_t{3})] = "third";
  state["rng"] = PerRank(Value(Bytes(5, static_cast<std::byte>(group.rank() + 1))));
  return state;
}

/// Saves it; the result of rank 0.
inline Result<SaveResult> SaveSmall(Storage& storage, std::optional<std::uint64_t> unique_id,
                                    std::uint64_t salt = 0, bool overwrite = false) {
  Result<SaveResult> out;
  RunRanks(2, [&](ProcessGroup& group) {
    const StateDict state = SmallState(group, salt);
    SaveOptions options;
    options.unique_id = unique_id;
    options.overwrite = overwrite;
    Result<SaveResult> result = Save(state, storage, group, options);
    if (group.rank() == 0) {
      out = std::move(result);
    }
  });
  return out;
}

}  // namespace reshard::testing
