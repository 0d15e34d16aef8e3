// Pickled plain values as Values.

#include <fmt/format.h>

#include "reshard/catalog/flatten.h"
#include "reshard/format/torch/record_internal.h"

namespace reshard::torch {
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::NodeId;

constexpr std::uint64_t kFreeMemory = std::uint64_t{1} << 20;

/// Converts nodes. A shared node is copied at each use, so that memory has a budget.
class Reader {
 public:
  Reader(const Document& document, ByteSource& source)
      : document_(document), source_(source), memory_left_(kFreeMemory + 16 * source.size()) {}

  /// A value that stands for nothing when `odd()` is not empty.
  Result<Value> Read(NodeId node, std::size_t depth);

  std::string& odd() { return odd_; }

 private:
  Status Charge(std::uint64_t bytes);
  Result<Value> ReadList(std::span<const NodeId> items, std::size_t depth);
  Result<Value> ReadMap(std::span<const NodeId> entries, std::size_t depth);
  Result<Value> ReadObject(NodeId node, std::size_t depth);
  Result<Value> ReadEncoded(NodeId node);
  Result<Bytes> Load(NodeId node);

  Value Odd(std::string_view name) {
    if (odd_.empty()) {
      odd_ = name;
    }
    return {};
  }

  const Document& document_;
  ByteSource& source_;
  std::uint64_t memory_left_;
  std::string odd_;
};

Status Reader::Charge(std::uint64_t bytes) {
  if (bytes > memory_left_) {
    return MakeError(ErrorCode::kCorruption, pickle::kLimit,
                     "shared parts of a value expand to far more than its size");
  }
  memory_left_ -= bytes;
  return OkStatus();
}

Result<Value> Reader::Read(NodeId node, std::size_t depth) {
  RESHARD_TRY(Charge(sizeof(Value)));
  if (depth > kMaxNesting - 2) {
    return Odd("object");
  }
  switch (document_.kind(node)) {
    case Kind::kNone:
      return Value();
    case Kind::kBool:
      return Value(document_.AsBool(node));
    case Kind::kInt:
      return Value(document_.AsInt(node));
    case Kind::kLongInt:
      return Odd("int");
    case Kind::kFloat:
      return Value(document_.AsFloat(node));
    case Kind::kText:
      RESHARD_TRY(Charge(document_.Text(node).size()));
      return Value(std::string(document_.Text(node)));
    case Kind::kBytes: {
      RESHARD_TRY_ASSIGN(Bytes bytes, Load(node));
      return Value(std::move(bytes));
    }
    case Kind::kTuple:
    case Kind::kList:
      return ReadList(document_.items(node), depth);
    case Kind::kDict:
      return ReadMap(document_.items(node), depth);
    case Kind::kObject:
      return ReadObject(node, depth);
    case Kind::kGlobal:
      return Odd(document_.global(node) >= pickle::kFirstUnknown
                     ? document_.UnknownName(document_.global(node))
                     : "torch.dtype");
    case Kind::kSet:
      return Odd("set");
    case Kind::kLongText:
      return Odd("str");
    case Kind::kPersistent:
      return Odd("torch.storage");
  }
  return Odd("object");
}

Result<Bytes> Reader::Load(NodeId node) {
  const ByteRange range = document_.InSource(node);
  RESHARD_TRY(Charge(range.size));
  Bytes bytes(range.size);
  RESHARD_TRY(source_.ReadAt(range.offset, bytes));
  return bytes;
}

Result<Value> Reader::ReadList(std::span<const NodeId> items, std::size_t depth) {
  Value::List list;
  for (const NodeId item : items) {
    RESHARD_TRY_ASSIGN(Value value, Read(item, depth + 1));
    list.push_back(std::move(value));
  }
  return Value(std::move(list));
}

Result<Value> Reader::ReadMap(std::span<const NodeId> entries, std::size_t depth) {
  Value::Map map;
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
    const NodeId key = entries[i];
    if (document_.kind(key) != Kind::kText && document_.kind(key) != Kind::kInt) {
      return Odd("dict");
    }
    MapKey map_key = document_.kind(key) == Kind::kInt ? MapKey(document_.AsInt(key))
                                                       : MapKey(std::string(document_.Text(key)));
    RESHARD_TRY(Charge(sizeof(MapKey)));
    RESHARD_TRY_ASSIGN(Value value, Read(entries[i + 1], depth + 1));
    map.emplace_back(std::move(map_key), std::move(value));
  }
  return Value(std::move(map));
}

/// `_codecs.encode(text, 'latin1')`: each character is a byte.
Result<Value> Reader::ReadEncoded(NodeId node) {
  const std::span<const NodeId> args = document_.items(document_.args(node));
  const bool good =
      args.size() == 2 &&
      (document_.kind(args[0]) == Kind::kText || document_.kind(args[0]) == Kind::kLongText) &&
      document_.kind(args[1]) == Kind::kText &&
      (document_.Text(args[1]) == "latin1" || document_.Text(args[1]) == "latin-1");
  if (!good) {
    return Odd("bytes");
  }
  RESHARD_TRY_ASSIGN(const Bytes text, Load(args[0]));
  Bytes bytes;
  bytes.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto first = std::to_integer<unsigned>(text[i]);
    const unsigned second = i + 1 < text.size() ? std::to_integer<unsigned>(text[i + 1]) : 0;
    if (first < 0x80) {
      bytes.push_back(text[i]);
    } else if ((first == 0xc2 || first == 0xc3) && (second & 0xc0) == 0x80) {
      bytes.push_back(static_cast<std::byte>((first & 3) << 6 | (second & 0x3f)));
      ++i;
    } else {
      return Odd("bytes");
    }
  }
  return Value(std::move(bytes));
}

Result<Value> Reader::ReadObject(NodeId node, std::size_t depth) {
  const std::uint16_t callable = document_.callable(node);
  if (callable >= pickle::kFirstUnknown) {
    return Odd(document_.UnknownName(callable));
  }
  switch (callable) {
    case kOrderedDict:
      if (document_.state(node) != pickle::kNoNode ||
          !document_.items(document_.args(node)).empty()) {
        return Odd("collections.OrderedDict");
      }
      return ReadMap(document_.object_items(node), depth);
    case kEncodeText:
      return ReadEncoded(node);
    case kBytesType:
      return document_.items(document_.args(node)).empty() ? Value(Bytes()) : Odd("bytes");
    case kSize:
      return Odd("torch.Size");
    default:
      return Odd("torch.Tensor");
  }
}

}  // namespace

Result<PlainValue> ReadPlain(const Document& document, ByteSource& source) {
  Reader reader(document, source);
  RESHARD_TRY_ASSIGN(Value value, reader.Read(document.root(), 0));
  return PlainValue{std::move(value), std::move(reader.odd())};
}

}  // namespace reshard::torch
