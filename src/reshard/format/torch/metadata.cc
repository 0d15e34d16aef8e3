#include "reshard/format/torch/metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "reshard/format/text_index_internal.h"
#include "reshard/format/torch/tensor_pickle.h"

namespace reshard::torch {
namespace {

using pickle::Document;
using pickle::GlobalRule;
using pickle::Kind;
using pickle::kNoNode;
using pickle::NodeId;

enum Class : std::uint16_t {
  kMetadata = kFirstFreeGlobal,
  kTensorStorage,
  kBytesStorage,
  kChunk,
  kProperties,
  kIndex,
  kStorageInfo,
  kPassedOver,  ///< What may stand in fields that are not read.
};

constexpr std::string_view kMemoryFormat = "_MEM_FORMAT_ENCODING";  // before 2.3 without '_'
constexpr std::string_view kZstd = "stream.zstd/1";

/// Fields that are read.
enum class Field : std::uint8_t {
  kStateDictMetadata,
  kPlannerData,
  kStorageData,
  kProperties,
  kSize,
  kChunks,
  kOffsets,
  kSizes,
  kFqn,
  kOffset,
  kIndex,
  kRelativePath,
  kLength,
  kTransforms,
  kDtype,
  kCount,
};

constexpr std::array<std::string_view, static_cast<std::size_t>(Field::kCount)> kFieldNames = {
    "state_dict_metadata",
    "planner_data",
    "storage_data",
    "properties",
    "size",
    "chunks",
    "offsets",
    "sizes",
    "fqn",
    "offset",
    "index",
    "relative_path",
    "length",
    "transform_descriptors",
    "dtype",
};

constexpr std::uint64_t kFreeMemory = 64ULL << 20;
constexpr std::uint64_t kExpansion = 8;
constexpr std::uint64_t kLargestOffset = (1ULL << 63) - 1;
constexpr std::int64_t kMostListElements = 1 << 20;

void AddClasses(std::vector<GlobalRule>& rules, std::string_view module,
                std::string_view files_module) {
  constexpr std::uint8_t kObject = pickle::kNewObject | pickle::kBuild;
  constexpr std::uint8_t kEnum = pickle::kReduce;
  rules.insert(rules.end(), {
                                {module, "Metadata", kMetadata, kObject},
                                {module, "TensorStorageMetadata", kTensorStorage, kObject},
                                {module, "BytesStorageMetadata", kBytesStorage, kObject},
                                {module, "ChunkStorageMetadata", kChunk, kObject},
                                {module, "TensorProperties", kProperties, kObject},
                                {module, "MetadataIndex", kIndex, kObject},
                                {module, "StorageMeta", kPassedOver, kObject},
                                {module, kMemoryFormat, kPassedOver, kEnum},
                                // Python 3.11 pickles an enum as getattr(class, name). A name here
                                // as everywhere: nothing is looked up.
                                {"builtins", "getattr", kPassedOver, pickle::kReduce},
                                {files_module, "_StorageInfo", kStorageInfo, kObject},
                            });
}

std::vector<GlobalRule> MakeMetadataGlobals() {
  constexpr std::uint8_t kObject = pickle::kNewObject | pickle::kBuild;
  constexpr std::uint8_t kPath = pickle::kReduce;
  constexpr std::string_view kSharded = "torch.distributed._shard.sharded_tensor.metadata";
  constexpr std::string_view kMegatron = "megatron.core.dist_checkpointing.strategies.torch";
  std::vector<GlobalRule> rules;
  AddClasses(rules, "torch.distributed.checkpoint.metadata",
             "torch.distributed.checkpoint.filesystem");
  AddClasses(rules, "torch.distributed._shard.checkpoint.metadata",  // torch 1.13
             "torch.distributed._shard.checkpoint.filesystem");
  rules.insert(rules.end(), {
                                {kSharded, "TensorProperties", kProperties, kObject},
                                {kSharded, kMemoryFormat.substr(1), kPassedOver, kPath},
                                {"torch.serialization", "_get_layout", kPassedOver, kPath},
                                {kMegatron, "MCoreMetadata", kMetadata, kObject},
                                {kMegatron, "MCoreSavePlan", kPassedOver, kObject},
                            });
  for (const std::string_view module : {"pathlib", "pathlib._local"}) {
    for (const std::string_view name :
         {"PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"}) {
      rules.push_back({module, name, kPassedOver, kPath});
    }
  }
  const std::span<const GlobalRule> tensors = TensorGlobals();
  rules.insert(rules.end(), tensors.begin(), tensors.end());
  return rules;
}

std::span<const GlobalRule> MetadataGlobals() {
  static const std::vector<GlobalRule> rules = MakeMetadataGlobals();
  return rules;
}

/// What malloc takes for so many numbers.
constexpr std::uint64_t HeapBytes(std::uint64_t numbers) {
  return numbers == 0 ? 0 : std::max<std::uint64_t>(32, (8 * numbers + 8 + 15) / 16 * 16);
}

/// The fields that an object has, kNoNode for the others.
struct Fields {
  std::array<NodeId, static_cast<std::size_t>(Field::kCount)> nodes;

