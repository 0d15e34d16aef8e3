#include "reshard/engine/index.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

#include "reshard/base/thread_pool.h"
#include "reshard/engine/verify_snapshot.h"
#include "reshard/format/native/catalog_codec.h"

namespace reshard {
namespace {

constexpr std::size_t kMostThreads = 8;

tl::unexpected<Error> ChangedMeanwhile(const std::string& name) {
  return MakeError(ErrorCode::kUnavailable, "CHANGED_MEANWHILE",
                   fmt::format("{} was written to while it was indexed; is a job still saving "
                               "there? Index it when that has ended",
                               name));
}

Result<std::int64_t> ModifiedTime(Storage& storage, const std::string& name) {
  RESHARD_TRY_ASSIGN(const std::unique_ptr<ReadableObject> object, storage.OpenForeign(name));
  return object->mtime_ns();
}

/// The data files are those that were examined. (They need not be in the directory's listing.)
Status CheckUnchanged(Storage& storage, const Catalog& catalog) {
  for (const FileEntry& file : catalog.files()) {
    const Result<std::int64_t> written = ModifiedTime(storage, file.name);
    if (!written.ok() || *written != file.mtime_ns) {
      return ChangedMeanwhile(file.name);
    }
  }
  return OkStatus();
}

std::string TempName(const std::string& name) { return name + ".a0.tmp"; }

/// Creates the temporary object; one that a dead writer left goes first.
Result<std::unique_ptr<WritableObject>> CreateTemp(Storage& storage, const std::string& name) {
  Result<std::unique_ptr<WritableObject>> created = storage.Create(name, {0, true});
  if (created.ok() || created.error().reason != "FILE_EXISTS") {
    return created;
  }
  RESHARD_TRY_ASSIGN(const std::unique_ptr<StorageLock> lock, storage.TryLock(name));
  if (lock == nullptr) {
    return MakeError(ErrorCode::kUnavailable, "WRITER_AT_WORK",
                     fmt::format("{} is locked: another program is writing this index", name));
  }
  RESHARD_TRY(storage.Remove(name));
  return storage.Create(name, {0, true});
}

Status PublishIndex(Storage& storage, const std::string& name, ByteSpan bytes) {
  const std::string temp = TempName(name);
  // Only a plain file may be replaced.
  const Result<std::unique_ptr<ReadableObject>> older = storage.Open(name);
  if (!older.ok() && older.error().reason != "FILE_MISSING") {
    return tl::unexpected<Error>(older.error());
  }
  RESHARD_TRY_ASSIGN(const std::unique_ptr<WritableObject> object, CreateTemp(storage, temp));
  RESHARD_TRY(object->WriteAt(0, bytes));
  RESHARD_TRY(object->Finish(bytes.size()));
  RESHARD_TRY(storage.SyncNames());
  Result<Published> published = storage.Publish(temp, name, PublishMode::kReplace);
  if (!published.ok()) {
    static_cast<void>(storage.Remove(temp).ok());
    return tl::unexpected<Error>(std::move(published).error());
  }
  if (published->replaced) {
    static_cast<void>(storage.Remove(temp).ok());
  }
  return storage.SyncNames();
}

/// The catalog with checksums, as an index of that metadata.
Result<Bytes> EncodeIndex(const Catalog& catalog, const StoredChecksums& sums,
                          const Fingerprint& metadata) {
  CatalogColumns columns = catalog.columns();
  columns.info.kind = CatalogKind::kIndex;
  columns.info.metadata_size = metadata.size;
  columns.info.metadata_checksum = metadata.checksum;
  columns.block_checksums.clear();
  for (std::size_t file = 0; file < columns.files.size(); ++file) {
    columns.files[file].has_blocks = true;
    columns.block_checksums.insert(columns.block_checksums.end(), sums.blocks[file].begin(),
                                   sums.blocks[file].end());
  }
  for (std::size_t tensor = 0; tensor < sums.digests.size(); ++tensor) {
    columns.has_digest[tensor] = sums.digests[tensor].has_value() ? 1 : 0;
    columns.digests[tensor] = sums.digests[tensor].value_or(0);
  }
  RESHARD_TRY_ASSIGN(const Catalog index, Catalog::Create(std::move(columns)));
  return native::EncodeCatalog(index);
}

}  // namespace

Result<IndexReport> WriteIndex(Storage& storage, const ForeignRef& ref,
                               const IndexOptions& options) {
  ForeignOptions foreign;
  foreign.use_index = false;
  foreign.threads = options.threads;
  RESHARD_TRY_ASSIGN(const std::int64_t written, ModifiedTime(storage, ref.metadata_name));
  RESHARD_TRY_ASSIGN(const ForeignCheckpoint opened, OpenForeign(storage, ref, foreign));
  if (!opened.content.faults.empty()) {
    return tl::unexpected<Error>(FirstFault(opened.content.faults));
  }
  const Catalog& catalog = opened.content.catalog;
  RESHARD_TRY_ASSIGN(const Fingerprint before, MetadataFingerprint(storage, ref, catalog));
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  ThreadPool pool(options.threads != 0 ? options.threads : std::min(cores, kMostThreads));
  VerifyOptions reading;
  reading.progress = options.progress;
  RESHARD_TRY_ASSIGN(const StoredChecksums sums, TakeChecksums(catalog, storage, reading, pool));
  RESHARD_TRY(CheckUnchanged(storage, catalog));
  RESHARD_TRY_ASSIGN(const Fingerprint after, MetadataFingerprint(storage, ref, catalog));
  RESHARD_TRY_ASSIGN(const std::int64_t written_after, ModifiedTime(storage, ref.metadata_name));
  if (!(before == after) || written != written_after) {
    return ChangedMeanwhile(ref.metadata_name);
  }
  RESHARD_TRY_ASSIGN(const Bytes bytes, EncodeIndex(catalog, sums, before));
  IndexReport report;
  report.name = IndexNameOf(ref);
  RESHARD_TRY(PublishIndex(storage, report.name, bytes));
  report.tensors = catalog.num_tensors();
  report.digests = static_cast<std::uint64_t>(
      std::count_if(sums.digests.begin(), sums.digests.end(),
                    [](const std::optional<std::uint64_t>& digest) { return digest.has_value(); }));
  report.files = catalog.files().size();
  for (const FileEntry& file : catalog.files()) {
    report.bytes += file.size;
  }
  report.notes = opened.content.notes;
  return report;
}

}  // namespace reshard
