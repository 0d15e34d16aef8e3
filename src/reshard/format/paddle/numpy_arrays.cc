#include <fmt/format.h>

#include <array>

#include "reshard/format/paddle/data_file.h"
#include "reshard/format/paddle/numpy_arrays_internal.h"

namespace reshard::paddle {
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::kNoNode;
using pickle::NodeId;

constexpr std::uint8_t kCall = pickle::kReduce;
constexpr std::uint8_t kCallAndBuild = pickle::kReduce | pickle::kBuild;
constexpr pickle::GlobalRule kGlobals[] = {
    {"numpy", "ndarray", kNdarray, pickle::kValueOnly},
    {"numpy", "dtype", kDtypeType, kCallAndBuild},
    {"numpy.core.multiarray", "_reconstruct", kReconstruct, kCallAndBuild},
    {"numpy._core.multiarray", "_reconstruct", kReconstruct, kCallAndBuild},
    {"numpy.core.numeric", "_frombuffer", kFromBuffer, kCall},
    {"numpy._core.numeric", "_frombuffer", kFromBuffer, kCall},
    {"numpy.core.multiarray", "scalar", kScalar, kCall},
    {"numpy._core.multiarray", "scalar", kScalar, kCall},
    {"_codecs", "encode", kEncodeText, kCall | pickle::kRawText},
    {"builtins", "bytes", kBytesType, kCall},
    {"__builtin__", "bytes", kBytesType, kCall},
    {"builtins", "tuple", kTupleType, kCall},
    {"__builtin__", "tuple", kTupleType, kCall},
    {"collections", "OrderedDict", kOrderedDict, kCall | pickle::kDictLike},
};

struct Code {
  std::string_view code;
  DType dtype;
};

// numpy's codes. Paddle keeps bfloat16 as uint16 and has no uint16 of its own.
constexpr Code kCodes[] = {
    {"f4", DType::kFloat32},   {"u2", DType::kBfloat16},   {"f2", DType::kFloat16},
    {"f8", DType::kFloat64},   {"i1", DType::kInt8},       {"i2", DType::kInt16},
    {"i4", DType::kInt32},     {"i8", DType::kInt64},      {"u1", DType::kUint8},
    {"u4", DType::kUint32},    {"u8", DType::kUint64},     {"b1", DType::kBool},
    {"c8", DType::kComplex64}, {"c16", DType::kComplex128}};

bool IsCall(const Document& document, NodeId node, ArrayGlobal callable) {
  return document.kind(node) == Kind::kObject && document.callable(node) == callable;
}

/// The arguments of a call, at least `count` of them.
Result<std::span<const NodeId>> Args(const Document& document, NodeId node, std::size_t count) {
  const std::span<const NodeId> args = document.items(document.args(node));
  if (args.size() < count) {
    return BadArray(document, node, fmt::format("{} arguments, not {}", args.size(), count));
  }
  return args;
}

/// Whether these are the numbers below `count`, each once.
bool IsPermutation(const Shape& axes, std::size_t count) {
  std::vector<bool> seen(count);
  for (const std::uint64_t axis : axes) {
    if (axis >= count || seen[axis]) {
      return false;
    }
    seen[axis] = true;
  }
  return axes.size() == count;
}

/// Shape and dtype that agree with each other, in an order that matters only from two axes on.
Result<NumpyArray> Make(const Document& document, NodeId node, NodeId shape, NodeId dtype,
                        bool column_major, NodeId payload) {
  NumpyArray array;
  RESHARD_TRY_ASSIGN(array.dtype, ReadDtype(document, dtype));
  RESHARD_TRY_ASSIGN(array.shape, ReadShape(document, shape));
  if (Status status = CheckShape(array.shape, array.dtype); !status.ok()) {
    return BadArray(document, node, status.error().message);
  }
  const bool matters = column_major && array.shape.size() > 1;
  array.order = matters ? ChunkOrder::kColumnMajor : ChunkOrder::kRowMajor;
  RESHARD_TRY_ASSIGN(array.payload, ReadPayload(document, payload));
  return array;
}

Result<NumpyArray> ReadReconstructed(const Document& document, NodeId node) {
  const NodeId state = document.state(node);
  if (state == kNoNode || document.kind(state) != Kind::kTuple ||
      document.items(state).size() != 5) {
    return BadArray(document, node, "an array without a state of five parts");
  }
  const std::span<const NodeId> parts =
      document.items(state);  // version, shape, dtype, order, bytes
  if (document.kind(parts[3]) != Kind::kBool) {
    return BadArray(document, node, "the order of an array is no boolean");
  }
  return Make(document, node, parts[1], parts[2], document.AsBool(parts[3]), parts[4]);
}

/// From numpy 2.3 on: the shape in memory order, 'K', and which axis of it each axis is.
Result<NumpyArray> ReadPermuted(const Document& document, NodeId node) {
  RESHARD_TRY_ASSIGN(const std::span<const NodeId> args, Args(document, node, 5));
  RESHARD_TRY_ASSIGN(NumpyArray array, Make(document, node, args[2], args[1], false, args[0]));
  RESHARD_TRY_ASSIGN(const Shape axes, ReadShape(document, args[4]));
  const bool is_k = document.kind(args[3]) == Kind::kText && document.Text(args[3]) == "K";
  std::vector<std::size_t> in_file(array.shape.size());
  Shape shape(array.shape.size());
  if (!is_k || !IsPermutation(axes, shape.size())) {
    return BadArray(document, node, "the order of an array's axes is none");
  }
  for (std::size_t a = 0; a < shape.size(); ++a) {
    shape[a] = array.shape[axes[a]];
    in_file[axes[a]] = a;
  }
  const std::optional<ChunkOrder> order = OrderOf(in_file);
  if (!order) {
    return BadArray(document, node,
                    fmt::format("an array of {} axes that are permuted in memory; save it through "
                                "numpy.ascontiguousarray",
                                shape.size()),
                    ErrorCode::kUnsupported);
  }
  array.shape = std::move(shape);
  array.order = *order;
  return array;
}

Result<NumpyArray> ReadFromBuffer(const Document& document, NodeId node) {
  if (document.items(document.args(node)).size() == 5) {
    return ReadPermuted(document, node);
  }
  RESHARD_TRY_ASSIGN(const std::span<const NodeId> args, Args(document, node, 4));
  const bool is_text = document.kind(args[3]) == Kind::kText;
  const std::string_view order = is_text ? document.Text(args[3]) : std::string_view();
  if (order != "C" && order != "F") {
    return BadArray(document, node, "the order of an array is neither C nor F");
  }
  return Make(document, node, args[2], args[1], order == "F", args[0]);
}

/// Calls visit(byte, source offset) for each character of a text until it returns false.
template <typename Visit>
Status ForEachByte(ByteSource& source, std::uint64_t at, std::uint64_t end, const Visit& visit) {
  Bytes buffer(std::min<std::uint64_t>(kCheckpointBytes, end - at));
  while (at < end) {
    const std::uint64_t size = std::min<std::uint64_t>(buffer.size(), end - at);
    RESHARD_TRY(source.ReadAt(at, MutableByteSpan(buffer).first(size)));
    std::uint64_t i = 0;
    while (i < size) {
      const auto first = std::to_integer<unsigned>(buffer[i]);
      const std::uint64_t length = first < 0x80 ? 1 : 2;
      if (i + length > size && at + size < end) {
        break;  // the rest of this character comes with the next read
      }
      const unsigned second =
          length == 2 && i + 1 < size ? std::to_integer<unsigned>(buffer[i + 1]) : 0U;
      if (length == 2 && ((first != 0xc2 && first != 0xc3) || (second & 0xc0U) != 0x80)) {
        return MakeError(ErrorCode::kCorruption, kBadArray,
                         fmt::format("byte {}: a text that stands for bytes holds a character "
                                     "above U+00FF",
                                     at + i));
      }
      const unsigned byte = length == 1 ? first : (first & 3U) << 6 | (second & 0x3fU);
      if (!visit(static_cast<std::byte>(byte), at + i)) {
        return OkStatus();
      }
      i += length;
    }
    at += i;
  }
  return OkStatus();
}

}  // namespace

