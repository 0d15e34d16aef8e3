#pragma once

// A small catalog with every kind of entry: a tensor in two chunks, an alias, an empty tensor, a
// scalar, a shared object and per-rank ones.

#include "reshard/catalog/catalog.h"
#include "reshard/catalog/cbor.h"

namespace reshard::testing {

/// Tensors, sorted: "empty" (0, 2) int8; "model.w" (4, 3) float32, rows 0-1 in rank 0's file, 2-3
/// in rank 1's; "model.w_tied", an alias of it; "step", a uint64 scalar without digest.
inline Catalog SmallCatalog() {
  CatalogBuilder builder({.unique_id = 7, .attempt = 2, .world_size = 2, .coordinator_rank = 1});
  const std::vector<std::uint64_t> block_a = {0xaaaa};
  const std::vector<std::uint64_t> block_b = {0xbbbb};
  const auto a = builder.AddFile({"0_7.safetensors", 0, 4128, 4096, 0x0123, 0, true}, block_a);
  const auto b = builder.AddFile({"1_7.safetensors", 1, 4120, 4096, 0x4567, 0, true}, block_b);
  builder.AddTensor("empty", {"empty"}, DType::kInt8, Shape{0, 2}, 0);
  builder.AddTensor("model.w", {"model", "w"}, DType::kFloat32, Shape{4, 3}, 0x1111222233334444);
  builder.AddChunk(Box{{0, 0}, {2, 3}}, a, 4104);
  builder.AddChunk(Box{{2, 0}, {2, 3}}, b, 4096);
  builder.AddTensor("model.w_tied", {"model", "w_tied"}, DType::kFloat32, Shape{4, 3},
                    0x1111222233334444, "model.w");
  builder.AddTensor("step", {"step"}, DType::kUint64, Shape{}, std::nullopt);
  builder.AddChunk(Box{}, a, 4096);
  builder.AddObject("lr", {"lr"}, -1, EncodeObject(0.5));
  builder.AddObject("rng", {"rng"}, 0, EncodeObject(10));
  builder.AddObject("rng", {"rng"}, 1, EncodeObject(11));
  return std::move(builder).Build().value();
}

}  // namespace reshard::testing
