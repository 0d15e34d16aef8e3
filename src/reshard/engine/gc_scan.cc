#include "reshard/engine/gc_scan.h"

#include <algorithm>

#include "reshard/codec/crc64.h"
#include "reshard/engine/complete.h"
#include "reshard/engine/snapshot.h"
#include "reshard/format/native/names.h"
#include "reshard/storage/posix_storage.h"

namespace reshard {
namespace {

/// The claim's name, when `name` is what the hard-link fallback left of its replacement.
std::optional<native::Name> ParseKept(std::string_view name) {
  if (!name.ends_with(kReplaceKeepSuffix)) {
    return std::nullopt;
  }
  name.remove_suffix(std::string_view(kReplaceKeepSuffix).size());
  const std::optional<native::Name> claim = native::ParseName(name);
  return claim && claim->kind == native::NameKind::kTempCatalog ? claim : std::nullopt;
}

void AddName(const ObjectInfo& object, GcDirectory& out) {
  if (!object.regular) {
    return;
  }
  if (object.name == kReplaceLockName) {
    out.replace_lock = object;
    return;
  }
  const std::optional<native::Name> kept = ParseKept(object.name);
  const std::optional<native::Name> name = kept ? kept : native::ParseName(object.name);
  if (!name) {
    return;
  }
  GcId& id = out.ids[name->unique_id];
  if (name->kind == native::NameKind::kCatalog) {
    id.catalog = object;
  } else if (name->kind == native::NameKind::kDeleting) {
    id.marker = object;
  } else {
    GcAttempt& attempt = id.attempts[name->attempt];
    attempt.newest_ns = std::max(attempt.newest_ns, object.mtime_ns);
    if (name->kind == native::NameKind::kTempCatalog && !kept) {
      attempt.claim = object;
    } else {
      attempt.files.push_back(object);
    }
  }
}

/// The claims are looked at after the listing: one that is gone by now was published meanwhile.
Status FindBusy(Storage& storage, std::uint64_t unique_id, GcId& id) {
  for (auto& [number, attempt] : id.attempts) {
    if (attempt.claim) {
      RESHARD_TRY_ASSIGN(const HeldClaim held, HoldClaim(storage, unique_id, number));
      attempt.busy = held.busy || (held.lock == nullptr && !storage.Open(attempt.claim->name).ok());
    }
  }
  return OkStatus();
}

Status ReadCatalogs(Storage& storage, std::uint64_t unique_id, GcId& id) {
  if (id.catalog) {
    RESHARD_TRY_ASSIGN(const std::optional<CatalogSummary> summary,
                       SummarizeCatalog(storage, id.catalog->name, unique_id));
    if (!summary) {  // went meanwhile: by another gc
      id.catalog.reset();
    } else {
      id.committed = *summary;
      const auto own = id.attempts.find(summary->attempt);
      if (summary->readable && own != id.attempts.end()) {
        own->second.newest_ns = std::max(own->second.newest_ns, id.catalog->mtime_ns);
      }
    }
  }
  if (id.marker) {
    RESHARD_TRY_ASSIGN(const std::optional<CatalogSummary> summary,
                       SummarizeCatalog(storage, id.marker->name, unique_id));
    if (!summary) {
      id.marker.reset();
    } else {
      id.deleting = *summary;
    }
  }
  return OkStatus();
}

}  // namespace

bool GcId::busy() const {
  return std::any_of(attempts.begin(), attempts.end(),
                     [](const auto& entry) { return entry.second.busy; });
}

Result<std::optional<CatalogSummary>> SummarizeCatalog(Storage& storage, std::string_view name,
                                                       std::uint64_t unique_id) {
  const Result<Bytes> bytes = ReadWhole(storage, name);
  if (!bytes.ok() && bytes.error().code == ErrorCode::kNotFound) {
    return std::optional<CatalogSummary>();
  }
  CatalogSummary summary;
  if (!bytes.ok()) {
    if (!IsIncomplete(bytes.error())) {
      return tl::unexpected<Error>(bytes.error());
    }
    return std::optional(summary);
  }
  summary.checksum = Crc64(*bytes);
  const Result<Catalog> catalog = DecodeSnapshotCatalog(*bytes, name);
  if (!catalog.ok() && !IsIncomplete(catalog.error())) {  // written by a newer version
    return tl::unexpected<Error>(catalog.error());
  }
  if (!catalog.ok() || catalog->info().unique_id != unique_id) {
    return std::optional(summary);
  }
  summary.readable = true;
  summary.attempt = catalog->info().attempt;
  for (const FileEntry& file : catalog->files()) {
    summary.files.insert(file.name);
  }
  return std::optional(std::move(summary));
}

Result<HeldClaim> HoldClaim(Storage& storage, std::uint64_t unique_id, std::uint64_t attempt) {
  Result<std::unique_ptr<StorageLock>> lock =
      storage.TryLock(native::TempCatalogName(unique_id, attempt));
  HeldClaim held;
  if (lock.ok()) {
    held.busy = *lock == nullptr;
    held.lock = std::move(*lock);
    return held;
  }
  const ErrorCode code = lock.error().code;
  if (code == ErrorCode::kNotFound || code == ErrorCode::kUnsupported) {
    return held;  // no claim; or no locks, and age alone decides
  }
  if (code == ErrorCode::kCorruption) {  // not a plain file: somebody else's
    held.busy = true;
    return held;
  }
  return tl::unexpected<Error>(std::move(lock).error());
}

Result<GcDirectory> ScanForGc(Storage& storage) {
  RESHARD_TRY_ASSIGN(const std::vector<ObjectInfo> objects, storage.List());
  GcDirectory out;
  for (const ObjectInfo& object : objects) {
    AddName(object, out);
  }
  for (auto& [unique_id, id] : out.ids) {
    RESHARD_TRY(ReadCatalogs(storage, unique_id, id));
    RESHARD_TRY(FindBusy(storage, unique_id, id));
  }
  return out;
}

}  // namespace reshard
