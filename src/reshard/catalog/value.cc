#include "reshard/catalog/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "reshard/base/check.h"

namespace reshard {

Tensor Tensor::Whole(TensorView view) {
  Tensor tensor;
  tensor.dtype = view.dtype;
  tensor.global_shape = view.shape;
  tensor.shards.push_back({WholeBox(view.shape), view, {}, {}});
  return tensor;
}

Tensor Tensor::Sharded(Shape global_shape, Box box, TensorView view) {
  Tensor tensor;
  tensor.dtype = view.dtype;
  tensor.global_shape = std::move(global_shape);
  tensor.shards.push_back({std::move(box), std::move(view), {}, {}});
  return tensor;
}

Tensor Tensor::Allocate(DType dtype, Shape global_shape, Box box) {
  auto memory = std::make_shared<Bytes>(NumBytes(box, dtype));
  TensorView view = DenseView(memory->data(), dtype, box.extent);
  Tensor tensor = Sharded(std::move(global_shape), std::move(box), std::move(view));
  tensor.shards[0].owner = std::move(memory);
  return tensor;
}

Tensor Tensor::Absent(DType dtype, Shape global_shape) {
  return {dtype, std::move(global_shape), {}};
}

PerRank::PerRank(Value value) : value_(std::make_unique<Value>(std::move(value))) {}

PerRank::PerRank(const PerRank& other) : value_(std::make_unique<Value>(*other.value_)) {}

PerRank& PerRank::operator=(const PerRank& other) {
  if (this != &other) {
    value_ = std::make_unique<Value>(*other.value_);
  }
  return *this;
}

PerRank::~PerRank() = default;

std::string_view Value::kind() const {
  static constexpr std::array<std::string_view, 12> kNames = {
      "null", "bool", "int",    "float",    "string", "bytes",
      "list", "map",  "tensor", "per-rank", "opaque", "too large"};
  return kNames[data_.index()];
}

namespace {

std::string KeyText(const MapKey& key) {
  const auto* text = std::get_if<std::string>(&key);
  return text != nullptr ? fmt::format("'{}'", *text) : std::to_string(std::get<0>(key));
}

}  // namespace

Value& Value::operator[](MapKey key) {
  if (is_null()) {
    data_ = Map();
  }
  Map* map = get_if<Map>();
  if (map == nullptr) {
    CheckFailed(__FILE__, __LINE__,
                fmt::format("the key {} is asked of a Value of kind {}, which is no map",
                            KeyText(key), kind()));
  }
  const auto at = std::find_if(map->begin(), map->end(),
                               [&key](const auto& entry) { return entry.first == key; });
  if (at != map->end()) {
    return at->second;
  }
  return map->emplace_back(std::move(key), Value()).second;
}

const Value* Value::Find(const MapKey& key) const {
  const Map* map = get_if<Map>();
  if (map == nullptr) {
    return nullptr;
  }
  const auto at = std::find_if(map->begin(), map->end(),
                               [&key](const auto& entry) { return entry.first == key; });
  return at == map->end() ? nullptr : &at->second;
}

namespace {

bool SameTensor(const Tensor& a, const Tensor& b) {
  return a.dtype == b.dtype && a.global_shape == b.global_shape &&
         std::equal(a.shards.begin(), a.shards.end(), b.shards.begin(), b.shards.end(),
                    [](const TensorShard& x, const TensorShard& y) { return x.box == y.box; });
}

}  // namespace

bool operator==(const Value& a, const Value& b) {
  if (a.data_.index() != b.data_.index()) {
    return false;
  }
  if (const auto* number = a.get_if<double>()) {  // bits, so that NaN equals itself
    return std::bit_cast<std::uint64_t>(*number) ==
           std::bit_cast<std::uint64_t>(*b.get_if<double>());
  }
  if (const auto* tensor = a.get_if<Tensor>()) {
    return SameTensor(*tensor, *b.get_if<Tensor>());
  }
  if (const auto* own = a.get_if<PerRank>()) {
    return own->value() == b.get_if<PerRank>()->value();
  }
  if (const auto* list = a.get_if<Value::List>()) {
    return *list == *b.get_if<Value::List>();
  }
  if (const auto* map = a.get_if<Value::Map>()) {
    return *map == *b.get_if<Value::Map>();
  }
  if (const auto* flag = a.get_if<bool>()) {
    return *flag == *b.get_if<bool>();
  }
  if (const auto* number = a.get_if<std::int64_t>()) {
    return *number == *b.get_if<std::int64_t>();
  }
  if (const auto* text = a.get_if<std::string>()) {
    return *text == *b.get_if<std::string>();
  }
  if (const auto* bytes = a.get_if<Bytes>()) {
    return *bytes == *b.get_if<Bytes>();
  }
  if (const auto* opaque = a.get_if<Opaque>()) {
    return *opaque == *b.get_if<Opaque>();
  }
  if (const auto* number = std::get_if<Value::TooLarge>(&a.data_)) {
    return *number == std::get<Value::TooLarge>(b.data_);
  }
  return true;
}

const Opaque* FindWithoutContent(const Value& value) {
  if (const auto* opaque = value.get_if<Opaque>()) {
    return opaque->has_content() ? nullptr : opaque;
  }
  const Opaque* found = nullptr;
  if (const auto* list = value.get_if<Value::List>()) {
    for (auto at = list->begin(); found == nullptr && at != list->end(); ++at) {
      found = FindWithoutContent(*at);
    }
  } else if (const auto* map = value.get_if<Value::Map>()) {
    for (auto at = map->begin(); found == nullptr && at != map->end(); ++at) {
      found = FindWithoutContent(at->second);
    }
  }
  return found;
}

}  // namespace reshard
