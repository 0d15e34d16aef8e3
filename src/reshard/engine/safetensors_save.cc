// Saving as safetensors: one file of one rank, else a set with Hugging Face's index.
// docs/format/safetensors.md section 5.

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "reshard/base/utf8.h"
#include "reshard/codec/crc64.h"
#include "reshard/engine/foreign.h"
#include "reshard/engine/safetensors_files.h"
#include "reshard/engine/save_format.h"
#include "reshard/engine/snapshot.h"
#include "reshard/format/native/catalog_codec.h"
#include "reshard/format/native/names.h"
#include "reshard/format/safetensors/format.h"
#include "reshard/format/safetensors/header.h"
#include "reshard/format/safetensors/index.h"
#include "reshard/format/safetensors/names.h"
#include "reshard/format/safetensors/writer.h"

namespace reshard {
namespace {

using safetensors::AttemptOfTemp;
using safetensors::kIndexName;
using safetensors::kSingleName;
using safetensors::ParsePartName;
using safetensors::PartName;
using safetensors::SetIndex;
using safetensors::TempKind;

constexpr std::string_view kModel = "model";

ForeignRef RefOf(std::string_view record) {
  return {std::string(safetensors::kFormatName), std::string(record), 0};
}

bool IsRecord(std::string_view name) { return name == kIndexName || name == kSingleName; }

/// Names that another checkpoint has.
bool IsForeign(std::string_view name) {
  return name.ends_with(".metadata") || name.ends_with(".distcp") ||
         native::ParseName(name).has_value() || safetensors::IsIndexName(name) ||
         safetensors::IsDataName(name);
}

void LookAtName(const std::string& name, DirectoryView& view) {
  const std::optional<PartName> part = ParsePartName(name);
  const bool own_part = part && part->prefix == kModel;
  const std::optional<std::uint64_t> attempt =
      own_part ? std::optional(part->attempt) : AttemptOfTemp(name);
  if (IsRecord(name)) {
    view.ids[0].committed = true;
  } else if (attempt) {
    SnapshotNames& names = view.ids[0];
    names.last_attempt = std::max(names.last_attempt.value_or(0), *attempt);
  } else if (view.foreign_name.empty() && IsForeign(name)) {
    view.foreign_name = name;
  }
}

/// Why a tensor cannot be stored; nothing when it can.
std::optional<std::string> WhyNot(const TensorDescription& tensor) {
  const bool odd = std::any_of(tensor.key.begin(), tensor.key.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  if (!safetensors::HasTag(tensor.dtype)) {
    return fmt::format("safetensors has no {}", Info(tensor.dtype).name);
  }
  if (odd || !IsUtf8(tensor.key) || tensor.key.size() > safetensors::kMaxNameBytes) {
    return "a key that is no name in safetensors: too long, no UTF-8, or with control characters";
  }
  if (tensor.key == "__metadata__") {
    return "a name that safetensors gives a meaning of its own";
  }
  const Box whole = WholeBox(tensor.shape);
  const bool cut = std::any_of(tensor.boxes.begin(), tensor.boxes.end(),
                               [&whole](const Box& box) { return !(box == whole); });
  return cut ? std::optional<std::string>(
                   "cut over ranks, and a safetensors file holds whole tensors (`reshard convert` "
                   "puts them together)")
             : std::nullopt;
}

/// The tensors that have none.
std::vector<std::uint64_t> WithoutElements(const SavePlan& plan) {
  std::vector<std::uint64_t> out;
  for (std::size_t t = 0; t < plan.tensors.size(); ++t) {
    if (NumElements(plan.tensors[t].shape) == 0) {
      out.push_back(t);
    }
  }
  return out;
}

/// A file of the tensors without elements: no rank's file has them when there are several.
Result<Bytes> EmptyTensors(const SavePlan& plan) {
  const std::vector<std::uint64_t> tensors = WithoutElements(plan);
  std::vector<safetensors::WriteEntry> entries;
  entries.reserve(tensors.size());
  for (const std::uint64_t t : tensors) {
    entries.push_back({plan.tensors[t].key, plan.tensors[t].dtype, plan.tensors[t].shape});
  }
  return safetensors::EncodeHeader(entries);
}

/// The catalog of the save, as an index of metadata that has `fingerprint`.
Result<Bytes> EncodeIndexOf(const Catalog& catalog, const Fingerprint& fingerprint) {
  CatalogColumns columns = catalog.columns();
  columns.info.metadata_size = fingerprint.size;
  columns.info.metadata_checksum = fingerprint.checksum;
  RESHARD_TRY_ASSIGN(const Catalog index, Catalog::Create(std::move(columns)));
  return native::EncodeCatalog(index);
}

/// Which file holds which tensor. `empties`: the file of the tensors without elements.
SetIndex IndexOf(const Catalog& catalog, const std::string& empties) {
  SetIndex index;
  index.files.push_back(empties);
  for (const FileEntry& file : catalog.files()) {
    index.files.push_back(file.name);
  }
  std::uint64_t total = 0;
  for (TensorId t = 0; t < catalog.num_tensors(); ++t) {
    const std::uint32_t file = catalog.num_chunks(t) == 0 ? 0 : catalog.chunk(t, 0).file + 1;
    index.tensors.push_back({std::string(catalog.key(t)), file});
    total += catalog.num_bytes(t);
  }
  index.total_size = total;
  return index;
}

std::string IndexNameFor(std::string_view record) { return IndexNameOf(RefOf(record)); }

class SafetensorsSave final : public SaveFormat {
 public:
  Result<DirectoryView> View(Storage& storage) const override {
    RESHARD_TRY_ASSIGN(const std::vector<ObjectInfo> objects, storage.List());
    DirectoryView view;
    for (const ObjectInfo& object : objects) {
      LookAtName(object.name, view);
    }
    return view;
  }

  std::optional<std::uint64_t> WantedId(std::optional<std::uint64_t> /*wanted*/) const override {
    return 0;  // there are no ids
  }

  Result<std::uint64_t> ChooseId(const DirectoryView& view, std::optional<std::uint64_t> /*wanted*/,
                                 bool overwrite, std::string_view place) const override {
    if (!view.foreign_name.empty()) {
      return MakeError(ErrorCode::kInvalidArgument, "FOREIGN_DIRECTORY",
                       fmt::format("{} holds '{}', which is not of a checkpoint that is saved as "
                                   "{}; save into a directory of its own",
                                   place, view.foreign_name, kSingleName));
    }
    const auto known = view.ids.find(0);
    if (known != view.ids.end() && known->second.committed && !overwrite) {
      return MakeError(ErrorCode::kAlreadyExists, "SNAPSHOT_EXISTS",
                       fmt::format("{} holds a checkpoint; save into a directory of its own, or "
                                   "pass overwrite",
                                   place));
    }
    return 0;
  }

  std::vector<Unsupported> Restrict(StateDescription& description) const override {
    std::vector<Unsupported> out;
    std::erase_if(description.tensors, [&out](const TensorDescription& tensor) {
      std::optional<std::string> why = WhyNot(tensor);
      const bool leaves = why.has_value();
      if (leaves) {
        out.push_back({tensor.key, std::move(*why)});
      }
      return leaves;
    });
    for (std::size_t i = 0; i < description.tensors.size(); ++i) {  // each has bytes of its own
      description.tensors[i].same_as = static_cast<std::uint32_t>(i);
    }
    for (const ObjectDescription& object : description.objects) {
      out.push_back({object.key, "safetensors holds no objects, only tensors"});
    }
    description.objects.clear();
    return out;
  }

  bool HoldsCutTensors() const override { return false; }

  bool IsLeftover(std::string_view name) const override {
    const std::optional<PartName> part = ParsePartName(name);
    return (part && part->prefix == kModel) || AttemptOfTemp(name).has_value();
  }

  std::uint64_t MinCutBytes(std::uint64_t /*wanted*/) const override {
    return std::numeric_limits<std::uint64_t>::max();  // whole tensors
  }

  std::unique_ptr<RankFiles> NewFiles(Storage& storage, RankContent content) const override {
    return std::make_unique<SafetensorsFiles>(storage, std::move(content));
  }

  std::string RecordName(std::uint64_t /*unique_id*/) const override {
    return std::string(kIndexName);
  }

  std::string ClaimName(const SaveId& id) const override {
    return TempName(TempKind::kClaim, id.attempt);
  }

  std::vector<std::string> SideNames(std::uint64_t /*unique_id*/) const override {
    return {IndexNameFor(kIndexName)};
  }

  Result<std::vector<CommitRecord>> MakeRecords(const SaveOutcome& outcome) const override;
  Result<CommittedSave> ReadCommitted(Storage& storage, std::uint64_t unique_id) const override;
  Result<bool> IsCommitted(Storage& storage, const SaveId& id,
                           const CommitRecord& record) const override;
  std::optional<std::vector<std::string>> ReplacedFiles(
      const SaveId& id, std::span<const std::optional<Bytes>> replaced) const override;

  bool IsOlderFile(std::string_view name, const SaveId& id) const override {
    const std::optional<PartName> part = ParsePartName(name);
    return part && part->prefix == kModel && part->attempt < id.attempt;
  }

 private:
  static Result<Catalog> CatalogOf(const SaveOutcome& outcome,
                                   std::span<const WriteReport> reports);
  Result<std::vector<CommitRecord>> SingleRecords(const SaveOutcome& outcome) const;
};

/// Tensors without elements are in it.
Result<Catalog> SafetensorsSave::CatalogOf(const SaveOutcome& outcome,
                                           std::span<const WriteReport> reports) {
  CatalogInfo info = outcome.info;
  info.format = std::string(safetensors::kFormatName);
  RESHARD_TRY_ASSIGN(const Catalog catalog,
                     MakeCatalog(info, outcome.plan, reports, {}, outcome.global_ranks));
  CatalogColumns columns = catalog.columns();
  columns.info.kind = CatalogKind::kIndex;
  RESHARD_TRY_ASSIGN(Catalog index, Catalog::Create(std::move(columns)));
  RESHARD_TRY(outcome.inspect(index));
  return index;
}

/// The one rank's file is the commit record.
Result<std::vector<CommitRecord>> SafetensorsSave::SingleRecords(const SaveOutcome& outcome) const {
  const SaveId id = {0, outcome.info.attempt};
  if (outcome.reports.empty()) {  // no elements at all
    RESHARD_TRY(CatalogOf(outcome, {}));
    RESHARD_TRY_ASSIGN(Bytes header, EmptyTensors(outcome.plan));
    std::vector<CommitRecord> records;
    records.push_back({ClaimName(id), std::string(kSingleName), std::move(header), std::nullopt});
    return records;
  }
  std::vector<WriteReport> reports(outcome.reports.begin(), outcome.reports.end());
  const Fingerprint fingerprint = {reports[0].file_size, reports[0].head_checksum};
  const std::string written = std::exchange(reports[0].file_name, std::string(kSingleName));
  reports[0].head_checksum = 0;
  RESHARD_TRY_ASSIGN(const Catalog catalog, CatalogOf(outcome, reports));
  RESHARD_TRY_ASSIGN(Bytes index, EncodeIndexOf(catalog, fingerprint));
  const std::string index_name = IndexNameFor(kSingleName);
  std::vector<CommitRecord> records;
  records.push_back({TempName(TempKind::kIndex, id.attempt, index_name), index_name,
                     std::move(index), std::nullopt});
  records.push_back({written, std::string(kSingleName), {}, reports[0].mtime_ns});
  return records;
}

Result<std::vector<CommitRecord>> SafetensorsSave::MakeRecords(const SaveOutcome& outcome) const {
  if (outcome.info.world_size == 1) {
    return SingleRecords(outcome);
  }
  const SaveId id = {0, outcome.info.attempt};
  RESHARD_TRY_ASSIGN(const Catalog catalog, CatalogOf(outcome, outcome.reports));
  std::vector<CommitRecord> records;
  const std::string empties =
      safetensors::PartFileName({std::string(kModel), 0, outcome.info.world_size, id.attempt});
  if (!WithoutElements(outcome.plan).empty()) {
    RESHARD_TRY_ASSIGN(Bytes bytes, EmptyTensors(outcome.plan));
    records.push_back(
        {TempName(TempKind::kData, id.attempt), empties, std::move(bytes), std::nullopt});
  }
  const std::string text = EncodeIndex(IndexOf(catalog, empties));
  const ByteSpan bytes = AsBytes(text);
  RESHARD_TRY_ASSIGN(Bytes index, EncodeIndexOf(catalog, {bytes.size(), Crc64(bytes)}));
  const std::string index_name = IndexNameFor(kIndexName);
  records.push_back({TempName(TempKind::kIndex, id.attempt, index_name), index_name,
                     std::move(index), std::nullopt});
  records.push_back(
      {ClaimName(id), std::string(kIndexName), Bytes(bytes.begin(), bytes.end()), std::nullopt});
  return records;
}

Result<CommittedSave> SafetensorsSave::ReadCommitted(Storage& storage,
                                                     std::uint64_t /*unique_id*/) const {
  for (const std::string_view record : {kIndexName, kSingleName}) {
    if (const auto there = storage.Open(record); !there.ok()) {
      if (there.error().code != ErrorCode::kNotFound) {
        return tl::unexpected<Error>(there.error());
      }
      continue;
    }
    RESHARD_TRY_ASSIGN(const ForeignIndex index, ReadIndex(storage, RefOf(record)));
    if (!index.catalog) {
      return CommittedSave{};
    }
    CommittedSave out{index.catalog->info().attempt, {}};
    for (const FileEntry& file : index.catalog->files()) {
      out.files.push_back(file.name);
    }
    return out;
  }
  return MakeError(
      ErrorCode::kNotFound, "NO_SNAPSHOT",
      fmt::format("{} holds neither {} nor {}", storage.description(), kSingleName, kIndexName));
}

Result<bool> SafetensorsSave::IsCommitted(Storage& storage, const SaveId& /*id*/,
                                          const CommitRecord& record) const {
  const auto there = storage.Open(record.name);
  if (!there.ok()) {
    return there.error().code == ErrorCode::kNotFound
               ? Result<bool>(false)
               : Result<bool>(tl::unexpected<Error>(there.error()));
  }
  if (record.written_at) {
    return (*there)->mtime_ns() == *record.written_at;
  }
  RESHARD_TRY_ASSIGN(const Bytes bytes, ReadWhole(storage, record.name));
  return bytes == record.bytes;
}

/// Those of the set whose index was replaced; a single file is replaced itself.
std::optional<std::vector<std::string>> SafetensorsSave::ReplacedFiles(
    const SaveId& id, std::span<const std::optional<Bytes>> replaced) const {
  const Bytes& main = *replaced.back();
  MemorySource source(main);
  Result<SetIndex> index = safetensors::DecodeIndex(source);
  if (!index.ok()) {
    return main.empty() ? std::optional(std::vector<std::string>()) : std::nullopt;
  }
  std::erase_if(index->files,
                [this, &id](const std::string& name) { return !IsOlderFile(name, id); });
  return std::move(index->files);
}

}  // namespace

std::unique_ptr<SaveFormat> SafetensorsSaveFormat() { return std::make_unique<SafetensorsSave>(); }

}  // namespace reshard
