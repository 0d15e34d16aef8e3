#include "reshard/format/paddle/plain_values_internal.h"

#include <fmt/format.h>

#include <bit>

#include "reshard/catalog/flatten.h"
#include "reshard/format/paddle/numpy_arrays_internal.h"

namespace reshard::paddle {

using pickle::Kind;
using pickle::NodeId;

Status PlainValues::Charge(NodeId node, std::uint64_t bytes) {
  if (bytes > memory_left_) {
    return MakeError(ErrorCode::kCorruption, pickle::kLimit,
                     fmt::format("byte {}: shared parts of the file expand to far more than its "
                                 "size",
                                 document_.offset(node)));
  }
  memory_left_ -= bytes;
  return OkStatus();
}

Result<MapKey> PlainValues::Key(NodeId node) {
  if (document_.kind(node) == Kind::kInt) {
    return MapKey(document_.AsInt(node));
  }
  if (document_.kind(node) != Kind::kText) {
    return MakeError(ErrorCode::kUnsupported, pickle::kBadKey,
                     fmt::format("byte {}: a key is neither a text of at most {} bytes nor an "
                                 "integer",
                                 document_.offset(node), pickle::kMaxInlineText));
  }
  RESHARD_TRY(Charge(node, document_.Text(node).size()));
  return MapKey(std::string(document_.Text(node)));
}

Result<Value> PlainValues::Read(NodeId node, std::size_t depth) {
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
    case Kind::kFloat:
      return Value(document_.AsFloat(node));
    case Kind::kText:
      RESHARD_TRY(Charge(node, document_.Text(node).size()));
      return Value(std::string(document_.Text(node)));
    case Kind::kBytes:
      return ReadBytes(node);
    case Kind::kTuple:
    case Kind::kList:
      return ReadList(node, depth);
    case Kind::kDict:
      return ReadMap(document_.items(node), depth);
    case Kind::kObject:
      return ReadObject(node, depth);
    default:
      return BadArray(document_, node, "a value that is neither an array nor plain",
                      ErrorCode::kUnsupported);
  }
}

Result<Value> PlainValues::ReadList(NodeId node, std::size_t depth) {
  Value::List list;
  for (const NodeId item : document_.items(node)) {
    RESHARD_TRY_ASSIGN(Value value, Read(item, depth + 1));
    list.push_back(std::move(value));
  }
  return Value(std::move(list));
}

Result<Value> PlainValues::ReadMap(std::span<const NodeId> entries, std::size_t depth) {
  Value::Map map;
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
    RESHARD_TRY_ASSIGN(MapKey key, Key(entries[i]));
    RESHARD_TRY_ASSIGN(Value value, Read(entries[i + 1], depth + 1));
    map.emplace_back(std::move(key), std::move(value));
  }
  return Value(std::move(map));
}

Result<Bytes> PlainValues::Load(NodeId node, std::uint64_t limit) {
  RESHARD_TRY_ASSIGN(const Payload payload, ReadPayload(document_, node));
  RESHARD_TRY_ASSIGN(const Segment segment, MeasurePayload(source_, payload));
  if (segment.decoded_size > limit) {
    return BadArray(document_, node,
                    fmt::format("a value of {} bytes, more than {}", segment.decoded_size, limit),
                    ErrorCode::kUnsupported);
  }
  RESHARD_TRY(Charge(node, segment.decoded_size));
  Bytes bytes(segment.decoded_size);
  RESHARD_TRY(ReadSegment(source_, segment, 0, bytes));
  return bytes;
}

Result<Value> PlainValues::ReadBytes(NodeId node) {
  RESHARD_TRY_ASSIGN(Bytes bytes, Load(node, pickle::kMaxInlineText));
  return Value(std::move(bytes));
}

Result<Value> PlainValues::ReadScalar(NodeId node) {
  const std::span<const NodeId> args = document_.items(document_.args(node));
  if (args.size() != 2) {
    return BadArray(document_, node, "a numpy scalar without dtype or bytes");
  }
  RESHARD_TRY_ASSIGN(const DType dtype, ReadDtype(document_, args[0]));
  RESHARD_TRY_ASSIGN(const Bytes bytes, Load(args[1], 16));
  if (bytes.size() != Info(dtype).unit_bytes) {
    return BadArray(document_, node, "a numpy scalar whose bytes do not fit its dtype");
  }
  const std::byte* p = bytes.data();
  switch (dtype) {
    case DType::kBool:
      return Value(p[0] != std::byte{});
    case DType::kFloat64:
      return Value(LoadLittle<double>(p));
    case DType::kFloat32:
      return Value(static_cast<double>(LoadLittle<float>(p)));
    case DType::kInt64:
      return Value(LoadLittle<std::int64_t>(p));
    case DType::kInt32:
      return Value(LoadLittle<std::int32_t>(p));
    case DType::kInt16:
      return Value(LoadLittle<std::int16_t>(p));
    case DType::kInt8:
      return Value(LoadLittle<std::int8_t>(p));
    case DType::kUint8:
      return Value(LoadLittle<std::uint8_t>(p));
    default:
      return BadArray(document_, node, fmt::format("a numpy scalar of {}", Info(dtype).name),
                      ErrorCode::kUnsupported);
  }
}

Result<Value> PlainValues::ReadObject(NodeId node, std::size_t depth) {
  switch (document_.callable(node)) {
    case kOrderedDict:
      return ReadMap(document_.object_items(node), depth);
    case kScalar:
      return ReadScalar(node);
    case kEncodeText:
    case kBytesType:
      return ReadBytes(node);
    default:
      return BadArray(document_, node, "a value that is neither an array nor plain",
                      ErrorCode::kUnsupported);
  }
}

}  // namespace reshard::paddle