  NodeId operator[](Field field) const { return nodes[static_cast<std::size_t>(field)]; }
};

/// An entry of storage_data for which no chunk was found at once.
struct Unplaced {
  std::uint32_t tensor = 0;
  Shape offset;
  RecordPlace place;
  NodeId node = kNoNode;
};

class Decoder {
 public:
  Decoder(const Document& document, std::uint64_t source_bytes)
      : document_(document), memory_left_(kFreeMemory + kExpansion * source_bytes) {}

  Result<Metadata> Decode();

 private:
  static constexpr std::uint8_t kUnseen = 0xff;
  static constexpr std::uint8_t kUnknown = 0xfe;
  static constexpr std::uint32_t kBytesEntry = 1U << 31;  // in numbers of index_

  tl::unexpected<Error> Bad(NodeId node, std::string_view what,
                            ErrorCode code = ErrorCode::kCorruption) const;
  Status Charge(NodeId node, std::uint64_t bytes);
  Status ChargeDocument();
  std::uint8_t FieldOf(NodeId key);
  Result<Fields> ReadFields(NodeId object, Class cls, std::string_view what);
  Result<NodeId> Required(const Fields& fields, Field field, NodeId object) const;
  Result<std::string_view> Text(NodeId node, std::string_view what) const;
  Result<std::uint64_t> Number(NodeId node, std::string_view what) const;
  Status ReadNumbers(NodeId node, std::string_view what, Shape& out) const;
  Result<DType> ReadDType(NodeId properties, std::string_view key);

  Status ReadEntries(NodeId dict);
  Status ReadTensor(NodeId key, NodeId object);
  Status ReadChunk(NodeId object, MetadataTensor& tensor);
  Status ReadStorage(NodeId dict);
  Status ReadStorageEntry(NodeId index, NodeId info);
  Result<RecordPlace> ReadPlace(NodeId object);
  Result<bool> ReadTransforms(NodeId node) const;
  Result<std::uint32_t> FileNumber(NodeId name);
  Status PlaceChunk(std::uint32_t tensor, const Fields& fields, NodeId node,
                    const RecordPlace& place);
  Status PlaceOthers();
  Status CheckPlaced(NodeId storage) const;
  Status ReadPaths(NodeId dict);
  std::optional<Path> ReadPath(std::string_view key, NodeId node) const;

