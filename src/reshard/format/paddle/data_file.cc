#include "reshard/format/paddle/data_file.h"

#include <fmt/format.h>

#include <unordered_map>

#include "reshard/format/paddle/data_file_reader_internal.h"
#include "reshard/format/paddle/plain_values_internal.h"
#include "reshard/format/safetensors/header.h"

namespace reshard::paddle {
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::kNoNode;
using pickle::NodeId;

class Reader {
 public:
  Reader(const Document& document, ByteSource& source)
      : document_(document), source_(source), values_(document, source) {}

  Result<PickledFile> Read();

 private:
  Status ReadTopEntry(NodeId key, NodeId value);
  Status Walk(NodeId node, Path& path);
  Status WalkEntries(std::span<const NodeId> entries, Path& path);
  Status WalkElements(NodeId node, Path& path);
  Status AddArray(NodeId node, const Path& path);
  Status AddSplit(NodeId key, NodeId value);
  Result<std::size_t> SegmentOf(const Payload& payload);
  NodeId ArrayIn(NodeId node) const;
  bool HasArray(NodeId node);
  bool HasArrayBelow(NodeId node);
  void Place();

  const Document& document_;
  ByteSource& source_;
  PlainValues values_;
  PickledFile out_;
  std::unordered_map<NodeId, std::size_t> segment_of_;  // by the node of the payload
  std::vector<std::size_t> array_segments_;             // per array
  std::unordered_map<NodeId, bool> has_array_;
};

/// The array that a node is or, as paddle.save writes a tensor outside of a state dict, names:
/// (name, array), or tuple((name, array)) as a call.
NodeId Reader::ArrayIn(NodeId node) const {
  if (IsArray(document_, node)) {
    return node;
  }
  if (document_.kind(node) == Kind::kObject && document_.callable(node) == kTupleType) {
    const std::span<const NodeId> args = document_.items(document_.args(node));
    return args.size() == 1 ? ArrayIn(args[0]) : kNoNode;
  }
  if (document_.kind(node) != Kind::kTuple || document_.items(node).size() != 2) {
    return kNoNode;
  }
  const std::span<const NodeId> items = document_.items(node);
  return document_.kind(items[0]) == Kind::kText && IsArray(document_, items[1]) ? items[1]
                                                                                 : kNoNode;
}

bool Reader::HasArrayBelow(NodeId node) {
  std::span<const NodeId> children;
  switch (document_.kind(node)) {
    case Kind::kTuple:
    case Kind::kList:
    case Kind::kDict:
      children = document_.items(node);
      break;
    case Kind::kObject:
      children = document_.object_items(node);
      break;
    default:
      return false;
  }
  for (const NodeId child : children) {
    if (HasArray(child)) {
      return true;
    }
  }
  return false;
}

/// Recursion ends at pickle::kMaxDepth.
bool Reader::HasArray(NodeId node) {
  if (ArrayIn(node) != kNoNode) {
    return true;
  }
  const auto known = has_array_.find(node);
  if (known != has_array_.end()) {
    return known->second;
  }
  const bool has = HasArrayBelow(node);
  has_array_[node] = has;
  return has;
}

Result<std::size_t> Reader::SegmentOf(const Payload& payload) {
  const auto [found, is_new] = segment_of_.try_emplace(payload.node, out_.segments.size());
  if (is_new) {
    RESHARD_TRY_ASSIGN(Segment segment, MeasurePayload(source_, payload));
    segment.decoded_begin = out_.file.decoded_bytes;
    out_.file.decoded_bytes += segment.decoded_size;  // at most the file's size
    out_.segments.push_back(std::move(segment));
  }
  return found->second;
}

Status Reader::AddArray(NodeId node, const Path& path) {
  RESHARD_TRY(values_.Charge(node, 128 + 32 * path.size()));
  RESHARD_TRY_ASSIGN(NumpyArray array, ReadArray(document_, node));
  RESHARD_TRY(values_.Charge(node, 8 * array.shape.size()));
  RESHARD_TRY_ASSIGN(const std::size_t segment, SegmentOf(array.payload));
  const std::uint64_t needed = NumBytes(array.shape, array.dtype);
  if (out_.segments[segment].decoded_size != needed) {
    return BadArray(document_, node,
                    fmt::format("array '{}' of {} elements {} has {} bytes, not {}", FlatKey(path),
                                Info(array.dtype).name, ToString(array.shape),
                                out_.segments[segment].decoded_size, needed));
  }
  if (out_.segments[segment].text) {
    out_.file.encoding = FileEncoding::kPickleText;
  }
  out_.file.arrays.push_back(
      {path, array.dtype, std::move(array.shape), array.order, array.payload.source});
  array_segments_.push_back(segment);
  return OkStatus();
}

Status Reader::WalkEntries(std::span<const NodeId> entries, Path& path) {
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
    RESHARD_TRY_ASSIGN(const MapKey key, values_.Key(entries[i]));
    path.push_back(std::visit([](const auto& part) { return PathPart(part); }, key));
    RESHARD_TRY(Walk(entries[i + 1], path));
    path.pop_back();
  }
  return OkStatus();
}

