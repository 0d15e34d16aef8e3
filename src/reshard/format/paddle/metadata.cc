#include "reshard/format/paddle/metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "reshard/base/checked.h"
#include "reshard/format/paddle/metadata_pickle_internal.h"
#include "reshard/format/pickle/machine.h"
#include "reshard/format/text_index_internal.h"

namespace reshard::paddle {
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::kNoNode;
using pickle::NodeId;

enum Class : std::uint16_t { kMetadata = 1, kTensor, kIndex };

constexpr std::uint8_t kClassUses = pickle::kNewObject | pickle::kBuild;
constexpr pickle::GlobalRule kGlobals[] = {
    {kLegacyModule, kMetadataClass, kMetadata, kClassUses},
    {kLegacyModule, kTensorClass, kTensor, kClassUses},
    {kLegacyModule, kIndexClass, kIndex, kClassUses},
    {kFlexModule, kMetadataClass, kMetadata, kClassUses},
    {kFlexModule, kTensorClass, kTensor, kClassUses},
    {kFlexModule, kIndexClass, kIndex, kClassUses},
};

constexpr std::uint64_t kFreeMemory = 64ULL << 20;
constexpr std::uint64_t kLargestOffset = (1ULL << 63) - 1;

/// What malloc takes for so many numbers.
constexpr std::uint64_t HeapBytes(std::uint64_t numbers) {
  return numbers == 0 ? 0 : std::max<std::uint64_t>(32, (8 * numbers + 8 + 15) / 16 * 16);
}

/// The fields that an object has, kNoNode for the others.
struct Fields {
  std::array<NodeId, static_cast<std::size_t>(Field::kCount)> nodes;

  NodeId operator[](Field field) const { return nodes[static_cast<std::size_t>(field)]; }
};

/// A shard description of state_dict_metadata, by its nodes.
struct Description {
  NodeId offset = kNoNode;
  NodeId shape = kNoNode;
  std::optional<FlatRange> flat;
};

class Decoder {
 public:
  Decoder(const Document& document, std::uint64_t source_bytes)
      : document_(document), memory_left_(kFreeMemory + kExpansion * source_bytes) {}

  Result<Metadata> Decode();

 private:
  static constexpr std::uint8_t kUnseen = 0xff;
  static constexpr std::uint8_t kUnknown = 0xfe;

  tl::unexpected<Error> Bad(NodeId node, std::string_view what) const;
  Status Charge(NodeId node, std::uint64_t bytes);
  Status ChargeDocument();
  std::uint8_t FieldOf(NodeId key);
  Result<Fields> ReadFields(NodeId object, Class cls, std::string_view what);
  Result<std::span<const NodeId>> Sequence(NodeId node, std::string_view what) const;
  Result<NodeId> Required(const Fields& fields, Field field, NodeId object) const;
  Status CheckNumbers(NodeId node, std::string_view what) const;
  void Numbers(NodeId node, Shape& out) const;
  bool SameNumbers(NodeId a, NodeId b) const;
  Result<std::string_view> Text(NodeId node, std::string_view what) const;
  Result<std::optional<FlatRange>> ReadFlat(const Fields& fields, NodeId object) const;

  Status ReadTensors(NodeId dict);
  Status ReadDescription(NodeId object, MetadataTensor& tensor);
  Status ReadTensorFacts(const Fields& fields, NodeId object, MetadataTensor& tensor) const;
  Status ReadEntries(NodeId dict);
  Status ReadEntry(NodeId object, NodeId file_name);
  Result<std::uint32_t> FileNumber(NodeId name);
  Status ReadFlatMapping(NodeId dict);
  Result<Path> ReadPath(NodeId node);

  /// The description that an entry means, null when there is none. Errors: LIMIT.
  Result<const Description*> FindDescription(std::uint32_t tensor, const Description& wanted);
  bool Matches(const Description& wanted, const Description& have) const;
  std::vector<std::uint64_t> SortKey(const Description& description) const;