  const Document& document_;
  Metadata out_;
  std::vector<std::uint8_t> field_of_;  // by the node of a key
  std::uint64_t memory_left_;
  TextIndex index_;                        // tensors, and values with kBytesEntry
  std::vector<std::vector<bool>> placed_;  // per tensor and chunk
  std::vector<bool> bytes_placed_;
  std::vector<Unplaced> unplaced_;
  std::map<std::string_view, std::uint32_t> file_of_;
  std::pair<NodeId, std::uint32_t> last_file_ = {kNoNode, 0};
  Shape scratch_;
};

tl::unexpected<Error> Decoder::Bad(NodeId node, std::string_view what, ErrorCode code) const {
  return MakeError(code, kBadMetadata, fmt::format("byte {}: {}", document_.offset(node), what));
}

Status Decoder::Charge(NodeId node, std::uint64_t bytes) {
  if (bytes > memory_left_) {
    return MakeError(ErrorCode::kCorruption, pickle::kLimit,
                     fmt::format("byte {}: shared parts of the metadata expand to more than {} "
                                 "times its size",
                                 document_.offset(node), kExpansion));
  }
  memory_left_ -= bytes;
  return OkStatus();
}

/// What is there while the metadata is made of it.
Status Decoder::ChargeDocument() {
  RESHARD_TRY(Charge(document_.root(), document_.memory() + document_.num_nodes()));
  field_of_.resize(document_.num_nodes(), kUnseen);
  return OkStatus();
}

std::uint8_t Decoder::FieldOf(NodeId key) {
  std::uint8_t& field = field_of_[key];
  if (field == kUnseen) {
    field = kUnknown;
    const auto* const found =
        document_.kind(key) == Kind::kText
            ? std::find(kFieldNames.begin(), kFieldNames.end(), document_.Text(key))
            : kFieldNames.end();
    if (found != kFieldNames.end()) {
      field = static_cast<std::uint8_t>(found - kFieldNames.begin());
    }
  }
  return field;
}

Result<Fields> Decoder::ReadFields(NodeId object, Class cls, std::string_view what) {
  if (document_.kind(object) != Kind::kObject || document_.callable(object) != cls ||
      document_.state(object) == kNoNode ||
      document_.kind(document_.state(object)) != Kind::kDict) {
    return Bad(object, fmt::format("this is no {} object", what));
  }
  Fields fields{};
  fields.nodes.fill(kNoNode);
  const std::span<const NodeId> items = document_.items(document_.state(object));
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    const std::uint8_t field = FieldOf(items[i]);
    if (field != kUnknown && document_.kind(items[i + 1]) != Kind::kNone) {
      fields.nodes[field] = items[i + 1];
    }
  }
  return fields;
}

Result<NodeId> Decoder::Required(const Fields& fields, Field field, NodeId object) const {
  if (fields[field] == kNoNode) {
    return Bad(object,
               fmt::format("an object without {}", kFieldNames[static_cast<std::size_t>(field)]));
  }
  return fields[field];
}

Result<std::string_view> Decoder::Text(NodeId node, std::string_view what) const {
  if (document_.kind(node) != Kind::kText) {
    return Bad(node,
               fmt::format("{} is no text of at most {} bytes", what, pickle::kMaxInlineText));
  }
  return document_.Text(node);
}

Result<std::uint64_t> Decoder::Number(NodeId node, std::string_view what) const {
  if (document_.kind(node) != Kind::kInt || document_.AsInt(node) < 0) {
    return Bad(node, fmt::format("{} is no number from 0 on", what));
  }
  return static_cast<std::uint64_t>(document_.AsInt(node));
}

/// A torch.Size, or what stands for one.
Status Decoder::ReadNumbers(NodeId node, std::string_view what, Shape& out) const {
  if (document_.kind(node) == Kind::kObject && document_.callable(node) == kSize &&
      document_.items(document_.args(node)).size() == 1) {
    node = document_.items(document_.args(node))[0];
  }
  if (document_.kind(node) != Kind::kTuple && document_.kind(node) != Kind::kList) {
    return Bad(node, fmt::format("{} is no torch.Size", what));
  }
  const std::span<const NodeId> items = document_.items(node);
  if (items.size() > kMaxAxes) {
    return Bad(node, fmt::format("{} has {} numbers, more than {}", what, items.size(), kMaxAxes));
  }
  out.resize(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (document_.kind(items[i]) != Kind::kInt || document_.AsInt(items[i]) < 0) {
      return Bad(node, fmt::format("{} holds something that is no size", what));
    }
    out[i] = static_cast<std::uint64_t>(document_.AsInt(items[i]));
  }
  return OkStatus();
}

/// The state of TensorProperties: a tuple of five or more that begins with the dtype, or a dict.
Result<DType> Decoder::ReadDType(NodeId properties, std::string_view key) {
  const bool object = document_.kind(properties) == Kind::kObject &&
                      document_.callable(properties) == kProperties &&
                      document_.state(properties) != kNoNode;
  NodeId node = kNoNode;
  if (object && document_.kind(document_.state(properties)) == Kind::kTuple &&
      document_.items(document_.state(properties)).size() >= 5) {
    node = document_.items(document_.state(properties))[0];
  } else if (object && document_.kind(document_.state(properties)) == Kind::kDict) {
    node = document_.Find(document_.state(properties), "dtype");
  }
  const std::optional<DType> dtype =
      node == kNoNode ? std::nullopt : DTypeOfGlobal(document_, node);
  if (!dtype) {
    return Bad(properties, fmt::format("the properties of tensor '{}' name no dtype", key));
  }
  return *dtype;
}

Status Decoder::ReadChunk(NodeId object, MetadataTensor& tensor) {
  RESHARD_TRY_ASSIGN(const Fields fields, ReadFields(object, kChunk, "ChunkStorageMetadata"));
  RESHARD_TRY_ASSIGN(const NodeId offsets, Required(fields, Field::kOffsets, object));
  RESHARD_TRY_ASSIGN(const NodeId sizes, Required(fields, Field::kSizes, object));
  RESHARD_TRY(Charge(object, 2 * HeapBytes(tensor.shape.size())));
  MetadataChunk& chunk = tensor.chunks.emplace_back();
  RESHARD_TRY(ReadNumbers(offsets, "offsets", chunk.box.offset));
  RESHARD_TRY(ReadNumbers(sizes, "sizes", chunk.box.extent));
  if (const Status status = CheckBox(chunk.box, tensor.shape, tensor.dtype); !status.ok()) {
    return Bad(object, fmt::format("tensor '{}': {}", tensor.key, status.error().message));
  }
  return OkStatus();
}

Status Decoder::ReadTensor(NodeId key, NodeId object) {
  RESHARD_TRY_ASSIGN(const Fields fields,
                     ReadFields(object, kTensorStorage, "TensorStorageMetadata"));
  RESHARD_TRY_ASSIGN(const NodeId size, Required(fields, Field::kSize, object));
  RESHARD_TRY_ASSIGN(const NodeId chunks, Required(fields, Field::kChunks, object));
  RESHARD_TRY_ASSIGN(const NodeId properties, Required(fields, Field::kProperties, object));
  RESHARD_TRY(Charge(key, 2 * document_.Text(key).size() + 96));
  MetadataTensor& tensor = out_.tensors.emplace_back();
  tensor.key = document_.Text(key);
  RESHARD_TRY_ASSIGN(tensor.dtype, ReadDType(properties, tensor.key));
  RESHARD_TRY(ReadNumbers(size, "size", tensor.shape));
  if (const Status status = CheckShape(tensor.shape, tensor.dtype); !status.ok()) {
    return MakeError(ErrorCode::kCorruption, status.error().reason,
                     fmt::format("byte {}: tensor '{}': {}", document_.offset(object), tensor.key,
                                 status.error().message));
  }
  if (document_.kind(chunks) != Kind::kList && document_.kind(chunks) != Kind::kTuple) {
    return Bad(chunks, fmt::format("the chunks of tensor '{}' are no list", tensor.key));
  }
  const std::span<const NodeId> items = document_.items(chunks);
  RESHARD_TRY(Charge(chunks, items.size() * sizeof(MetadataChunk) + items.size() / 8));
  tensor.chunks.reserve(items.size());
  for (const NodeId item : items) {
    RESHARD_TRY(ReadChunk(item, tensor));
  }
  return OkStatus();
}

Status Decoder::ReadEntries(NodeId dict) {
  if (document_.kind(dict) != Kind::kDict) {
    return Bad(dict, "state_dict_metadata is no dict");
  }
  const std::span<const NodeId> items = document_.items(dict);
  RESHARD_TRY(
      Charge(dict, items.size() / 2 * (sizeof(MetadataTensor) + sizeof(std::vector<bool>) + 32)));
  index_.Reserve(items.size() / 2);
  out_.tensors.reserve(items.size() / 2);
  placed_.reserve(items.size() / 2);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    RESHARD_TRY_ASSIGN(const std::string_view key, Text(items[i], "a key"));
    const NodeId value = items[i + 1];
    if (key.empty()) {
      return Bad(items[i], "an entry has an empty key");
    }
    if (document_.kind(value) == Kind::kObject && document_.callable(value) == kBytesStorage) {
      RESHARD_TRY(Charge(items[i], 2 * sizeof(MetadataBytes) + key.size() + 32));
      index_.Add(key, kBytesEntry | static_cast<std::uint32_t>(out_.bytes.size()));
      out_.bytes.push_back({std::string(key), std::nullopt, {}});
      continue;
    }
    index_.Add(key, static_cast<std::uint32_t>(out_.tensors.size()));
    RESHARD_TRY(ReadTensor(items[i], value));
    placed_.emplace_back(out_.tensors.back().chunks.size());
  }
  bytes_placed_.resize(out_.bytes.size());
  index_.Sort();
  return OkStatus();
}

