#pragma once

// The nested state dict: maps and lists with tensors and plain values at the leaves.
//
// Thread-safety: plain values; a Value does not own tensor memory unless a shard's `owner` does.

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "reshard/base/bytes.h"
#include "reshard/base/result.h"
#include "reshard/tensor/box.h"
#include "reshard/tensor/strided.h"

namespace reshard {

class Value;

/// A value of a type that is not ours, kept as it was found: never interpreted, never executed.
struct Opaque {
  std::string type;  ///< As its format names it: "argparse.Namespace".
  Bytes bytes;  ///< Its form there, where it stands alone (a record of torch.save); else empty.

  /// Whether the bytes are all there is to it. Without, only the type is known: it cannot be saved,
  /// nor compared.
  bool has_content() const { return !bytes.empty(); }

  bool operator==(const Opaque&) const = default;
};

/// A key of a map: text, or an integer that stays one.
using MapKey = std::variant<std::int64_t, std::string>;

/// Takes `bytes`, the bytes [offset, offset + bytes.size()) of a shard laid out dense and
/// row-major. Called from one thread at a time, offsets increasing, each byte once. `bytes` is
/// valid during the call only. An error (or exception) ends the load on all ranks.
using TensorSink = std::function<Status(std::uint64_t offset, ByteSpan bytes)>;

/// Gives the elements of `box`, which lies in the shard's box and is in the global tensor's
/// coordinates, dense and row-major into `out`. Called from several threads at once, for each
/// element once or (at the edge of two buffers) twice. An error (or exception) ends the save on all
/// ranks.
using TensorSource = std::function<Status(const Box& box, MutableByteSpan out)>;

/// The part of a tensor that this rank holds (on save) or wants (on load).
struct TensorShard {
  Box box;                        ///< Where it lies in the global tensor.
  TensorView view;                ///< Its memory; shape == box.extent. Unused with a sink
                                  ///< or source.
  TensorSink sink = nullptr;      ///< Load only: takes the bytes instead of `view`.
  TensorSource source = nullptr;  ///< Save only: gives the bytes instead of `view`.
  /// Keeps the memory alive, optional. With a source: tensors whose shards have equal, non-null
  /// owners give the same bytes, which are stored once.
  std::shared_ptr<const void> owner = nullptr;
};

/// A tensor leaf: dtype and global shape, and zero or more shards of it.
struct Tensor {
  DType dtype = DType::kFloat32;
  Shape global_shape;
  std::vector<TensorShard> shards;

  /// The whole tensor in this rank's memory (replicated when several ranks pass it).
  static Tensor Whole(TensorView view);

  /// One box of a larger tensor. `view.shape` == `box.extent`.
  static Tensor Sharded(Shape global_shape, Box box, TensorView view);

  /// Owned zero-filled memory for one box; the view points into it.
  static Tensor Allocate(DType dtype, Shape global_shape, Box box);

  /// Known here, held elsewhere.
  static Tensor Absent(DType dtype, Shape global_shape);
};

/// A value that differs by rank on purpose (random-number state, data-loader position): every rank
/// stores its own under one key and gets its own back.
class PerRank {
 public:
  explicit PerRank(Value value);
  PerRank(const PerRank& other);
  PerRank(PerRank&&) noexcept = default;
  PerRank& operator=(const PerRank& other);
  PerRank& operator=(PerRank&&) noexcept = default;
  ~PerRank();

  const Value& value() const { return *value_; }

  Value& value() { return *value_; }

 private:
  std::unique_ptr<Value> value_;
};

/// One node of a state dict.
class Value {
 public:
  using List = std::vector<Value>;
  using Map = std::vector<std::pair<MapKey, Value>>;  ///< In insertion order, keys unique.

  Value() = default;  ///< null

  /// Exactly bool: a pointer is no truth value.
  template <std::same_as<bool> Bool>
  Value(Bool value) : data_(value) {}  // NOLINT: literals become values

  template <std::floating_point Float>
  Value(Float value) : data_(static_cast<double>(value)) {}  // NOLINT

  Value(std::string value) : data_(std::move(value)) {}  // NOLINT

  Value(const char* value) : data_(std::string(value)) {}  // NOLINT

  Value(Bytes value) : data_(std::move(value)) {}  // NOLINT

  Value(List value) : data_(std::move(value)) {}  // NOLINT

  Value(Map value) : data_(std::move(value)) {}  // NOLINT

  Value(Tensor value) : data_(std::move(value)) {}  // NOLINT

  Value(Opaque value) : data_(std::move(value)) {}  // NOLINT

  Value(PerRank value) : data_(std::move(value)) {}  // NOLINT

  /// Integers are 64-bit and signed. A larger one is kept as kind "too large", which Flatten, and
  /// so Save, refuses with its key: BAD_VALUE.
  template <std::integral Int>

  requires(!std::same_as<Int, bool>) Value(Int value) {  // NOLINT
    if (std::in_range<std::int64_t>(value)) {
      data_ = static_cast<std::int64_t>(value);
    } else {
      data_ = TooLarge{static_cast<std::uint64_t>(value)};
    }
  }

  /// The held value if it is a T: bool, std::int64_t, double, std::string, Bytes, List, Map,
  /// Tensor, PerRank, Opaque; else null.
  template <typename T>
  const T* get_if() const {
    return std::get_if<T>(&data_);
  }

  template <typename T>
  T* get_if() {
    return std::get_if<T>(&data_);
  }

  bool is_null() const { return data_.index() == 0; }

  /// Whether it was made of an integer beyond int64.
  bool is_too_large() const { return std::holds_alternative<TooLarge>(data_); }

  /// "null", "bool", "int", "float", "string", "bytes", "list", "map", "tensor", "per-rank",
  /// "opaque", "too large".
  std::string_view kind() const;

  /// The entry of a map, made when missing; a null value becomes a map. Another kind is a bug of
  /// the caller: the program ends with a message that names the key and the kind.
  /// Cost: linear in the size of the map. The reference is valid until the next entry is made in
  /// this map.
  Value& operator[](MapKey key);

  Value& operator[](std::string_view key) { return (*this)[MapKey(std::string(key))]; }

  Value& operator[](const std::string& key) { return (*this)[MapKey(key)]; }

  Value& operator[](const char* key) { return (*this)[std::string_view(key)]; }

  /// The entry of a map, or null when absent or when this is no map.
  const Value* Find(const MapKey& key) const;

  const Value* Find(std::string_view key) const { return Find(MapKey(std::string(key))); }

  const Value* Find(const std::string& key) const { return Find(MapKey(key)); }

  const Value* Find(const char* key) const { return Find(std::string_view(key)); }

  /// Equality of plain values; tensors are equal when dtype, global shape and boxes are.
  friend bool operator==(const Value& a, const Value& b);

 private:
  /// An integer beyond int64.
  struct TooLarge {
    std::uint64_t value = 0;
    bool operator==(const TooLarge&) const = default;
  };

  std::variant<std::monostate, bool, std::int64_t, double, std::string, Bytes, List, Map, Tensor,
               PerRank, Opaque, TooLarge>
      data_;
};

bool operator==(const Value& a, const Value& b);

/// The first opaque value in `value` of which only the type is known; null without.
const Opaque* FindWithoutContent(const Value& value);

/// The root of a state dict: a Value that is a map.
using StateDict = Value;

}  // namespace reshard
