// Saving in PyTorch's DCP format. docs/format/torch_dcp.md, "What we write".

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "reshard/base/check.h"
#include "reshard/base/utf8.h"
#include "reshard/catalog/cbor.h"
#include "reshard/engine/foreign_save.h"
#include "reshard/engine/torch_files.h"
#include "reshard/format/native/names.h"
#include "reshard/format/torch/metadata.h"
#include "reshard/format/torch/names.h"
#include "reshard/format/torch/writer.h"

namespace reshard {
namespace {

/// Names that no checkpoint that we could replace has: of other formats, and of DCP's variants with
/// a metadata file per rank or data files of other names.
bool IsForeign(std::string_view name) {
  return name.ends_with(".distcp") || name.ends_with(".metadata") ||
         name == "model.safetensors.index.json" || name == "model.safetensors" ||
         native::ParseName(name).has_value();
}

/// What one name says of the directory.
void LookAt(const std::string& text, DirectoryView& view) {
  const std::optional<torch::Name> name = torch::ParseName(text);
  if (!name || name->kind == torch::NameKind::kRankMetadata) {
    if (view.foreign_name.empty() && IsForeign(text)) {
      view.foreign_name = text;
    }
    return;
  }
  if (name->kind == torch::NameKind::kTorchTemp) {  // stays behind after a crash
    return;
  }
  SnapshotNames& names = view.ids[0];
  names.committed = names.committed || name->kind == torch::NameKind::kMetadata;
  names.last_attempt = std::max(names.last_attempt.value_or(0), name->attempt);
}

/// Why a tensor cannot be stored; nothing when it can.
std::optional<std::string> WhyNot(const TensorDescription& tensor, int release) {
  if (!torch::HasDType(tensor.dtype, release)) {
    return fmt::format("PyTorch {}.{} has no {}", release / 100, release % 100,
                       Info(tensor.dtype).name);
  }
  if (!IsUtf8(tensor.key)) {
    return "a key that is no UTF-8";
  }
  return std::nullopt;
}

std::optional<std::string> WhyNot(const ObjectDescription& object) {
  if (object.per_rank) {
    return "a value per rank";
  }
  if (!IsUtf8(object.key)) {
    return "a key that is no UTF-8";
  }
  const Result<Value> value = DecodeObject(object.value);
  RESHARD_CHECK(value.ok());  // it was just encoded
  return torch::WhyNoRecord(*value);
}

/// Chunks: the record stands around the payload.
std::vector<torch::MetadataChunk> ChunksOf(const Catalog& catalog, TensorId tensor) {
  std::vector<torch::MetadataChunk> chunks;
  chunks.reserve(catalog.num_chunks(tensor));
  for (std::size_t c = 0; c < catalog.num_chunks(tensor); ++c) {
    const Chunk chunk = catalog.chunk(tensor, c);
    torch::MetadataChunk& out = chunks.emplace_back();
    out.box = chunk.box.ToBox();
    const torch::EncodedTensor record =
        torch::EncodeTensorRecord(catalog.dtype(tensor), out.box.extent);
    out.place.file = chunk.file;
    out.place.bytes = {chunk.byte_offset - record.head.size(), record.size()};
  }
  return chunks;
}

/// The objects, which stand first in the coordinator's file.
Status AddObjects(const SaveOutcome& outcome, torch::Metadata& metadata) {
  RESHARD_TRY_ASSIGN(const std::vector<Bytes> records, TorchObjectRecords(outcome.objects));
  const std::string name =
      torch::DataFileName(outcome.info.coordinator_rank, 0, outcome.info.attempt);
  const auto file = std::find(metadata.files.begin(), metadata.files.end(), name);
  RESHARD_CHECK(records.empty() || file != metadata.files.end());
  torch::FileLayout layout;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const ObjectDescription& object = outcome.objects[i].object;
    torch::MetadataBytes& out = metadata.bytes.emplace_back();
    out.key = object.key;
    RESHARD_TRY_ASSIGN(out.path, DecodeStoredPath(object.key, object.path));
    out.place.file = static_cast<std::uint32_t>(file - metadata.files.begin());
    out.place.bytes = layout.AddObject(records[i].size());
  }
  return OkStatus();
}

class TorchFormat final : public ForeignSaveFormat {
 public:
  explicit TorchFormat(int release) : release_(release) {}

  std::optional<std::uint64_t> WantedId(std::optional<std::uint64_t> wanted) const override {
    return wanted.value_or(0);
  }