Status Reader::WalkElements(NodeId node, Path& path) {
  const std::span<const NodeId> items = document_.items(node);
  for (std::size_t i = 0; i < items.size(); ++i) {
    path.emplace_back(ListIndex{i});
    RESHARD_TRY(Walk(items[i], path));
    path.pop_back();
  }
  return OkStatus();
}

/// Recursion ends at kMaxNesting.
Status Reader::Walk(NodeId node, Path& path) {
  if (path.size() > kMaxNesting) {
    return MakeError(ErrorCode::kUnsupported, pickle::kDepth,
                     fmt::format("byte {}: '{}' is nested deeper than {} levels",
                                 document_.offset(node), FlatKey(path), kMaxNesting));
  }
  if (const NodeId array = ArrayIn(node); array != kNoNode) {
    return AddArray(array, path);
  }
  if (document_.kind(node) == Kind::kDict && !document_.items(node).empty()) {
    return WalkEntries(document_.items(node), path);
  }
  if (document_.kind(node) == Kind::kObject && document_.callable(node) == kOrderedDict &&
      !document_.object_items(node).empty()) {
    return WalkEntries(document_.object_items(node), path);
  }
  const bool list = document_.kind(node) == Kind::kList || document_.kind(node) == Kind::kTuple;
  if (list && HasArray(node)) {
    return WalkElements(node, path);
  }
  RESHARD_TRY_ASSIGN(Value value, values_.Read(node, path.size()));
  out_.file.objects.emplace_back(path, std::move(value));
  return OkStatus();
}

Status Reader::AddSplit(NodeId key, NodeId value) {
  const NodeId shape = document_.kind(value) == Kind::kDict ? document_.Find(value, "OriginShape")
                                                            : kNoNode;
  const NodeId parts =
      document_.kind(value) == Kind::kDict ? document_.Find(value, "slices") : kNoNode;
  if (document_.kind(key) != Kind::kText || shape == kNoNode || parts == kNoNode) {
    return BadArray(document_, value, "a split tensor without key, shape or parts");
  }
  SplitArray split;
  split.key = document_.Text(key);
  RESHARD_TRY_ASSIGN(split.shape, ReadShape(document_, shape));
  RESHARD_TRY_ASSIGN(const Value names, values_.Read(parts, 1));
  const Value::List* list = names.get_if<Value::List>();
  for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
    const std::string* name = (*list)[i].get_if<std::string>();
    if (name == nullptr) {
      return BadArray(document_, parts, fmt::format("the parts of '{}' are no texts", split.key));
    }
    split.parts.push_back(*name);
  }
  if (split.parts.empty()) {
    return BadArray(document_, parts, fmt::format("'{}' has no parts", split.key));
  }
  out_.file.splits.push_back(std::move(split));
  return OkStatus();
}

Status Reader::ReadTopEntry(NodeId key, NodeId value) {
  const bool is_text = document_.kind(key) == Kind::kText;
  if (is_text && document_.Text(key) == kNameTableKey && document_.kind(value) == Kind::kDict) {
    RESHARD_TRY_ASSIGN(out_.file.name_table, values_.Read(value, 1));
    return OkStatus();
  }
  if (is_text && document_.Text(key) == kSplitKey && document_.kind(value) == Kind::kDict) {
    const std::span<const NodeId> entries = document_.items(value);
    for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
      RESHARD_TRY(AddSplit(entries[i], entries[i + 1]));
    }
    return OkStatus();
  }
  Path path;
  const NodeId entry[] = {key, value};
  return WalkEntries(entry, path);
}

/// Gives arrays of an encoded file their place in the decoded arrays.
void Reader::Place() {
  if (out_.file.encoding == FileEncoding::kRaw) {
    out_.file.decoded_bytes = 0;
    return;
  }
  for (std::size_t i = 0; i < out_.file.arrays.size(); ++i) {
    const Segment& segment = out_.segments[array_segments_[i]];
    out_.file.arrays[i].bytes = {segment.decoded_begin, segment.decoded_size};
  }
}