Result<std::uint32_t> Decoder::FileNumber(NodeId name) {
  if (name == last_file_.first) {
    return last_file_.second;
  }
  RESHARD_TRY_ASSIGN(const std::string_view text, Text(name, "relative_path"));
  const auto [found, is_new] =
      file_of_.try_emplace(text, static_cast<std::uint32_t>(out_.files.size()));
  if (is_new) {
    RESHARD_TRY(Charge(name, 128 + text.size()));
    out_.files.emplace_back(text);
  }
  last_file_ = {name, found->second};
  return found->second;
}

/// Whether the record is compressed.
Result<bool> Decoder::ReadTransforms(NodeId node) const {
  if (node == kNoNode) {
    return false;
  }
  if (document_.kind(node) != Kind::kList && document_.kind(node) != Kind::kTuple) {
    return Bad(node, "transform_descriptors is no list");
  }
  const std::span<const NodeId> items = document_.items(node);
  if (items.empty()) {
    return false;
  }
  RESHARD_TRY_ASSIGN(const std::string_view name, Text(items[0], "a transform"));
  if (items.size() != 1 || name != kZstd) {
    return Bad(node,
               fmt::format("records are stored through '{}'{}; this reader knows '{}' alone",
                           name.substr(0, 80), items.size() > 1 ? " and others" : "", kZstd),
               ErrorCode::kUnsupported);
  }
  return true;
}

