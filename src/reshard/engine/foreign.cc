#include "reshard/engine/foreign.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <thread>

#include "reshard/base/check.h"
#include "reshard/base/thread_pool.h"
#include "reshard/codec/crc64.h"
#include "reshard/engine/snapshot.h"
#include "reshard/format/native/catalog_codec.h"
#include "reshard/format/native/names.h"
#include "reshard/format/paddle/format.h"
#include "reshard/format/safetensors/format.h"
#include "reshard/format/safetensors/names.h"
#include "reshard/format/torch/format.h"
#include "reshard/format/torch/saved_format.h"

namespace reshard {
namespace {

constexpr std::string_view kIndexSuffix = ".reshard";
constexpr std::size_t kProbeBytes = 4096;
constexpr std::size_t kMostThreads = 8;
constexpr std::size_t kMostNamedKeys = 3;

/// Whether the name is that of one of several data files, which alone are no checkpoint.
bool IsLeftover(std::string_view name) {
  return native::ParseName(name) || safetensors::ParsePartName(name);
}

/// Whether the storage is a view of that one file.
bool IsNamedAlone(const Storage& storage, const std::string& name) {
  return PlaceOf(storage, name) == storage.description();
}

/// The single file of a directory (its index apart), by content.
Result<std::vector<ForeignRef>> FindByContent(Storage& storage,
                                              const std::vector<std::string>& names) {
  std::vector<std::string> files;
  std::copy_if(names.begin(), names.end(), std::back_inserter(files),
               [](const std::string& name) { return !name.ends_with(kIndexSuffix); });
  // What a save that did not finish left is no checkpoint, unless the user names that very file.
  if (files.size() != 1 || (IsLeftover(files[0]) && !IsNamedAlone(storage, files[0]))) {
    return std::vector<ForeignRef>();
  }
  Result<std::unique_ptr<ReadableObject>> object = storage.OpenForeign(files[0]);
  if (!object.ok()) {
    if (object.error().code == ErrorCode::kIo) {
      return tl::unexpected<Error>(std::move(object).error());
    }
    return std::vector<ForeignRef>();
  }
  Bytes first(std::min<std::uint64_t>(kProbeBytes, (*object)->size()));
  RESHARD_TRY((*object)->ReadAt(0, first));
  for (const ForeignFormat* format : ForeignFormats()) {
    if (format->LooksLikeFile(files[0], first)) {
      return std::vector<ForeignRef>{{std::string(format->name()), files[0], 0}};
    }
  }
  return std::vector<ForeignRef>();
}

std::string Ignored(const std::string& index, std::string_view why) {
  return fmt::format("{} is not used: {}; `reshard index` writes it anew", index, why);
}

std::vector<std::string> MetadataNames(const ForeignRef& ref) {
  std::vector<std::string> names = {ref.metadata_name};
  names.insert(names.end(), ref.more_names.begin(), ref.more_names.end());
  return names;
}

/// Names obey the rule, every file is where the index says.
Status CheckIndexedFiles(const Catalog& catalog) {
  for (const FileEntry& file : catalog.files()) {
    RESHARD_TRY(CheckForeignName(file.name));
  }
  return OkStatus();
}

/// Leaves out the digests of tensors in files whose time is another one than when they were
/// indexed.
Catalog WithoutStaleDigests(Catalog catalog, const std::vector<ObjectInfo>& objects,
                            std::vector<std::string>& notes) {
  std::map<std::string_view, std::int64_t> times;
  for (const ObjectInfo& object : objects) {
    times[object.name] = object.mtime_ns;
  }
  std::vector<bool> stale;
  for (const FileEntry& file : catalog.files()) {
    const auto at = times.find(file.name);
    stale.push_back(at != times.end() && at->second != file.mtime_ns);
  }
  const auto count = std::count(stale.begin(), stale.end(), true);
  if (count == 0) {
    return catalog;
  }
  CatalogColumns columns = catalog.columns();
  for (TensorId tensor = 0; tensor < catalog.num_tensors(); ++tensor) {
    for (std::size_t i = 0; i < catalog.num_chunks(tensor); ++i) {
      if (stale[catalog.chunk(tensor, i).file]) {
        columns.has_digest[tensor] = 0;
        columns.digests[tensor] = 0;
      }
    }
  }
  notes.push_back(
      fmt::format("{} of {} data files changed, or were copied, after they were indexed: "
                  "their checksums are still tested, digests are not shown; `reshard "
                  "index` takes them anew",
                  count, stale.size()));
  Result<Catalog> out = Catalog::Create(std::move(columns));
  RESHARD_CHECK(out.ok());
  return std::move(*out);
}

/// Where metadata that is inside the data files is not what was indexed though its size is: whether
/// bytes were damaged since. A file written again has another time and other bytes throughout; a
/// damaged one, even when copied, differs in places. A copy is told by three blocks behind the part
/// that the fingerprint covers, so one of a few blocks by its time alone.
Result<bool> IsDamagedInPlace(Storage& storage, const ForeignRef& ref, const Catalog& catalog) {
  for (const std::string& name : MetadataNames(ref)) {
    const auto& files = catalog.files();
    const auto at = std::find_if(files.begin(), files.end(),
                                 [&name](const FileEntry& file) { return file.name == name; });
    if (at == files.end()) {
      return false;
    }
    RESHARD_TRY_ASSIGN(const std::unique_ptr<ReadableObject> object, storage.OpenForeign(name));
    if (object->mtime_ns() == at->mtime_ns && object->size() == at->size) {
      continue;
    }
    const std::uint64_t blocks = at->num_blocks();
    if (at->encoding != FileEncoding::kRaw || object->size() != at->size || blocks < 4) {
      return false;
    }
    const auto index = static_cast<std::uint32_t>(at - files.begin());
    Bytes buffer(kBlockBytes);
    for (const std::uint64_t block : {blocks / 3, blocks * 2 / 3, blocks - 1}) {
      const ByteRange range = at->Block(block);
      const MutableByteSpan part = MutableByteSpan(buffer).first(range.size);
      RESHARD_TRY(object->ReadAt(range.offset, part));
      if (catalog.BlockChecksum(index, block) != Crc64(part)) {
        return false;
      }
    }
  }
  return true;
}

/// The catalog of index bytes, or why they cannot be used.
Result<Catalog> DecodeIndex(Storage& storage, const ForeignRef& ref, ByteSpan bytes) {
  RESHARD_TRY_ASSIGN(Catalog catalog, native::DecodeCatalog(bytes));
  RESHARD_TRY_ASSIGN(const Fingerprint metadata, MetadataFingerprint(storage, ref, catalog));
  const CatalogInfo& info = catalog.info();
  if (info.kind != CatalogKind::kIndex || info.format != ref.format ||
      info.unique_id != ref.unique_id) {
    return MakeError(ErrorCode::kCorruption, "CATALOG_KIND", "it is the index of something else");
  }
  bool fits = info.metadata_size == metadata.size && info.metadata_checksum == metadata.checksum;
  if (!fits && info.metadata_size == metadata.size) {
    // The checksums of the index find the damage; without it nothing would.
    RESHARD_TRY_ASSIGN(fits, IsDamagedInPlace(storage, ref, catalog));
  }
  if (!fits) {
    return MakeError(ErrorCode::kCorruption, "STALE_INDEX",
                     fmt::format("{} was written again after it", ref.metadata_name));
  }
  RESHARD_TRY(CheckIndexedFiles(catalog));
  return catalog;
}

}  // namespace

std::span<const ForeignFormat* const> ForeignFormats() {
  static const std::array<const ForeignFormat*, 4> formats = {
      &torch::DcpFormat(), &paddle::Format(), &safetensors::Format(), &torch::SavedFormat()};
  return formats;
}

const ForeignFormat& FormatOf(const ForeignRef& ref) {
  const auto formats = ForeignFormats();
  const auto at = std::find_if(formats.begin(), formats.end(), [&ref](const ForeignFormat* format) {
    return format->name() == ref.format;
  });
  RESHARD_CHECK(at != formats.end());
  return **at;
}

Result<std::vector<ForeignRef>> FindForeign(Storage& storage) {
  RESHARD_TRY_ASSIGN(const std::vector<ObjectInfo> objects, storage.ListForeign());
  std::vector<std::string> names;
  for (const ObjectInfo& object : objects) {
    if (object.regular) {
      names.push_back(object.name);
    }
  }
  for (const ForeignFormat* format : ForeignFormats()) {
    std::vector<ForeignRef> found = format->Find(names);
    if (!found.empty()) {
      return found;
    }
  }
  return FindByContent(storage, names);
}

Result<Fingerprint> MetadataFingerprint(Storage& storage, const ForeignRef& ref,
                                        const Catalog& catalog) {
  Fingerprint out{0, Crc64({})};
  for (const std::string& name : MetadataNames(ref)) {
    RESHARD_TRY_ASSIGN(const std::unique_ptr<ReadableObject> object, storage.OpenForeign(name));
    const bool in_data = std::any_of(catalog.files().begin(), catalog.files().end(),
                                     [&name](const FileEntry& file) { return file.name == name; });
    out.size += object->size();
    const std::uint64_t end =
        in_data ? std::min(kFingerprintHeadBytes, object->size()) : object->size();
    Bytes buffer(std::min<std::uint64_t>(std::uint64_t{1} << 20, end));
    for (std::uint64_t at = 0; at < end;) {
      const std::uint64_t size = std::min<std::uint64_t>(buffer.size(), end - at);
      const MutableByteSpan part = MutableByteSpan(buffer).first(size);
      RESHARD_TRY(object->ReadAt(at, part));
      out.checksum = Crc64Combine(out.checksum, Crc64(part), size);
      at += size;
    }
  }
  return out;
}

std::string IndexNameOf(const ForeignRef& ref) {
  return ref.metadata_name + std::string(kIndexSuffix);
}

Result<ForeignIndex> ReadIndex(Storage& storage, const ForeignRef& ref) {
  ForeignIndex out;
  const std::string name = IndexNameOf(ref);
  const Result<Bytes> bytes = ReadWhole(storage, name);
  if (!bytes.ok()) {
    if (bytes.error().reason == "FILE_MISSING") {
      return out;
    }
    out.notes.push_back(Ignored(name, bytes.error().message));
    return out;
  }
  Result<Catalog> catalog = DecodeIndex(storage, ref, *bytes);
  if (!catalog.ok()) {
    if (catalog.error().code == ErrorCode::kIo) {
      return tl::unexpected<Error>(std::move(catalog).error());
    }
    out.notes.push_back(Ignored(name, catalog.error().message));
    return out;
  }
  RESHARD_TRY_ASSIGN(const std::vector<ObjectInfo> objects, storage.ListForeign());
  out.catalog = WithoutStaleDigests(std::move(*catalog), objects, out.notes);
  return out;
}

Result<std::unique_ptr<ForeignMetadata>> ReadForeignMetadata(Storage& storage,
                                                             const ForeignRef& ref) {
  std::vector<std::unique_ptr<ReadableObject>> objects;
  std::vector<ByteSource*> sources;
  for (const std::string& name : MetadataNames(ref)) {
    RESHARD_TRY_ASSIGN(objects.emplace_back(), storage.OpenForeign(name));
    sources.push_back(objects.back().get());
  }
  Result<std::unique_ptr<ForeignMetadata>> metadata = FormatOf(ref).ReadMetadata(ref, sources);
  if (!metadata.ok()) {
    return tl::unexpected<Error>(metadata.error().WithContext(ref.metadata_name));
  }
  return metadata;
}

ExaminedFile ExamineFile(Storage& storage, const ForeignFormat& format, const std::string& name,
                         ByteSpan request) {
  ExaminedFile out;
  if (Status status = CheckForeignName(name); !status.ok()) {
    status.error().code = ErrorCode::kCorruption;  // the metadata names it
    out.found = tl::unexpected<Error>(std::move(status).error());
    return out;
  }
  Result<std::unique_ptr<ReadableObject>> object = storage.OpenForeign(name);
  if (!object.ok()) {
    out.found = tl::unexpected<Error>(std::move(object).error());
    return out;
  }
  out.size = (*object)->size();
  out.mtime_ns = (*object)->mtime_ns();
  out.found = format.Examine(name, **object, request);
  if (!out.found.ok()) {
    out.found = tl::unexpected<Error>(out.found.error().WithContext(name));
  }
  return out;
}

Result<ForeignCheckpoint> OpenForeign(Storage& storage, const ForeignRef& ref,
                                      const ForeignOptions& options) {
  std::vector<std::string> notes;
  if (options.use_index) {
    RESHARD_TRY_ASSIGN(ForeignIndex index, ReadIndex(storage, ref));
    if (index.catalog) {
      return ForeignCheckpoint{
          ref, Assembled{std::move(*index.catalog), {}, std::move(index.notes)}, true};
    }
    notes = std::move(index.notes);
  }
  RESHARD_TRY_ASSIGN(const std::unique_ptr<ForeignMetadata> metadata,
                     ReadForeignMetadata(storage, ref));
  const std::span<const std::string> names = metadata->files();
  std::vector<ExaminedFile> files(names.size());
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  const std::size_t threads =
      options.threads != 0 ? options.threads : std::min(cores, kMostThreads);
  ThreadPool pool(std::max<std::size_t>(1, std::min(threads, names.size())));
  TaskGroup group(pool);
  std::atomic<std::size_t> next = 0;
  for (std::size_t t = 0; t < pool.size(); ++t) {
    group.Submit([&]() -> Status {
      for (std::size_t i = next++; i < names.size(); i = next++) {
        files[i] = ExamineFile(storage, FormatOf(ref), names[i], metadata->Request(i));
      }
      return OkStatus();
    });
  }
  RESHARD_TRY(group.Wait());
  RESHARD_TRY_ASSIGN(Assembled content, FormatOf(ref).Assemble(ref, *metadata, files));
  content.notes.insert(content.notes.begin(), notes.begin(), notes.end());
  return ForeignCheckpoint{ref, std::move(content), false};
}

Error FirstFault(const std::vector<ForeignFault>& faults) {
  Error error = faults.front().error;
  const std::vector<std::string>& keys = faults.front().keys;
  if (!keys.empty()) {
    const std::vector<std::string> named(
        keys.begin(),
        keys.begin() + static_cast<std::ptrdiff_t>(std::min(keys.size(), kMostNamedKeys)));
    error.message += fmt::format(
        "; it is needed for '{}'{}", fmt::join(named, "', '"),
        keys.size() > named.size() ? fmt::format(" and {} more", keys.size() - named.size()) : "");
  }
  if (faults.size() > 1) {
    error.message += fmt::format(" ({} faults in all: `reshard verify` lists them)", faults.size());
  }
  return error;
}

}  // namespace reshard