  const Document& document_;
  Metadata out_;
  std::vector<std::uint8_t> field_of_;  // by the node of a key
  std::uint64_t memory_left_;
  std::vector<Description> descriptions_;  // tensor by tensor
  std::vector<std::size_t> first_;         // per tensor, and one more
  std::vector<std::size_t> next_;          // per tensor: the description expected next
  TextIndex tensor_of_;
  std::map<std::string_view, std::uint32_t> file_of_;
  std::pair<NodeId, std::uint32_t> last_file_ = {kNoNode, 0};
  std::unordered_map<std::uint32_t, std::map<std::vector<std::uint64_t>, std::size_t>> sorted_;
  Shape offset_scratch_;
  Shape shape_scratch_;
};

tl::unexpected<Error> Decoder::Bad(NodeId node, std::string_view what) const {
  return MakeError(ErrorCode::kCorruption, kBadMetadata,
                   fmt::format("byte {}: {}", document_.offset(node), what));
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
    for (std::size_t i = 0; i < kFieldNames.size(); ++i) {
      if (document_.kind(key) == Kind::kText && document_.Text(key) == kFieldNames[i]) {
        field = static_cast<std::uint8_t>(i);
      }
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

Result<std::span<const NodeId>> Decoder::Sequence(NodeId node, std::string_view what) const {
  if (document_.kind(node) != Kind::kTuple && document_.kind(node) != Kind::kList) {
    return Bad(node, fmt::format("{} is neither a tuple nor a list", what));
  }
  return document_.items(node);
}

Status Decoder::CheckNumbers(NodeId node, std::string_view what) const {
  RESHARD_TRY_ASSIGN(const std::span<const NodeId> items, Sequence(node, what));
  if (items.size() > kMaxAxes) {
    return Bad(node, fmt::format("{} has {} numbers, more than {}", what, items.size(), kMaxAxes));
  }
  for (const NodeId item : items) {
    if (document_.kind(item) != Kind::kInt || document_.AsInt(item) < 0) {
      return Bad(node, fmt::format("{} holds something that is no size", what));
    }
  }
  return OkStatus();
}

void Decoder::Numbers(NodeId node, Shape& out) const {
  out.clear();
  for (const NodeId item : document_.items(node)) {
    out.push_back(static_cast<std::uint64_t>(document_.AsInt(item)));
  }
}

bool Decoder::SameNumbers(NodeId a, NodeId b) const {
  return a == b ||
         std::ranges::equal(document_.items(a), document_.items(b), [this](NodeId x, NodeId y) {
           return x == y || document_.AsInt(x) == document_.AsInt(y);
         });
}

Result<std::string_view> Decoder::Text(NodeId node, std::string_view what) const {
  if (document_.kind(node) != Kind::kText) {
    return Bad(node,
               fmt::format("{} is no text of at most {} bytes", what, pickle::kMaxInlineText));
  }
  return document_.Text(node);
}

Result<std::optional<FlatRange>> Decoder::ReadFlat(const Fields& fields, NodeId object) const {
  const NodeId flag = fields[Field::kIsFlattened];
  if (flag != kNoNode && document_.kind(flag) != Kind::kBool) {
    return Bad(flag, "is_flattened is no boolean");
  }
  if (flag == kNoNode || !document_.AsBool(flag)) {
    return std::optional<FlatRange>();
  }
  const NodeId range = fields[Field::kFlattenedRange];
  if (range == kNoNode) {
    return Bad(object, "a flattened piece has no flattened_range");
  }
  RESHARD_TRY(CheckNumbers(range, "flattened_range"));
  const std::span<const NodeId> items = document_.items(range);
  if (items.size() != 2 || document_.AsInt(items[0]) > document_.AsInt(items[1])) {
    return Bad(range, "flattened_range is no range");
  }
  return std::optional(FlatRange{static_cast<std::uint64_t>(document_.AsInt(items[0])),
                                 static_cast<std::uint64_t>(document_.AsInt(items[1]))});
}

Status Decoder::ReadTensorFacts(const Fields& fields, NodeId object, MetadataTensor& tensor) const {
  if (const NodeId node = fields[Field::kDtype]; node != kNoNode) {
    RESHARD_TRY_ASSIGN(const std::string_view name, Text(node, "dtype"));
    const Result<DType> dtype = DTypeFromName(name);
    if (!dtype.ok() || (tensor.dtype && *tensor.dtype != *dtype)) {
      return Bad(node, dtype.ok()
                           ? fmt::format("tensor '{}' has two dtypes", tensor.key)
                           : fmt::format("tensor '{}': no dtype is called '{}'", tensor.key, name));
    }
    tensor.dtype = *dtype;
  }
  if (const NodeId node = fields[Field::kGlobalShape]; node != kNoNode) {
    RESHARD_TRY(CheckNumbers(node, "global_shape"));
    Shape shape;
    Numbers(node, shape);
    if (tensor.shape && *tensor.shape != shape) {
      return Bad(object, fmt::format("tensor '{}' has two global shapes, {} and {}", tensor.key,
                                     ToString(*tensor.shape), ToString(shape)));
    }
    tensor.shape = std::move(shape);
  }
  return OkStatus();
}

Status Decoder::ReadDescription(NodeId object, MetadataTensor& tensor) {
  RESHARD_TRY(Charge(object, 2 * sizeof(Description) + sizeof(Piece)));  // they are moved
  RESHARD_TRY_ASSIGN(const Fields fields, ReadFields(object, kTensor, kTensorClass));
  Description out;
  RESHARD_TRY_ASSIGN(out.offset, Required(fields, Field::kGlobalOffset, object));
  RESHARD_TRY_ASSIGN(out.shape, Required(fields, Field::kLocalShape, object));
  RESHARD_TRY(CheckNumbers(out.offset, "global_offset"));
  RESHARD_TRY(CheckNumbers(out.shape, "local_shape"));
  RESHARD_TRY_ASSIGN(out.flat, ReadFlat(fields, object));
  RESHARD_TRY(ReadTensorFacts(fields, object, tensor));
  Numbers(out.offset, offset_scratch_);
  Numbers(out.shape, shape_scratch_);
  if (Status status = CheckShape(shape_scratch_, tensor.dtype.value_or(DType::kUint8));
      !status.ok()) {
    return MakeError(ErrorCode::kCorruption, status.error().reason,
                     fmt::format("byte {}: tensor '{}': {}", document_.offset(object), tensor.key,
                                 status.error().message));
  }
  const bool same_axes = offset_scratch_.size() == shape_scratch_.size();
  bool inside = same_axes;
  for (std::size_t a = 0; same_axes && a < shape_scratch_.size(); ++a) {
    inside = inside && offset_scratch_[a] <= kLargestOffset - shape_scratch_[a];
  }
  if (!inside || (out.flat && out.flat->end > NumElements(shape_scratch_))) {
    return Bad(object,
               fmt::format("tensor '{}': offset {}, shape {} and flattened range disagree",
                           tensor.key, ToString(offset_scratch_), ToString(shape_scratch_)));
  }
  descriptions_.push_back(out);
  return OkStatus();
}

Status Decoder::ReadTensors(NodeId dict) {
  if (document_.kind(dict) != Kind::kDict) {
    return Bad(dict, "state_dict_metadata is no dict");
  }
  const std::span<const NodeId> items = document_.items(dict);
  RESHARD_TRY(Charge(dict, items.size() / 2 * (sizeof(MetadataTensor) + 32)));
  out_.tensors.reserve(items.size() / 2);
  tensor_of_.Reserve(items.size() / 2);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    RESHARD_TRY_ASSIGN(const std::string_view key, Text(items[i], "a tensor's key"));
    RESHARD_TRY_ASSIGN(const std::span<const NodeId> shards,
                       Sequence(items[i + 1], "a tensor's list of shards"));
    RESHARD_TRY(Charge(items[i], 2 * key.size() + 160));
    first_.push_back(descriptions_.size());
    next_.push_back(descriptions_.size());
    tensor_of_.Add(key, static_cast<std::uint32_t>(out_.tensors.size()));
    MetadataTensor& tensor = out_.tensors.emplace_back();
    tensor.key = key;
    for (const NodeId shard : shards) {
      RESHARD_TRY(ReadDescription(shard, tensor));
    }
    tensor.pieces.reserve(shards.size());
  }
  first_.push_back(descriptions_.size());
  tensor_of_.Sort();
  return OkStatus();
}

bool Decoder::Matches(const Description& wanted, const Description& have) const {
  return wanted.flat == have.flat && SameNumbers(wanted.offset, have.offset) &&
         (wanted.shape == kNoNode || SameNumbers(wanted.shape, have.shape));
}

std::vector<std::uint64_t> Decoder::SortKey(const Description& description) const {
  std::vector<std::uint64_t> key = {
      description.flat ? 1U : 0U, description.flat.value_or(FlatRange{}).begin,
      description.flat.value_or(FlatRange{}).end, document_.items(description.offset).size()};
  for (const NodeId list : {description.offset, description.shape}) {
    for (const NodeId item : list == kNoNode ? std::span<const NodeId>() : document_.items(list)) {
      key.push_back(static_cast<std::uint64_t>(document_.AsInt(item)));
    }
  }
  return key;
}

Result<const Description*> Decoder::FindDescription(std::uint32_t tensor,
                                                    const Description& wanted) {
  std::size_t& next = next_[tensor];
  if (next < first_[tensor + 1] && Matches(wanted, descriptions_[next])) {
    return &descriptions_[next++];
  }
  if (!sorted_.contains(tensor)) {
    for (std::size_t i = first_[tensor]; i < first_[tensor + 1]; ++i) {
      const std::size_t axes = document_.items(descriptions_[i].offset).size();
      RESHARD_TRY(Charge(descriptions_[i].offset, 96 + HeapBytes(4 + 2 * axes)));
    }
  }
  const auto [found, is_new] = sorted_.try_emplace(tensor);
  std::map<std::vector<std::uint64_t>, std::size_t>& sorted = found->second;
  for (std::size_t i = first_[tensor]; is_new && i < first_[tensor + 1]; ++i) {
    sorted.emplace(SortKey(descriptions_[i]), i);
  }
  // Without a shape the key is a prefix of those that may be meant.
  const auto at = sorted.lower_bound(SortKey(wanted));
  if (at == sorted.end() || !Matches(wanted, descriptions_[at->second])) {
    return nullptr;
  }
  next = at->second + 1;
  return &descriptions_[at->second];
}

Result<std::uint32_t> Decoder::FileNumber(NodeId name) {
  if (name == last_file_.first) {
    return last_file_.second;
  }
  RESHARD_TRY_ASSIGN(const std::string_view text, Text(name, "a file name"));
  const auto [found, is_new] =
      file_of_.try_emplace(text, static_cast<std::uint32_t>(out_.files.size()));
  if (is_new) {
    RESHARD_TRY(Charge(name, text.size() + 128));
    out_.files.emplace_back(text);
  }
  last_file_ = {name, found->second};
  return found->second;
}

Status Decoder::ReadEntry(NodeId object, NodeId file_name) {
  RESHARD_TRY_ASSIGN(const Fields fields, ReadFields(object, kIndex, kIndexClass));
  RESHARD_TRY_ASSIGN(const NodeId key_node, Required(fields, Field::kTensorKey, object));
  RESHARD_TRY_ASSIGN(const std::string_view key, Text(key_node, "tensor_key"));
  const std::optional<std::uint32_t> tensor = tensor_of_.Find(key);
  Description wanted{kNoNode, fields[Field::kLocalShape], std::nullopt};
  RESHARD_TRY_ASSIGN(wanted.offset, Required(fields, Field::kGlobalOffset, object));
  RESHARD_TRY(CheckNumbers(wanted.offset, "global_offset"));
  if (wanted.shape != kNoNode) {
    RESHARD_TRY(CheckNumbers(wanted.shape, "local_shape"));
  }
  RESHARD_TRY_ASSIGN(wanted.flat, ReadFlat(fields, object));
  const Description* have = nullptr;
  if (tensor) {
    RESHARD_TRY_ASSIGN(have, FindDescription(*tensor, wanted));
  }
  if (have == nullptr) {
    return Bad(object, fmt::format("storage_metadata names a piece of tensor '{}' that "
                                   "state_dict_metadata does not have",
                                   key));
  }
  Piece piece;
  Numbers(have->offset, piece.global_offset);
  Numbers(have->shape, piece.local_shape);
  piece.flat = have->flat;
  RESHARD_TRY_ASSIGN(piece.file, FileNumber(file_name));
  if (const NodeId replica = fields[Field::kReplicaId]; replica != kNoNode) {
    if (document_.kind(replica) != Kind::kInt || document_.AsInt(replica) < 0) {
      return Bad(object, fmt::format("tensor '{}': replica_id is no number", key));
    }
    piece.replica = static_cast<std::uint64_t>(document_.AsInt(replica));
  }
  const bool more = out_.tensors[*tensor].pieces.size() == out_.tensors[*tensor].pieces.capacity();
  RESHARD_TRY(Charge(object, 2 * HeapBytes(piece.local_shape.size())));
  RESHARD_TRY(
      Charge(object, more ? 2 * (out_.tensors[*tensor].pieces.size() + 1) * sizeof(Piece) : 0));
  out_.tensors[*tensor].pieces.push_back(std::move(piece));
  return OkStatus();
}

Status Decoder::ReadEntries(NodeId dict) {
  if (document_.kind(dict) != Kind::kDict) {
    return Bad(dict, "storage_metadata is no dict");
  }
  const std::span<const NodeId> items = document_.items(dict);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    RESHARD_TRY(ReadEntry(items[i], items[i + 1]));
  }
  return OkStatus();
}

Result<Path> Decoder::ReadPath(NodeId node) {
  RESHARD_TRY_ASSIGN(const std::span<const NodeId> parts, Sequence(node, "a path"));
  if (parts.empty() || parts.size() > kMaxNesting) {
    return Bad(node, fmt::format("a path of {} parts", parts.size()));
  }
  Path path;
  for (const NodeId part : parts) {
    RESHARD_TRY(Charge(node, 2 * sizeof(PathPart)));
    if (document_.kind(part) == Kind::kInt) {
      path.emplace_back(document_.AsInt(part));
      continue;
    }
    RESHARD_TRY_ASSIGN(const std::string_view text, Text(part, "a part of a path"));
    RESHARD_TRY(Charge(node, text.size()));
    path.emplace_back(std::string(text));
  }
  return path;
}

Status Decoder::ReadFlatMapping(NodeId dict) {
  if (dict == kNoNode) {
    return OkStatus();
  }
  if (document_.kind(dict) != Kind::kDict) {
    return Bad(dict, "flat_mapping is no dict");
  }
  out_.has_flat_mapping = true;
  const std::span<const NodeId> items = document_.items(dict);
  RESHARD_TRY(Charge(dict, items.size() / 2 * sizeof(out_.flat_mapping[0])));
  out_.flat_mapping.reserve(items.size() / 2);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    RESHARD_TRY_ASSIGN(const std::string_view key, Text(items[i], "a key of flat_mapping"));
    RESHARD_TRY_ASSIGN(Path path, ReadPath(items[i + 1]));
    out_.flat_mapping.emplace_back(std::string(key), std::move(path));
  }
  return OkStatus();
}

Result<Metadata> Decoder::Decode() {
  RESHARD_TRY(ChargeDocument());
  RESHARD_TRY_ASSIGN(const Fields fields, ReadFields(document_.root(), kMetadata, kMetadataClass));
  const NodeId root = document_.root();
  RESHARD_TRY_ASSIGN(const NodeId tensors, Required(fields, Field::kStateDictMetadata, root));
  RESHARD_TRY_ASSIGN(const NodeId entries, Required(fields, Field::kStorageMetadata, root));
  RESHARD_TRY(ReadTensors(tensors));
  RESHARD_TRY(ReadEntries(entries));
  RESHARD_TRY(ReadFlatMapping(fields[Field::kFlatMapping]));
  return std::move(out_);
}

}  // namespace

Result<Metadata> DecodeMetadata(ByteSource& source) {
  RESHARD_TRY_ASSIGN(const pickle::Parsed parsed, pickle::Parse(source, {.globals = kGlobals}));
  return Decoder(parsed.document, source.size()).Decode();
}

}  // namespace reshard::paddle