Result<Shape> ReadShape(const Document& document, NodeId node) {
  if (document.kind(node) != Kind::kTuple && document.kind(node) != Kind::kList) {
    return BadArray(document, node, "a shape that is no tuple");
  }
  Shape shape;
  for (const NodeId item : document.items(node)) {
    if (document.kind(item) != Kind::kInt || document.AsInt(item) < 0 || shape.size() == kMaxAxes) {
      return BadArray(document, node, "a shape that holds no sizes, or too many");
    }
    shape.push_back(static_cast<std::uint64_t>(document.AsInt(item)));
  }
  return shape;
}

std::span<const pickle::GlobalRule> ArrayGlobals() { return kGlobals; }

tl::unexpected<Error> BadArray(const Document& document, NodeId node, std::string_view what,
                               ErrorCode code) {
  return MakeError(code, kBadArray, fmt::format("byte {}: {}", document.offset(node), what));
}

bool IsArray(const Document& document, NodeId node) {
  return IsCall(document, node, kReconstruct) || IsCall(document, node, kFromBuffer);
}

Result<NumpyArray> ReadArray(const Document& document, NodeId node) {
  return IsCall(document, node, kFromBuffer) ? ReadFromBuffer(document, node)
                                             : ReadReconstructed(document, node);
}

Result<Payload> ReadPayload(const Document& document, NodeId node) {
  if (document.kind(node) == Kind::kBytes) {
    return Payload{node, document.InSource(node), false};
  }
  if (IsCall(document, node, kBytesType) && document.items(document.args(node)).empty()) {
    return Payload{node, {document.offset(node), 0}, false};
  }
  if (IsCall(document, node, kEncodeText)) {
    RESHARD_TRY_ASSIGN(const std::span<const NodeId> args, Args(document, node, 2));
    const Kind kind = document.kind(args[0]);
    const bool latin1 = document.kind(args[1]) == Kind::kText &&
                        (document.Text(args[1]) == "latin1" || document.Text(args[1]) == "latin-1");
    if (latin1 && (kind == Kind::kText || kind == Kind::kLongText)) {
      return Payload{node, document.InSource(args[0]), true};
    }
  }
  return document.kind(node) == Kind::kList
             ? BadArray(document, node, "an array of Python objects", ErrorCode::kUnsupported)
             : BadArray(document, node, "the elements of an array are no bytes");
}

