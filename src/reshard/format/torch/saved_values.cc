#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/utf8.h"
#include "reshard/catalog/flatten.h"
#include "reshard/format/torch/saved_file.h"
#include "reshard/format/torch/saved_values_internal.h"

namespace reshard::torch {
namespace {

using pickle::GlobalRule;
using pickle::Kind;
using pickle::NodeId;

constexpr std::uint64_t kFreeMemory = std::uint64_t{64} << 20;
constexpr std::string_view kRootKey = "data";
constexpr std::string_view kProtocol2 = "\x80\x02";

enum SavedGlobal : std::uint16_t {
  kSetType = kFirstFreeGlobal,
  kDefaultDict,
};

std::vector<GlobalRule> MakeGlobals() {
  const std::span<const GlobalRule> tensors = TensorGlobals();
  std::vector<GlobalRule> rules(tensors.begin(), tensors.end());
  rules.push_back(
      {"torch._utils", "_rebuild_parameter_with_state", kRebuildParameter, pickle::kReduce});
  rules.push_back({"torch._tensor", "_rebuild_from_type_v2", kRebuildFromType, pickle::kReduce});
  rules.push_back({"builtins", "set", kSetType, pickle::kReduce});
  rules.push_back({"__builtin__", "set", kSetType, pickle::kReduce});
  rules.push_back(
      {"collections", "defaultdict", kDefaultDict, pickle::kReduce | pickle::kDictLike});
  return rules;
}

/// What a tensor leaf remembers.
std::shared_ptr<const void> Remember(NodeId node) { return std::make_shared<const NodeId>(node); }

}  // namespace

std::span<const GlobalRule> SavedGlobals() {
  static const std::vector<GlobalRule> rules = MakeGlobals();
  return rules;
}

SavedValues::SavedValues(const pickle::Document& document, ByteSource& source,
                         std::uint64_t pickle_bytes)
    : document_(document),
      source_(source),
      memory_left_(kFreeMemory + 8 * pickle_bytes),
      holds_tensors_(document.num_nodes()) {}

Status SavedValues::Charge(NodeId node, std::uint64_t bytes) {
  if (bytes > memory_left_) {
    return MakeError(ErrorCode::kCorruption, pickle::kLimit,
                     fmt::format("byte {}: shared parts of the file expand to far more than its "
                                 "size",
                                 document_.offset(node)));
  }
  memory_left_ -= bytes;
  return OkStatus();
}

Result<Value> SavedValues::ReadRoot() {
  RESHARD_TRY_ASSIGN(Value root, Read(document_.root(), 0));
  if (root.get_if<Value::Map>() != nullptr) {
    return root;
  }
  Value::Map map;
  map.emplace_back(std::string(kRootKey), std::move(root));
  return Value(std::move(map));
}

NodeId SavedValues::NodeOf(const Tensor& tensor) const {
  return *static_cast<const NodeId*>(tensor.shards[0].owner.get());
}

std::string SavedValues::NameOf(std::uint16_t global) const {
  if (global >= pickle::kFirstUnknown) {
    return std::string(document_.UnknownName(global));
  }
  const std::span<const GlobalRule> rules = SavedGlobals();
  const auto at = std::find_if(rules.begin(), rules.end(),
                               [global](const GlobalRule& rule) { return rule.number == global; });
  return at == rules.end() ? "?" : fmt::format("{}.{}", at->module, at->name);
}

/// A name that stands as a value is all there is to it: a pickle of its own.
Result<Value> SavedValues::ReadName(NodeId node) {
  const std::string name = NameOf(document_.global(node));
  RESHARD_TRY(Charge(node, 2 * name.size()));
  const std::size_t dot = name.rfind('.');
  const std::string pickle = std::string(kProtocol2) +
                             fmt::format("c{}\n{}\n.", name.substr(0, dot), name.substr(dot + 1));
  const ByteSpan bytes = AsBytes(pickle);
  return Value(Opaque{name, Bytes(bytes.begin(), bytes.end())});
}

Result<Value> SavedValues::Read(NodeId node, std::size_t depth) {
  if (depth > kMaxNesting) {
    return MakeError(ErrorCode::kUnsupported, pickle::kDepth,
                     fmt::format("byte {}: a value is nested deeper than {} levels",
                                 document_.offset(node), kMaxNesting));
  }
  RESHARD_TRY(Charge(node, sizeof(Value)));
  switch (document_.kind(node)) {
    case Kind::kNone:
      return Value();
    case Kind::kBool:
      return Value(document_.AsBool(node));
    case Kind::kInt:
      return Value(document_.AsInt(node));
    case Kind::kLongInt:
      return ReadLongInt(node);
    case Kind::kFloat:
      return Value(document_.AsFloat(node));
    case Kind::kText:
    case Kind::kLongText:
      return ReadText(node);
    case Kind::kBytes: {
      RESHARD_TRY_ASSIGN(Bytes bytes, Load(node));
      return Value(std::move(bytes));
    }
    case Kind::kTuple:
    case Kind::kList:
    case Kind::kSet:
      return ReadList(document_.items(node), depth);
    case Kind::kDict:
      return ReadMap(document_.items(node), depth);
    case Kind::kGlobal:
      return ReadName(node);
    case Kind::kPersistent:
      return Value(Opaque{"torch.storage", {}});
    case Kind::kObject:
      return ReadObject(node, depth);
  }
  return Value();
}

Result<Bytes> SavedValues::Load(NodeId node) {
  const ByteRange range = document_.InSource(node);
  if (range.size > kMaxObjectBytes) {
    return MakeError(ErrorCode::kUnsupported, pickle::kLimit,
                     fmt::format("byte {}: a value of {} bytes, more than {}",
                                 document_.offset(node), range.size, kMaxObjectBytes));
  }
  RESHARD_TRY(Charge(node, range.size));
  Bytes bytes(range.size);
  RESHARD_TRY(source_.ReadAt(range.offset, bytes));
  return bytes;
}

/// A pickle of its own: what the value is, though no 64 bits hold it.
Result<Value> SavedValues::ReadLongInt(NodeId node) {
  RESHARD_TRY_ASSIGN(const Bytes number, Load(node));
  Opaque opaque{"int", {std::byte{0x80}, std::byte{2}, std::byte{0x8b}}};  // PROTO 2, LONG4
  AppendLittle(opaque.bytes, static_cast<std::uint32_t>(number.size()));
  opaque.bytes.insert(opaque.bytes.end(), number.begin(), number.end());
  opaque.bytes.push_back(std::byte{'.'});
  return Value(std::move(opaque));
}

Result<Value> SavedValues::ReadText(NodeId node) {
  if (document_.kind(node) == Kind::kText) {
    RESHARD_TRY(Charge(node, document_.Text(node).size()));
    return Value(std::string(document_.Text(node)));
  }
  RESHARD_TRY_ASSIGN(const Bytes bytes, Load(node));
  if (!IsUtf8(AsText(bytes))) {
    return MakeError(ErrorCode::kCorruption, pickle::kBadString,
                     fmt::format("byte {}: a text is no valid UTF-8", document_.offset(node)));
  }
  return Value(std::string(AsText(bytes)));
}

Result<Value> SavedValues::ReadList(std::span<const NodeId> items, std::size_t depth) {
  Value::List list;
  list.reserve(items.size());
  for (const NodeId item : items) {
    RESHARD_TRY_ASSIGN(Value value, Read(item, depth + 1));
    list.push_back(std::move(value));
  }
  return Value(std::move(list));
}

Result<Value> SavedValues::ReadMap(std::span<const NodeId> entries, std::size_t depth) {
  Value::Map map;
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
    const NodeId key = entries[i];
    std::optional<MapKey> map_key;
    if (document_.kind(key) == Kind::kText) {
      RESHARD_TRY(Charge(key, document_.Text(key).size()));
      map_key = std::string(document_.Text(key));
    } else if (document_.kind(key) == Kind::kInt) {
      map_key = document_.AsInt(key);
    } else {
      // A key of another kind cannot be told from others here: the dict becomes pairs.
      return ReadList(entries, depth);
    }
    RESHARD_TRY_ASSIGN(Value value, Read(entries[i + 1], depth + 1));
    map.emplace_back(std::move(*map_key), std::move(value));
  }
  return Value(std::move(map));
}

