// Saving in Paddle's format. docs/format/paddle.md, "What we write".

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "reshard/base/utf8.h"
#include "reshard/engine/foreign_save.h"
#include "reshard/engine/paddle_files.h"
#include "reshard/format/native/names.h"
#include "reshard/format/paddle/metadata.h"
#include "reshard/format/paddle/names.h"
#include "reshard/format/paddle/writer.h"

namespace reshard {
namespace {

constexpr std::string_view kPaddle = "paddle";

/// Names that no checkpoint of Paddle has but another format's does.
bool IsForeign(std::string_view name) {
  if (name.ends_with(".distcp")) {
    return name.starts_with("__");  // PyTorch's
  }
  return name.ends_with(".metadata") || name == "model.safetensors.index.json" ||
         name == "model.safetensors" || native::ParseName(name).has_value();
}

/// What one name says of the directory.
void LookAt(const std::string& text, DirectoryView& view) {
  const std::optional<paddle::Name> name = paddle::ParseName(text);
  if (!name) {
    if (view.foreign_name.empty() && IsForeign(text)) {
      view.foreign_name = text;
    }
    return;
  }
  if (name->kind == paddle::NameKind::kLock) {  // stays behind after a crash
    return;
  }
  SnapshotNames& names = view.ids[name->unique_id];
  names.committed = names.committed || name->kind == paddle::NameKind::kMetadata;
  names.last_attempt = std::max(names.last_attempt.value_or(0), name->attempt);
}

/// Whether Paddle, which compares the ends of names, takes one id for the other.
bool Clash(std::uint64_t a, std::uint64_t b) {
  const std::string x = std::to_string(a);
  const std::string y = std::to_string(b);
  return a != b && (x.ends_with(y) || y.ends_with(x));
}

/// Why a tensor cannot be stored; nothing when it can.
std::optional<std::string> WhyNot(const TensorDescription& tensor) {
  if (!paddle::NumpyCode(tensor.dtype)) {
    return fmt::format("Paddle has no {}", Info(tensor.dtype).name);
  }
  if (NumElements(tensor.shape) == 0) {
    return fmt::format("a tensor without elements, {}", ToString(tensor.shape));
  }
  if (tensor.shape.size() > paddle::kMaxArrayAxes) {
    return fmt::format("{} axes; numpy has at most {}", tensor.shape.size(), paddle::kMaxArrayAxes);
  }
  if (tensor.key == paddle::kNameTable || tensor.key == paddle::kSplitTable) {
    return "a name that Paddle gives a meaning of its own";
  }
  if (!IsUtf8(tensor.key)) {
    return "a key that is no UTF-8";
  }
  return std::nullopt;
}

/// The name table of a checkpoint that Paddle wrote, which its reader gives as objects. A new one
/// is written.
bool IsNameTable(const ObjectDescription& object) {
  return object.key == paddle::kNameTable ||
         object.key.starts_with(fmt::format("{}.", paddle::kNameTable));
}

/// The metadata of a catalog; `plan` has the tensors without elements, whose keys are all that
/// Paddle keeps of them.
Result<paddle::Metadata> MetadataOf(const Catalog& catalog, const SavePlan& plan) {
  paddle::Metadata metadata;
  metadata.files = FileNames(catalog);
  for (TensorId t = 0; t < catalog.num_tensors(); ++t) {
    paddle::MetadataTensor& tensor = metadata.tensors.emplace_back();
    const auto shape = catalog.shape(t);
    tensor.key = std::string(catalog.key(t));
    tensor.dtype = catalog.dtype(t);
    tensor.shape = Shape(shape.begin(), shape.end());
    for (std::size_t c = 0; c < catalog.num_chunks(t); ++c) {
      const Chunk chunk = catalog.chunk(t, c);
      Box box = chunk.box.ToBox();
      tensor.pieces.push_back(
          {std::move(box.offset), std::move(box.extent), std::nullopt, chunk.file, 0});
    }
  }
  metadata.has_flat_mapping = true;
  for (const PlannedTensor& tensor : plan.tensors) {
    RESHARD_TRY_ASSIGN(Path path, DecodeStoredPath(tensor.key, tensor.path));
    metadata.flat_mapping.emplace_back(tensor.key, std::move(path));
  }
  return metadata;
}

class PaddleFormat final : public ForeignSaveFormat {
 public:
  explicit PaddleFormat(paddle::Flavour flavour) : flavour_(flavour) {}

  std::optional<std::uint64_t> WantedId(std::optional<std::uint64_t> wanted) const override {
    return wanted.value_or(0);
  }

