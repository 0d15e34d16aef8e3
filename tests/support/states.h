#pragma once

// State dicts whose every element is known, calls on all ranks at once, and stores whose files can
// be damaged: what the tests of save and load share.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reshard/engine/load.h"
#include "reshard/engine/save.h"
#include "reshard/storage/memory_storage.h"
#include "tests/support/ranks.h"
#include "tests/support/status_matchers.h"

namespace reshard::testing {

/// Calls `body(group)` on `size` thread ranks, like RunRanks; element r is rank r's result.
template <typename Body>
auto OnRanks(int size, const Body& body, Deadlines deadlines = {}, bool apart = false) {
  using Out = decltype(body(std::declval<ProcessGroup&>()));
  std::vector<std::optional<Out>> slots(static_cast<std::size_t>(size));
  RunRanks(
      size,
      [&](ProcessGroup& group) {
        slots[static_cast<std::size_t>(group.global_rank())].emplace(body(group));
      },
      deadlines, apart);
  std::vector<Out> out;
  for (auto& slot : slots) {
    out.push_back(std::move(*slot));
  }
  return out;
}

/// How a load moves its bytes: direct, or by an exchange of ranks that share memory or that do not.
struct Movement {
  std::string name;
  Transfer transfer = Transfer::kAuto;
  bool apart = false;
};

inline std::vector<Movement> Movements() {
  return {{"Direct", Transfer::kDirect, false},
          {"Exchange", Transfer::kExchange, false},
          {"ExchangeApart", Transfer::kExchange, true}};
}

inline void PrintTo(const Movement& movement, std::ostream* out) { *out << movement.name; }

/// The part of `shape` that is rank's when axis `axis` is cut evenly over `size` ranks.
inline Box CutBox(const Shape& shape, std::size_t axis, int rank, int size) {
  Box box = WholeBox(shape);
  const std::uint64_t step =
      (shape[axis] + static_cast<std::uint64_t>(size) - 1) / static_cast<std::uint64_t>(size);
  const std::uint64_t begin = std::min(shape[axis], step * static_cast<std::uint64_t>(rank));
  box.offset[axis] = begin;
  box.extent[axis] = std::min(shape[axis], begin + step) - begin;
  return box;
}

/// A tensor with memory for the boxes, filled with its pattern.
inline Tensor PatternTensor(DType dtype, const Shape& shape, std::vector<Box> boxes,
                            std::uint64_t salt) {
  Tensor tensor{dtype, shape, {}};
  for (Box& box : boxes) {
    tensor.shards.push_back(AllocateShard(dtype, std::move(box)));
  }
  FillPattern(tensor, salt);
  return tensor;
}

/// The same with memory that holds something else, to load into.
inline Tensor TargetTensor(DType dtype, const Shape& shape, std::vector<Box> boxes) {
  Tensor tensor{dtype, shape, {}};
  for (Box& box : boxes) {
    tensor.shards.push_back(AllocateShard(dtype, std::move(box)));
  }
  return tensor;
}

/// The elements of one dense float tensor.
inline std::vector<float> Floats(const Tensor& tensor) {
  const TensorShard& shard = tensor.shards.at(0);
  std::vector<float> out(NumElements(shard.box.extent));
  if (!out.empty()) {  // else null
    std::memcpy(out.data(), shard.view.data, out.size() * sizeof(float));
  }
  return out;
}

/// A float32 tensor of one axis, whole.
inline Tensor FloatTensor(const std::vector<float>& values) {
  Tensor tensor = TargetTensor(DType::kFloat32, {values.size()}, {WholeBox(Shape{values.size()})});
  if (!values.empty()) {  // else null
    std::memcpy(tensor.shards[0].view.data, values.data(), values.size() * sizeof(float));
  }
  return tensor;
}

/// Every object's bytes, by name.
using Contents = std::map<std::string, Bytes>;

inline Bytes ReadObject(Storage& storage, const std::string& name) {
  auto object = storage.Open(name);
  EXPECT_OK(object);
  Bytes bytes((*object)->size());
  EXPECT_OK((*object)->ReadAt(0, bytes));
  return bytes;
}

inline Contents ReadAll(Storage& storage) {
  Contents out;
  const auto objects = storage.List();
  EXPECT_OK(objects);
  for (const ObjectInfo& object : *objects) {
    out[object.name] = ReadObject(storage, object.name);
  }
  return out;
}

inline std::vector<std::string> Names(Storage& storage) {
  std::vector<std::string> out;
  const auto objects = storage.List();
  EXPECT_OK(objects);
  for (const ObjectInfo& object : *objects) {
    out.push_back(object.name);
  }
  return out;
}

/// Writes an object anew, whatever was there.
inline void PutObject(Storage& storage, const std::string& name, ByteSpan bytes) {
  EXPECT_OK(storage.Remove(name));
  auto object = storage.Create(name, {});
  ASSERT_OK(object);
  ASSERT_OK((*object)->WriteAt(0, bytes));
  ASSERT_OK((*object)->Finish(bytes.size()));
}

/// Copies all objects into a new store in memory.
inline std::unique_ptr<Storage> CloneOf(Storage& storage, const std::string& name = "memory") {
  auto out = NewMemoryStorage(name);
  for (const auto& [object, bytes] : ReadAll(storage)) {
    PutObject(*out, object, bytes);
  }
  return out;
}

/// Checks that all ranks had one outcome: OK everywhere, or one code and reason; ranks may say
/// kIndeterminate instead. Returns the failure that is not kIndeterminate, if any.
template <typename Results>
void ExpectOneOutcome(const Results& results) {
  const Error* first = nullptr;
  bool any_ok = false;
  for (const auto& result : results) {
    if (result.ok()) {
      any_ok = true;
    } else if (result.error().code != ErrorCode::kIndeterminate) {
      if (first == nullptr) {
        first = &result.error();
      }
      EXPECT_EQ(result.error().code, first->code) << result.error().ToString();
      EXPECT_EQ(result.error().reason, first->reason) << result.error().ToString();
      EXPECT_EQ(result.error().message, first->message);
    }
  }
  EXPECT_FALSE(any_ok && first != nullptr) << first->ToString();
}

}  // namespace reshard::testing