Result<RecordPlace> Decoder::ReadPlace(NodeId object) {
  RESHARD_TRY_ASSIGN(const Fields fields, ReadFields(object, kStorageInfo, "_StorageInfo"));
  RESHARD_TRY_ASSIGN(const NodeId path, Required(fields, Field::kRelativePath, object));
  RESHARD_TRY_ASSIGN(const NodeId offset, Required(fields, Field::kOffset, object));
  RESHARD_TRY_ASSIGN(const NodeId length, Required(fields, Field::kLength, object));
  RecordPlace place;
  RESHARD_TRY_ASSIGN(place.file, FileNumber(path));
  RESHARD_TRY_ASSIGN(place.bytes.offset, Number(offset, "a record's offset"));
  RESHARD_TRY_ASSIGN(place.bytes.size, Number(length, "a record's length"));
  RESHARD_TRY_ASSIGN(place.zstd, ReadTransforms(fields[Field::kTransforms]));
  if (place.bytes.size > kLargestOffset - place.bytes.offset) {
    return Bad(object, "offset and length of a record wrap");
  }
  return place;
}

/// `index` says which chunk is meant, mostly; the offset decides.
Status Decoder::PlaceChunk(std::uint32_t tensor, const Fields& fields, NodeId node,
                           const RecordPlace& place) {
  const std::string& key = out_.tensors[tensor].key;
  if (fields[Field::kOffset] == kNoNode) {
    return Bad(node, fmt::format("storage_data has an entry of tensor '{}' without offset", key));
  }
  RESHARD_TRY(ReadNumbers(fields[Field::kOffset], "offset", scratch_));
  std::vector<MetadataChunk>& chunks = out_.tensors[tensor].chunks;
  const NodeId hint = fields[Field::kIndex];
  if (hint != kNoNode && document_.kind(hint) == Kind::kInt && document_.AsInt(hint) >= 0 &&
      static_cast<std::uint64_t>(document_.AsInt(hint)) < chunks.size()) {
    const auto at = static_cast<std::size_t>(document_.AsInt(hint));
    if (chunks[at].box.offset == scratch_ && !placed_[tensor][at]) {
      chunks[at].place = place;
      placed_[tensor][at] = true;
      return OkStatus();
    }
  }
  RESHARD_TRY(Charge(node, 2 * sizeof(Unplaced) + HeapBytes(scratch_.size())));  // it is sorted
  unplaced_.push_back({tensor, scratch_, place, node});
  return OkStatus();
}

