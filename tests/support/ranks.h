#pragma once

// Runs code as N ranks, one thread each, and makes sharded tensors whose every element is known.

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "reshard/catalog/value.h"
#include "reshard/comm/process_group.h"
#include "reshard/comm/transport.h"
#include "reshard/tensor/mesh.h"

namespace reshard::testing {

/// Calls `body(group)` on `size` threads and waits for all. `apart`: as if they were processes.
inline void RunRanks(int size, const std::function<void(ProcessGroup&)>& body,
                     Deadlines deadlines = {}, bool apart = false) {
  std::vector<std::unique_ptr<ProcessGroup>> groups;
  for (auto& transport : ThreadTransports(size, kMaxMessage, !apart)) {
    groups.push_back(NewTransportGroup(std::move(transport), deadlines));
  }
  std::vector<std::thread> threads;
  for (auto& group : groups) {
    threads.emplace_back([&body, &group] { body(*group); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

/// The byte at position `at` of the row-major bytes of tensor `key`.
inline std::byte PatternByte(std::uint64_t salt, std::uint64_t at) {
  std::uint64_t x = (at >> 3) + salt * 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  x ^= x >> 31;
  return static_cast<std::byte>(x >> ((at & 7) * 8));
}

/// Calls `visit(unit index in the shard's memory order, byte offset of the unit in the global
/// tensor)`.
inline void ForEachUnit(const TensorShard& shard, const Shape& global_shape, DType dtype,
                        const std::function<void(std::byte*, std::uint64_t)>& visit) {
  const Box units = ToUnits(shard.box, dtype);
  const Shape shape = ToUnits(global_shape, dtype);
  const std::vector<std::int64_t> strides = StrideBytes(shard.view);
  const std::uint64_t count = NumElements(units.extent);
  const std::uint32_t unit_bytes = Info(dtype).unit_bytes;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t rest = i;
    std::uint64_t global = 0;
    std::uint64_t scale = 1;
    std::int64_t local = 0;
    for (std::size_t a = units.extent.size(); a-- > 0;) {
      const std::uint64_t index = rest % units.extent[a];
      rest /= units.extent[a];
      local += static_cast<std::int64_t>(index) * strides[a];
      global += (units.offset[a] + index) * scale;
      scale *= shape[a];
    }
    visit(shard.view.data + local, global * unit_bytes);
  }
}

/// Fills the shards of a tensor with its pattern.
inline void FillPattern(Tensor& tensor, std::uint64_t salt) {
  for (TensorShard& shard : tensor.shards) {
    ForEachUnit(shard, tensor.global_shape, tensor.dtype, [&](std::byte* unit, std::uint64_t at) {
      for (std::uint32_t b = 0; b < Info(tensor.dtype).unit_bytes; ++b) {
        unit[b] = PatternByte(salt, at + b);
      }
    });
  }
}

/// Number of units of the shards that differ from the pattern.
inline std::uint64_t CountWrong(const Tensor& tensor, std::uint64_t salt) {
  std::uint64_t wrong = 0;
  for (const TensorShard& shard : tensor.shards) {
    ForEachUnit(shard, tensor.global_shape, tensor.dtype,
                [&](const std::byte* unit, std::uint64_t at) {
                  for (std::uint32_t b = 0; b < Info(tensor.dtype).unit_bytes; ++b) {
                    if (unit[b] != PatternByte(salt, at + b)) {
                      ++wrong;
                      return;
                    }
                  }
                });
  }
  return wrong;
}

/// Owned memory for one box, laid out with the axes in a given order and some padding, so that it
/// is strided; `order` empty: dense row-major.
inline TensorShard AllocateShard(DType dtype, Box box, const std::vector<std::size_t>& order = {},
                                 std::uint64_t padding = 0) {
  std::vector<std::int64_t> strides = RowMajorStrides(box.extent);
  std::uint64_t elements = NumElements(box.extent);
  if (!order.empty()) {
    std::uint64_t stride = 1;
    for (std::size_t i = order.size(); i-- > 0;) {
      strides[order[i]] = static_cast<std::int64_t>(stride);
      stride *= box.extent[order[i]] + (i > 0 ? padding : 0);
    }
    elements = stride;
  }
  const std::uint64_t units = Info(dtype).unit_elements;
  auto memory =
      std::make_shared<Bytes>((elements / units + 1) * Info(dtype).unit_bytes, std::byte{0xee});
  TensorShard shard;
  shard.view = {memory->data(), dtype, box.extent, std::move(strides)};
  shard.box = std::move(box);
  shard.owner = std::move(memory);
  return shard;
}

}  // namespace reshard::testing