  Result<std::uint64_t> ChooseId(const DirectoryView& view, std::optional<std::uint64_t> wanted,
                                 bool overwrite, std::string_view place) const override {
    if (!view.foreign_name.empty()) {
      return MakeError(ErrorCode::kInvalidArgument, "FOREIGN_DIRECTORY",
                       fmt::format("{} holds '{}', which is not of Paddle's format; save into a "
                                   "directory of its own",
                                   place, view.foreign_name));
    }
    for (const auto& [id, names] : view.ids) {
      if (!names.committed) {
        continue;
      }
      if (Clash(id, *wanted)) {
        return MakeError(ErrorCode::kInvalidArgument, "ID_CLASH",
                         fmt::format("{} holds snapshot {}: Paddle would take it for snapshot {}, "
                                     "as one number ends like the other; save into a directory of "
                                     "its own",
                                     place, id, *wanted));
      }
      if (overwrite) {
        continue;
      }
      if (id == *wanted) {
        return MakeError(ErrorCode::kAlreadyExists, "SNAPSHOT_EXISTS",
                         fmt::format("{} holds a committed snapshot {}; save into a directory of "
                                     "its own, or pass overwrite",
                                     place, id));
      }
      return MakeError(ErrorCode::kAlreadyExists, "ONE_ID_PER_DIRECTORY",
                       fmt::format("{} holds snapshot {}, and Paddle 3.3 loads nothing from a "
                                   "directory with two; save into a directory of its own, or pass "
                                   "overwrite to put snapshot {} beside it",
                                   place, id, *wanted));
    }
    return *wanted;
  }

  std::vector<Unsupported> Restrict(StateDescription& description) const override {
    std::vector<Unsupported> out;
    std::erase_if(description.tensors, [&out](const TensorDescription& tensor) {
      std::optional<std::string> why = WhyNot(tensor);
      if (!why) {
        return false;
      }
      out.push_back({tensor.key, std::move(*why)});
      // Paddle keeps the keys of empty tensors.
      return NumElements(tensor.shape) != 0 || !IsUtf8(tensor.key);
    });
    for (std::size_t i = 0; i < description.tensors.size(); ++i) {  // no aliases
      description.tensors[i].same_as = static_cast<std::uint32_t>(i);
    }
    for (const ObjectDescription& object : description.objects) {
      if (!IsNameTable(object)) {
        out.push_back({object.key, object.per_rank ? "a value per rank" : "no tensor"});
      }
    }
    description.objects.clear();
    return out;
  }

  bool IsLeftover(std::string_view name) const override {
    return paddle::ParseName(name).has_value();
  }

  std::uint64_t MinCutBytes(std::uint64_t /*wanted*/) const override {
    return std::numeric_limits<std::uint64_t>::max();  // whole pieces
  }

  std::unique_ptr<RankFiles> NewFiles(Storage& storage, RankContent content) const override {
    return std::make_unique<PaddleFiles>(storage, std::move(content));
  }

  std::string ClaimName(const SaveId& id) const override {
    return paddle::TempMetadataName(id.unique_id, id.attempt);
  }

  bool IsOlderFile(std::string_view name, const SaveId& id) const override {
    const std::optional<paddle::Name> parsed = paddle::ParseName(name);
    return parsed && parsed->kind == paddle::NameKind::kData && parsed->attempt < id.attempt &&
           parsed->unique_id == id.unique_id;
  }

 protected:
  ForeignRef RefOf(std::uint64_t unique_id) const override {
    return {std::string(kPaddle), paddle::MetadataName(unique_id), unique_id};
  }

  void LookAtName(const std::string& name, DirectoryView& view) const override {
    LookAt(name, view);
  }

  std::string IndexClaimName(const SaveId& id) const override {
    return paddle::TempIndexName(id.unique_id, id.attempt);
  }

  bool HasEmptyTensors() const override { return false; }

  Result<Bytes> EncodeMetadata(const Catalog& catalog, const SaveOutcome& outcome) const override {
    RESHARD_TRY_ASSIGN(const paddle::Metadata metadata, MetadataOf(catalog, outcome.plan));
    return paddle::EncodeMetadata(metadata, flavour_);
  }

 private:
  paddle::Flavour flavour_;
};

}  // namespace

Result<std::unique_ptr<SaveFormat>> PaddleSaveFormat(std::optional<std::string_view> release) {
  paddle::Flavour flavour = paddle::Flavour::kFlex;
  if (release) {
    RESHARD_TRY_ASSIGN(flavour, paddle::FlavourOfRelease(*release));
  }
  return std::make_unique<PaddleFormat>(flavour);
}

}  // namespace reshard