Result<PickledFile> Reader::Read() {
  const NodeId root = document_.root();
  const bool ordered =
      document_.kind(root) == Kind::kObject && document_.callable(root) == kOrderedDict;
  if (document_.kind(root) != Kind::kDict && !ordered) {
    return BadArray(document_, root, "the file holds no dict");
  }
  const std::span<const NodeId> entries =
      ordered ? document_.object_items(root) : document_.items(root);
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
    RESHARD_TRY(ReadTopEntry(entries[i], entries[i + 1]));
  }
  Place();
  return std::move(out_);
}

Result<DataFile> ReadSafetensors(ByteSource& source) {
  RESHARD_TRY_ASSIGN(safetensors::Header header, safetensors::ReadHeader(source));
  DataFile file;
  file.safetensors = true;
  for (safetensors::Entry& entry : header.entries) {
    // Older writers had no tag for bfloat16; Paddle has no uint16.
    const DType dtype = entry.dtype == DType::kUint16 ? DType::kBfloat16 : entry.dtype;
    file.arrays.push_back({Path{PathPart(std::move(entry.name))}, dtype, std::move(entry.shape),
                           ChunkOrder::kRowMajor, entry.bytes});
  }
  return file;
}

/// Pickles begin with PROTO and a number from 2 to 5, which a safetensors length can do too; but
/// then its byte 8 begins JSON, and that of a pickle never does.
Result<bool> IsSafetensors(ByteSource& source) {
  std::byte first[9] = {};
  const std::uint64_t size = std::min<std::uint64_t>(sizeof(first), source.size());
  RESHARD_TRY(source.ReadAt(0, MutableByteSpan(first).first(size)));
  const char c = static_cast<char>(first[8]);
  return c == '{' || (first[0] != std::byte{0x80} && (c == ' ' || c == '\n' || c == '\t'));
}

class DecodedSource final : public ByteSource {
 public:
  DecodedSource(ByteSource& file, std::vector<Segment> segments, std::uint64_t size)
      : file_(file), segments_(std::move(segments)), size_(size) {}

  std::uint64_t size() const override { return size_; }

  Status ReadAt(std::uint64_t offset, MutableByteSpan out) override;

 private:
  ByteSource& file_;
  const std::vector<Segment> segments_;
  const std::uint64_t size_;
};

Status DecodedSource::ReadAt(std::uint64_t offset, MutableByteSpan out) {
  if (offset > size_ || out.size() > size_ - offset) {
    return MakeError(ErrorCode::kCorruption, "FILE_TRUNCATED",
                     fmt::format("the decoded arrays end at byte {}, before {}", size_,
                                 offset + out.size()));
  }
  auto segment = std::partition_point(segments_.begin(), segments_.end(), [&](const Segment& s) {
    return s.decoded_begin + s.decoded_size <= offset;
  });
  while (!out.empty()) {
    const std::uint64_t within = offset - segment->decoded_begin;
    const std::uint64_t size = std::min<std::uint64_t>(out.size(), segment->decoded_size - within);
    RESHARD_TRY(ReadSegment(file_, *segment, within, out.first(size)));
    out = out.subspan(size);
    offset += size;
    ++segment;
  }
  return OkStatus();
}

}  // namespace

Result<PickledFile> ReadPickledFile(ByteSource& source) {
  RESHARD_TRY_ASSIGN(const pickle::Parsed parsed,
                     pickle::Parse(source, {.globals = ArrayGlobals()}));
  return Reader(parsed.document, source).Read();
}

Result<DataFile> ReadDataFile(ByteSource& source) {
  RESHARD_TRY_ASSIGN(const bool is_safetensors, IsSafetensors(source));
  if (is_safetensors) {
    return ReadSafetensors(source);
  }
  RESHARD_TRY_ASSIGN(PickledFile pickled, ReadPickledFile(source));
  return std::move(pickled.file);
}

Result<std::unique_ptr<ByteSource>> DecodePickleText(ByteSource& file) {
  RESHARD_TRY_ASSIGN(PickledFile pickled, ReadPickledFile(file));
  return std::unique_ptr<ByteSource>(std::make_unique<DecodedSource>(
      file, std::move(pickled.segments), pickled.file.decoded_bytes));
}

}  // namespace reshard::paddle
