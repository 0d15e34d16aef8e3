// Saving in the native format. docs/format/native.md sections 1 to 3.

#include <fmt/format.h>

#include <limits>

#include "reshard/engine/data_file_writer.h"
#include "reshard/engine/save_format.h"
#include "reshard/engine/snapshot.h"
#include "reshard/format/native/catalog_codec.h"
#include "reshard/format/native/names.h"

namespace reshard {
namespace {

class NativeFormat final : public SaveFormat {
 public:
  Result<DirectoryView> View(Storage& storage) const override { return ViewDirectory(storage); }

  std::optional<std::uint64_t> WantedId(std::optional<std::uint64_t> wanted) const override {
    return wanted;
  }

  Result<std::uint64_t> ChooseId(const DirectoryView& view, std::optional<std::uint64_t> wanted,
                                 bool overwrite, std::string_view place) const override {
    if (!view.foreign_name.empty()) {
      return MakeError(ErrorCode::kInvalidArgument, "FOREIGN_DIRECTORY",
                       fmt::format("{} holds '{}', a checkpoint of another format; save into a "
                                   "directory of its own",
                                   place, view.foreign_name));
    }
    const std::optional<std::uint64_t> newest = view.newest();
    if (!wanted && newest == std::numeric_limits<std::uint64_t>::max()) {
      return MakeError(
          ErrorCode::kAlreadyExists, "SNAPSHOT_EXISTS",
          fmt::format("{} holds snapshot {}, the largest id there is; pass a unique_id", place,
                      *newest));
    }
    const std::uint64_t id = wanted.value_or(newest ? *newest + 1 : 0);
    const auto known = view.ids.find(id);
    if (known != view.ids.end() && known->second.committed && !overwrite) {
      return MakeError(
          ErrorCode::kAlreadyExists, "SNAPSHOT_EXISTS",
          fmt::format("{} holds a committed snapshot {}; choose another unique_id, leave it "
                      "out to take the next free one, or pass overwrite",
                      place, id));
    }
    return id;
  }

  std::vector<Unsupported> Restrict(StateDescription& /*description*/) const override { return {}; }

  bool HoldsAliases() const override { return true; }

  bool HoldsPerRankValues() const override { return true; }

  std::uint64_t MinCutBytes(std::uint64_t wanted) const override { return wanted; }

  std::unique_ptr<RankFiles> NewFiles(Storage& storage, RankContent content) const override {
    return std::make_unique<DataFileWriter>(storage, std::move(content));
  }

  std::string RecordName(std::uint64_t unique_id) const override {
    return native::CatalogName(unique_id);
  }

  std::string ClaimName(const SaveId& id) const override {
    return native::TempCatalogName(id.unique_id, id.attempt);
  }

  std::vector<std::string> SideNames(std::uint64_t /*unique_id*/) const override { return {}; }

  Result<std::vector<CommitRecord>> MakeRecords(const SaveOutcome& outcome) const override {
    RESHARD_TRY_ASSIGN(const Catalog catalog,
                       MakeCatalog(outcome.info, outcome.plan, outcome.reports, outcome.objects,
                                   outcome.global_ranks));
    RESHARD_TRY(outcome.inspect(catalog));
    const SaveId id = {outcome.info.unique_id, outcome.info.attempt};
    std::vector<CommitRecord> records;
    records.push_back({ClaimName(id), RecordName(id.unique_id), native::EncodeCatalog(catalog)});
    return records;
  }

  Result<CommittedSave> ReadCommitted(Storage& storage, std::uint64_t unique_id) const override {
    const Result<Catalog> catalog = ReadCatalog(storage, unique_id);
    if (catalog.ok()) {
      return CommittedSave{catalog->info().attempt, FileNames(*catalog)};
    }
    if (catalog.error().code == ErrorCode::kCorruption) {
      return CommittedSave{};
    }
    return tl::unexpected<Error>(catalog.error());
  }

  Result<bool> IsCommitted(Storage& storage, const SaveId& id,
                           const CommitRecord& /*record*/) const override {
    const Result<Catalog> there = ReadCatalog(storage, id.unique_id);
    if (!there.ok() && there.error().reason == "NO_SNAPSHOT") {
      return false;
    }
    RESHARD_TRY_ASSIGN(const Catalog& catalog, there);
    return catalog.info().attempt == id.attempt;
  }

  std::optional<std::vector<std::string>> ReplacedFiles(
      const SaveId& id, std::span<const std::optional<Bytes>> replaced) const override {
    const Result<Catalog> old = DecodeSnapshotCatalog(replaced[0].value_or(Bytes()), ClaimName(id));
    if (!old.ok() || old->info().unique_id != id.unique_id) {
      return std::nullopt;
    }
    return FileNames(*old);
  }

  bool IsOlderFile(std::string_view name, const SaveId& id) const override {
    const std::optional<native::Name> parsed = native::ParseName(name);
    return parsed && parsed->kind == native::NameKind::kDataFile && parsed->attempt < id.attempt &&
           parsed->unique_id == id.unique_id;
  }

 private:
  static std::vector<std::string> FileNames(const Catalog& catalog) {
    std::vector<std::string> names;
    for (const FileEntry& file : catalog.files()) {
      names.push_back(file.name);
    }
    return names;
  }
};

}  // namespace

std::unique_ptr<SaveFormat> NativeSaveFormat() { return std::make_unique<NativeFormat>(); }

Result<std::unique_ptr<SaveFormat>> FindSaveFormat(std::string_view name) {
  const std::size_t colon = name.find(':');
  const std::string_view format = name.substr(0, colon);
  std::optional<std::string_view> release;
  if (colon != std::string_view::npos) {
    release = name.substr(colon + 1);
  }
  if (format == "native" && !release) {
    return NativeSaveFormat();
  }
  if (format == "paddle") {
    return PaddleSaveFormat(release);
  }
  if (format == "torch") {
    return TorchSaveFormat(release);
  }
  if (format == "safetensors" && !release) {
    return SafetensorsSaveFormat();
  }
  return MakeError(ErrorCode::kInvalidArgument, "BAD_FORMAT",
                   fmt::format("'{}' is no format to save in; choose native, safetensors, paddle, "
                               "paddle:RELEASE, torch or torch:RELEASE",
                               name));
}

}  // namespace reshard