Status Decoder::ReadStorageEntry(NodeId index, NodeId info) {
  RESHARD_TRY_ASSIGN(const Fields fields, ReadFields(index, kIndex, "MetadataIndex"));
  RESHARD_TRY_ASSIGN(const NodeId name, Required(fields, Field::kFqn, index));
  RESHARD_TRY_ASSIGN(const std::string_view key, Text(name, "fqn"));
  RESHARD_TRY_ASSIGN(const RecordPlace place, ReadPlace(info));
  const std::optional<std::uint32_t> found = index_.Find(key);
  if (!found) {
    return OkStatus();  // torch does not look at it either
  }
  if ((*found & kBytesEntry) == 0) {
    return PlaceChunk(*found, fields, index, place);
  }
  const std::uint32_t number = *found & ~kBytesEntry;
  if (bytes_placed_[number]) {
    return Bad(index, fmt::format("'{}' has two records", key));
  }
  bytes_placed_[number] = true;
  out_.bytes[number].place = place;
  return OkStatus();
}

/// Entries whose `index` did not help, by their offsets.
Status Decoder::PlaceOthers() {
  const auto before = [](const Unplaced& a, const Unplaced& b) {
    return a.tensor != b.tensor ? a.tensor < b.tensor : a.offset < b.offset;
  };
  std::stable_sort(unplaced_.begin(), unplaced_.end(), before);
  for (auto begin = unplaced_.begin(); begin != unplaced_.end();) {
    const std::uint32_t tensor = begin->tensor;
    const auto end = std::find_if(begin, unplaced_.end(),
                                  [tensor](const Unplaced& u) { return u.tensor != tensor; });
    std::map<Shape, std::size_t> chunk_of;
    const std::vector<MetadataChunk>& chunks = out_.tensors[tensor].chunks;
    const std::uint64_t memory =
        chunks.size() * (96 + HeapBytes(out_.tensors[tensor].shape.size()));
    RESHARD_TRY(Charge(begin->node, memory));
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const auto [at, is_new] = chunk_of.try_emplace(chunks[i].box.offset, i);
      if (!is_new && !placed_[tensor][i]) {
        at->second = i;
      }
    }
    for (; begin != end; ++begin) {
      const auto at = chunk_of.find(begin->offset);
      if (at == chunk_of.end()) {
        continue;  // of no chunk: torch does not look at it either
      }
      if (placed_[tensor][at->second]) {
        return Bad(begin->node, fmt::format("tensor '{}' has two records at offset {}",
                                            out_.tensors[tensor].key, ToString(begin->offset)));
      }
      placed_[tensor][at->second] = true;
      out_.tensors[tensor].chunks[at->second].place = begin->place;
    }
    memory_left_ += memory;
  }
  return OkStatus();
}