Result<DType> ReadDtype(const Document& document, NodeId node) {
  if (!IsCall(document, node, kDtypeType)) {
    return BadArray(document, node, "the dtype of an array is no numpy dtype");
  }
  RESHARD_TRY_ASSIGN(const std::span<const NodeId> args, Args(document, node, 1));
  const bool is_text = document.kind(args[0]) == Kind::kText;
  const std::string_view code = is_text ? document.Text(args[0]) : std::string_view();
  if (const NodeId state = document.state(node); state != kNoNode) {
    const bool tuple = document.kind(state) == Kind::kTuple && document.items(state).size() >= 2 &&
                       document.kind(document.items(state)[1]) == Kind::kText;
    const std::string_view order =
        tuple ? document.Text(document.items(state)[1]) : std::string_view();
    if (order != "<" && order != "|" && order != "=") {
      return BadArray(document, node, fmt::format("a dtype of byte order '{}'", order),
                      ErrorCode::kUnsupported);
    }
  }
  for (const Code& row : kCodes) {
    if (row.code == code) {
      return row.dtype;
    }
  }
  return BadArray(document, node, fmt::format("an array of the numpy dtype '{}'", code),
                  ErrorCode::kUnsupported);
}

Result<Segment> MeasurePayload(ByteSource& source, const Payload& payload) {
  Segment segment{payload.source, payload.text, 0, payload.source.size, {}};
  if (!payload.text) {
    return segment;
  }
  segment.decoded_size = 0;
  RESHARD_TRY(ForEachByte(source, payload.source.offset, payload.source.end(),
                          [&segment](std::byte /*byte*/, std::uint64_t at) {
                            if (segment.decoded_size++ % kCheckpointBytes == 0) {
                              segment.checkpoints.push_back(at);
                            }
                            return true;
                          }));
  return segment;
}

Status ReadSegment(ByteSource& source, const Segment& segment, std::uint64_t offset,
                   MutableByteSpan out) {
  if (out.empty()) {
    return OkStatus();
  }
  if (!segment.text) {
    return source.ReadAt(segment.source.offset + offset, out);
  }
  std::uint64_t skip = offset % kCheckpointBytes;
  std::size_t filled = 0;
  RESHARD_TRY(ForEachByte(source, segment.checkpoints[offset / kCheckpointBytes],
                          segment.source.end(), [&](std::byte byte, std::uint64_t /*at*/) {
                            if (skip > 0) {
                              --skip;
                              return true;
                            }
                            out[filled++] = byte;
                            return filled < out.size();
                          }));
  return filled == out.size() ? OkStatus()
                              : Status(MakeError(ErrorCode::kCorruption, "FILE_TRUNCATED",
                                                 "the file changed while it was read"));
}

}  // namespace reshard::paddle