  Result<std::uint64_t> ChooseId(const DirectoryView& view, std::optional<std::uint64_t> wanted,
                                 bool overwrite, std::string_view place) const override {
    if (*wanted != 0) {
      return MakeError(ErrorCode::kInvalidArgument, "ONLY_ID_ZERO",
                       fmt::format("a directory in PyTorch's format is one snapshot, number 0, so "
                                   "it cannot be {}; give each snapshot a directory of its own",
                                   *wanted));
    }
    if (!view.foreign_name.empty()) {
      return MakeError(ErrorCode::kInvalidArgument, "FOREIGN_DIRECTORY",
                       fmt::format("{} holds '{}', which is not of PyTorch's format as we write "
                                   "it; save into a directory of its own",
                                   place, view.foreign_name));
    }
    const auto known = view.ids.find(0);
    if (known != view.ids.end() && known->second.committed && !overwrite) {
      return MakeError(ErrorCode::kAlreadyExists, "SNAPSHOT_EXISTS",
                       fmt::format("{} holds a PyTorch checkpoint; save into a directory of its "
                                   "own, or pass overwrite",
                                   place));
    }
    return 0;
  }

  std::vector<Unsupported> Restrict(StateDescription& description) const override {
    std::vector<Unsupported> out;
    const auto drop = [&out](const std::string& key, std::optional<std::string> why) {
      if (why) {
        out.push_back({key, std::move(*why)});
      }
      return why.has_value();
    };
    std::vector<TensorDescription> tensors;
    std::vector<std::optional<std::uint32_t>> kept;  // new number of each tensor
    for (TensorDescription& tensor : description.tensors) {
      const auto number = static_cast<std::uint32_t>(tensors.size());
      const bool dropped = drop(tensor.key, WhyNot(tensor, release_));
      kept.push_back(dropped ? std::nullopt : std::optional(number));
      if (!dropped) {
        tensor.same_as = kept[tensor.same_as].value_or(number);
        tensors.push_back(std::move(tensor));
      }
    }
    description.tensors = std::move(tensors);
    std::erase_if(description.objects, [&drop](const ObjectDescription& object) {
      return drop(object.key, WhyNot(object));
    });
    return out;
  }

  bool HoldsAliases() const override { return true; }

  bool IsLeftover(std::string_view name) const override {
    const std::optional<torch::Name> parsed = torch::ParseName(name);
    return parsed && parsed->kind != torch::NameKind::kMetadata &&
           parsed->kind != torch::NameKind::kRankMetadata;
  }

  std::uint64_t MinCutBytes(std::uint64_t wanted) const override { return wanted; }

  bool HasObjectFiles() const override { return true; }

  std::unique_ptr<RankFiles> NewFiles(Storage& storage, RankContent content) const override {
    return std::make_unique<TorchFiles>(storage, std::move(content));
  }

  std::string ClaimName(const SaveId& id) const override {
    return torch::TempMetadataName(id.attempt);
  }

  bool IsOlderFile(std::string_view name, const SaveId& id) const override {
    const std::optional<torch::Name> parsed = torch::ParseName(name);
    return parsed && parsed->kind == torch::NameKind::kData && parsed->attempt < id.attempt;
  }

 protected:
  ForeignRef RefOf(std::uint64_t /*unique_id*/) const override {
    return {"torch", std::string(torch::kMetadataName), 0};
  }

  void LookAtName(const std::string& name, DirectoryView& view) const override {
    LookAt(name, view);
  }

  std::string IndexClaimName(const SaveId& id) const override {
    return torch::TempIndexName(id.attempt);
  }

  bool HasEmptyTensors() const override { return true; }

  Result<Bytes> EncodeMetadata(const Catalog& catalog, const SaveOutcome& outcome) const override {
    torch::Metadata metadata;
    metadata.files = FileNames(catalog);
    metadata.tensors.reserve(catalog.num_tensors());
    for (TensorId t = 0; t < catalog.num_tensors(); ++t) {
      torch::MetadataTensor& tensor = metadata.tensors.emplace_back();
      const auto shape = catalog.shape(t);
      tensor.key = std::string(catalog.key(t));
      tensor.path = catalog.path(t);
      tensor.dtype = catalog.dtype(t);
      tensor.shape = Shape(shape.begin(), shape.end());
      tensor.chunks = ChunksOf(catalog, t);
    }
    RESHARD_TRY(AddObjects(outcome, metadata));
    return torch::EncodeMetadata(metadata);
  }

 private:
  int release_;
};

}  // namespace

Result<std::unique_ptr<SaveFormat>> TorchSaveFormat(std::optional<std::string_view> release) {
  int number = torch::kNewestRelease;
  if (release) {
    RESHARD_TRY_ASSIGN(number, torch::ParseRelease(*release));
  }
  return std::make_unique<TorchFormat>(number);
}

}  // namespace reshard