bool SavedValues::HoldsTensors(NodeId node) {
  if (holds_tensors_[node] != 0) {
    return holds_tensors_[node] == 2;
  }
  const auto any = [this](std::span<const NodeId> nodes) {
    return std::any_of(nodes.begin(), nodes.end(), [this](NodeId n) { return HoldsTensors(n); });
  };
  bool holds = false;
  switch (document_.kind(node)) {
    case Kind::kTuple:
    case Kind::kList:
    case Kind::kSet:
    case Kind::kDict:
      holds = any(document_.items(node));
      break;
    case Kind::kObject:
      holds = IsTensor(document_, node) || any(document_.object_items(node)) ||
              HoldsTensors(document_.args(node)) ||
              (document_.state(node) != pickle::kNoNode && HoldsTensors(document_.state(node)));
      break;
    default:
      break;
  }
  holds_tensors_[node] = holds ? 2 : 1;
  return holds;
}

Result<Value> SavedValues::ReadObject(NodeId node, std::size_t depth) {
  if (IsTensor(document_, node)) {
    Tensor tensor;
    tensor.shards.emplace_back();
    tensor.shards[0].owner = Remember(node);
    return Value(std::move(tensor));
  }
  const std::span<const NodeId> args = document_.items(document_.args(node));
  switch (document_.callable(node)) {
    case kOrderedDict:
    case kDefaultDict:
      return ReadMap(document_.object_items(node), depth);
    case kSize:
    case kSetType:
      return args.size() == 1 ? Read(args[0], depth + 1) : ReadUnknown(node, depth);
    case kEncodeText:
    case kBytesType:
      return ReadEncoded(node, args);
    default:
      return ReadUnknown(node, depth);
  }
}