Status Decoder::CheckPlaced(NodeId storage) const {
  for (std::size_t t = 0; t < out_.tensors.size(); ++t) {
    const auto missing = std::find(placed_[t].begin(), placed_[t].end(), false);
    if (missing != placed_[t].end()) {
      const auto chunk = static_cast<std::size_t>(missing - placed_[t].begin());
      return Bad(storage,
                 fmt::format("storage_data names no record for chunk {} of tensor '{}'",
                             ToString(out_.tensors[t].chunks[chunk].box), out_.tensors[t].key));
    }
  }
  for (std::size_t b = 0; b < out_.bytes.size(); ++b) {
    if (!bytes_placed_[b]) {
      return Bad(storage, fmt::format("storage_data names no record for '{}'", out_.bytes[b].key));
    }
  }
  return OkStatus();
}

Status Decoder::ReadStorage(NodeId dict) {
  if (document_.kind(dict) != Kind::kDict) {
    return Bad(dict, "storage_data is no dict");
  }
  const std::span<const NodeId> items = document_.items(dict);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    RESHARD_TRY(ReadStorageEntry(items[i], items[i + 1]));
  }
  RESHARD_TRY(PlaceOthers());
  return CheckPlaced(dict);
}

/// A path that gives the key; integers are positions in lists. Anything else is no path.
std::optional<Path> Decoder::ReadPath(std::string_view key, NodeId node) const {
  if (document_.kind(node) != Kind::kTuple && document_.kind(node) != Kind::kList) {
    return std::nullopt;
  }
  const std::span<const NodeId> parts = document_.items(node);
  if (parts.empty() || parts.size() > kMaxNesting) {
    return std::nullopt;
  }
  Path path;
  path.reserve(parts.size());
  std::size_t bytes = 0;
  for (const NodeId part : parts) {
    if (document_.kind(part) == Kind::kText &&
        (bytes += document_.Text(part).size()) <= key.size()) {
      path.emplace_back(std::string(document_.Text(part)));
    } else if (document_.kind(part) == Kind::kInt && document_.AsInt(part) >= 0 &&
               document_.AsInt(part) < kMostListElements && !path.empty()) {
      path.emplace_back(ListIndex{static_cast<std::uint64_t>(document_.AsInt(part))});
    } else {
      return std::nullopt;
    }
  }
  return FlatKey(path) == key ? std::optional(std::move(path)) : std::nullopt;
}

Status Decoder::ReadPaths(NodeId dict) {
  if (dict == kNoNode || document_.kind(dict) != Kind::kDict) {
    return OkStatus();  // left out, or empty, where flattening was off
  }
  const std::span<const NodeId> items = document_.items(dict);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    if (document_.kind(items[i]) != Kind::kText) {
      continue;
    }
    const std::string_view key = document_.Text(items[i]);
    const std::optional<std::uint32_t> found = index_.Find(key);
    if (!found) {
      continue;
    }
    std::optional<Path> path = ReadPath(key, items[i + 1]);
    RESHARD_TRY(Charge(items[i], path ? 2 * sizeof(PathPart) * path->size() + 2 * key.size() : 0));
    if ((*found & kBytesEntry) != 0) {
      out_.bytes[*found & ~kBytesEntry].path = std::move(path);
    } else {
      out_.tensors[*found].path = std::move(path);
    }
  }
  return OkStatus();
}

Result<Metadata> Decoder::Decode() {
  const NodeId root = document_.root();
  RESHARD_TRY(ChargeDocument());
  RESHARD_TRY_ASSIGN(const Fields fields, ReadFields(root, kMetadata, "Metadata"));
  RESHARD_TRY_ASSIGN(const NodeId entries, Required(fields, Field::kStateDictMetadata, root));
  RESHARD_TRY(ReadEntries(entries));
  const NodeId storage = fields[Field::kStorageData];
  if (storage != kNoNode) {
    RESHARD_TRY(ReadStorage(storage));
  } else {
    RESHARD_TRY(CheckPlaced(root));
  }
  RESHARD_TRY(ReadPaths(fields[Field::kPlannerData]));
  return std::move(out_);
}

}  // namespace

Result<Metadata> DecodeMetadata(ByteSource& source) {
  RESHARD_TRY_ASSIGN(const pickle::Parsed parsed,
                     pickle::Parse(source, {.globals = MetadataGlobals()}));
  return Decoder(parsed.document, source.size()).Decode();
}

}  // namespace reshard::torch
