#include "reshard/engine/foreign_save.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "reshard/codec/crc64.h"
#include "reshard/engine/foreign.h"
#include "reshard/engine/snapshot.h"
#include "reshard/format/native/catalog_codec.h"

namespace reshard {

std::vector<std::string> FileNames(const Catalog& catalog) {
  std::vector<std::string> names;
  names.reserve(catalog.files().size());
  for (const FileEntry& file : catalog.files()) {
    names.push_back(file.name);
  }
  return names;
}

Result<DirectoryView> ForeignSaveFormat::View(Storage& storage) const {
  RESHARD_TRY_ASSIGN(const std::vector<ObjectInfo> objects, storage.List());
  DirectoryView view;
  for (const ObjectInfo& object : objects) {
    LookAtName(object.name, view);
  }
  return view;
}

std::string ForeignSaveFormat::RecordName(std::uint64_t unique_id) const {
  return RefOf(unique_id).metadata_name;
}

std::vector<std::string> ForeignSaveFormat::SideNames(std::uint64_t unique_id) const {
  return {IndexNameOf(RefOf(unique_id))};
}

Result<std::vector<CommitRecord>> ForeignSaveFormat::MakeRecords(const SaveOutcome& outcome) const {
  const SaveId id = {outcome.info.unique_id, outcome.info.attempt};
  const ForeignRef ref = RefOf(id.unique_id);
  CatalogInfo info = outcome.info;
  info.kind = CatalogKind::kIndex;
  info.format = ref.format;
  RESHARD_TRY_ASSIGN(const Catalog catalog,
                     MakeCatalog(info, outcome.plan, outcome.reports, outcome.objects,
                                 outcome.global_ranks, HasEmptyTensors()));
  RESHARD_TRY(outcome.inspect(catalog));
  RESHARD_TRY_ASSIGN(Bytes encoded, EncodeMetadata(catalog, outcome));
  CatalogColumns columns = catalog.columns();
  columns.info.metadata_size = encoded.size();
  columns.info.metadata_checksum = Crc64(encoded);
  RESHARD_TRY_ASSIGN(const Catalog index, Catalog::Create(std::move(columns)));
  std::vector<CommitRecord> records;
  records.push_back({IndexClaimName(id), IndexNameOf(ref), native::EncodeCatalog(index)});
  records.push_back({ClaimName(id), ref.metadata_name, std::move(encoded)});
  return records;
}

Result<CommittedSave> ForeignSaveFormat::ReadCommitted(Storage& storage,
                                                       std::uint64_t unique_id) const {
  const ForeignRef ref = RefOf(unique_id);
  if (const auto there = storage.Open(ref.metadata_name); !there.ok()) {
    if (there.error().code != ErrorCode::kNotFound) {
      return tl::unexpected<Error>(there.error());
    }
    return MakeError(ErrorCode::kNotFound, "NO_SNAPSHOT",
                     fmt::format("{} holds no {}", storage.description(), ref.metadata_name));
  }
  RESHARD_TRY_ASSIGN(const ForeignIndex index, ReadIndex(storage, ref));
  if (!index.catalog) {
    return CommittedSave{};
  }
  return CommittedSave{index.catalog->info().attempt, FileNames(*index.catalog)};
}

Result<bool> ForeignSaveFormat::IsCommitted(Storage& storage, const SaveId& /*id*/,
                                            const CommitRecord& record) const {
  const Result<Bytes> there = ReadWhole(storage, record.name);
  if (!there.ok() && there.error().code == ErrorCode::kNotFound) {
    return false;
  }
  RESHARD_TRY_ASSIGN(const Bytes& bytes, there);
  return bytes == record.bytes;
}

std::optional<std::vector<std::string>> ForeignSaveFormat::ReplacedFiles(
    const SaveId& id, std::span<const std::optional<Bytes>> replaced) const {
  auto files = FilesOf(RefOf(id.unique_id), replaced[1].value_or(Bytes()), replaced[0]);
  if (files) {
    std::erase_if(*files, [this, &id](const std::string& name) { return !IsOlderFile(name, id); });
  }
  return files;
}

/// The data files of a save, from its metadata and the index that stood beside it. Nothing when
/// they are not known.
std::optional<std::vector<std::string>> ForeignSaveFormat::FilesOf(
    const ForeignRef& ref, ByteSpan metadata, const std::optional<Bytes>& index) const {
  if (index) {
    const Result<Catalog> catalog = native::DecodeCatalog(*index);
    if (catalog.ok() && catalog->info().kind == CatalogKind::kIndex &&
        catalog->info().format == ref.format && catalog->info().unique_id == ref.unique_id &&
        catalog->info().metadata_size == metadata.size() &&
        catalog->info().metadata_checksum == Crc64(metadata)) {
      return FileNames(*catalog);
    }
  }
  const auto formats = ForeignFormats();
  const auto format = std::find_if(
      formats.begin(), formats.end(),
      [&ref](const ForeignFormat* candidate) { return candidate->name() == ref.format; });
  if (format == formats.end()) {
    return std::nullopt;
  }
  MemorySource source(metadata);
  ByteSource* const sources[] = {&source};
  const auto decoded = (*format)->ReadMetadata(ref, sources);
  if (!decoded.ok()) {
    return std::nullopt;
  }
  return std::vector<std::string>((*decoded)->files().begin(), (*decoded)->files().end());
}

}  // namespace reshard