Result<Value> SavedValues::ReadEncoded(NodeId node, std::span<const NodeId> args) {
  if (args.empty()) {
    return Value(Bytes());
  }
  const Kind kind = document_.kind(args[0]);
  if (kind != Kind::kText && kind != Kind::kLongText) {
    return Value(Opaque{NameOf(document_.callable(node)), {}});
  }
  RESHARD_TRY_ASSIGN(const Bytes text, Load(args[0]));
  Bytes bytes;  // one for each character, which are at most U+00FF
  bytes.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto first = std::to_integer<unsigned>(text[i]);
    const unsigned second = i + 1 < text.size() ? std::to_integer<unsigned>(text[i + 1]) : 0U;
    if (first < 0x80) {
      bytes.push_back(text[i]);
    } else if ((first == 0xc2 || first == 0xc3) && (second & 0xc0U) == 0x80) {
      bytes.push_back(static_cast<std::byte>((first & 3U) << 6 | (second & 0x3fU)));
      ++i;
    } else {
      return MakeError(ErrorCode::kCorruption, pickle::kBadString,
                       fmt::format("byte {}: a text that stands for bytes holds a character above "
                                   "U+00FF",
                                   document_.offset(node)));
    }
  }
  return Value(std::move(bytes));
}

/// An object of a class that is not known: opaque, or, when tensors are in it, what it would set.
Result<Value> SavedValues::ReadUnknown(NodeId node, std::size_t depth) {
  const std::string name = NameOf(document_.callable(node));
  if (!HoldsTensors(node)) {
    return Value(Opaque{name, {}});
  }
  const std::string note = fmt::format(
      "tensors lie in a value of the class {}, which is not known: it is read as a dict", name);
  if (std::find(notes_.begin(), notes_.end(), note) == notes_.end()) {
    notes_.push_back(note);
  }
  const NodeId state = document_.state(node);
  const std::span<const NodeId> items = document_.object_items(node);
  if (!items.empty() && items.size() % 2 == 0) {
    return ReadMap(items, depth);
  }
  return Read(state != pickle::kNoNode && HoldsTensors(state) ? state : document_.args(node),
              depth + 1);
}

}  // namespace reshard::torch
