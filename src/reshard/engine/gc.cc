#include "reshard/engine/gc.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>

#include "reshard/engine/checkpoint.h"
#include "reshard/engine/complete.h"
#include "reshard/engine/gc_scan.h"
#include "reshard/engine/verify.h"
#include "reshard/format/native/names.h"
#include "reshard/storage/posix_storage.h"

namespace reshard {
namespace {

std::string NameOf(const std::string& path, std::uint64_t id) {
  return ToString(SnapshotRef{path, id});
}

/// Opens a place; null when it is gone.
Result<std::unique_ptr<Storage>> OpenPlace(const Places& places, const std::string& path) {
  Result<std::unique_ptr<Storage>> storage = places.open(path);
  if (!storage.ok() && storage.error().code == ErrorCode::kNotFound) {
    return std::unique_ptr<Storage>();
  }
  return storage;
}

class Planner {
 public:
  Planner(const Places& places, const GcOptions& options, const Clock& clock)
      : places_(places), options_(options) {
    const auto now =
        std::chrono::duration_cast<std::chrono::nanoseconds>(clock.WallNow().time_since_epoch());
    const std::chrono::nanoseconds age = std::min(options.older_than, kLongest);
    cutoff_ns_ = (now - age).count();
  }

  Result<GcPlan> Run() {
    if (options_.keep == 0) {
      return MakeError(ErrorCode::kInvalidArgument, "BAD_KEEP",
                       "gc keeps at least the newest complete snapshot: keep must be 1 or more");
    }
    for (auto path = places_.paths.rbegin(); path != places_.paths.rend(); ++path) {
      RESHARD_TRY_ASSIGN(const std::unique_ptr<Storage> storage, OpenPlace(places_, *path));
      if (storage != nullptr) {
        RESHARD_TRY(LookInto(*path, *storage));
      }
    }
    NoteNone();
    // Without a complete snapshot nothing was judged older than one.
    std::reverse(snapshots_.begin(), snapshots_.end());
    plan_.items = std::move(interrupted_);
    std::move(snapshots_.begin(), snapshots_.end(), std::back_inserter(plan_.items));
    std::move(strays_.begin(), strays_.end(), std::back_inserter(plan_.items));
    return std::move(plan_);
  }

 private:
  static constexpr std::chrono::seconds kLongest = std::chrono::hours(24 * 365 * 100);

  Status LookInto(const std::string& path, Storage& storage) {
    RESHARD_TRY_ASSIGN(const GcDirectory directory, ScanForGc(storage));
    RESHARD_TRY(LookForForeign(path, storage, directory));
    bool all_goes = true;
    for (auto at = directory.ids.rbegin(); at != directory.ids.rend(); ++at) {
      const auto& [unique_id, id] = *at;
      bool catalog_goes = false;
      if (id.catalog) {
        RESHARD_TRY_ASSIGN(catalog_goes, JudgeSnapshot(path, storage, unique_id, id));
      }
      const bool marker_goes = JudgeMarker(path, unique_id, id);
      const bool rest_goes = JudgeStrays(path, unique_id, id, catalog_goes);
      all_goes = all_goes && (!id.catalog || catalog_goes) && marker_goes && rest_goes;
    }
    // The lock keeps two overwriters apart as long as there may be one.
    if (directory.replace_lock && all_goes && directory.replace_lock->mtime_ns < cutoff_ns_) {
      GcItem item;
      item.path = path;
      item.last = directory.replace_lock->name;
      item.bytes = directory.replace_lock->size;
      strays_.push_back(std::move(item));
    }
    return OkStatus();
  }

  /// Whether a committed snapshot goes.
  Result<bool> JudgeSnapshot(const std::string& path, Storage& storage, std::uint64_t unique_id,
                             const GcId& id) {
    if (plan_.kept.size() < options_.keep) {
      const Status complete = CheckKept(storage, unique_id);
      if (complete.ok()) {
        plan_.kept.push_back({path, unique_id});
      } else if (IsIncomplete(complete.error())) {
        plan_.notes.push_back(fmt::format("{} is not complete ({}); kept, and not counted",
                                          NameOf(path, unique_id), complete.error().message));
      } else {
        return tl::unexpected<Error>(complete.error().WithContext(path));
      }
      return false;
    }
    if (id.busy()) {
      plan_.notes.push_back(
          fmt::format("{} is kept: a save of that id is at work", NameOf(path, unique_id)));
      return false;
    }
    GcItem item = MakeItem(GcKind::kSnapshot, path, unique_id, id.committed.attempt);
    item.last = id.catalog->name;
    item.catalog_checksum = id.committed.checksum;
    item.bytes = id.catalog->size;
    for (const auto& [number, attempt] : id.attempts) {
      for (const ObjectInfo& file : attempt.files) {
        if (id.committed.files.count(file.name) > 0) {
          AddFile(file, item);
        }
      }
    }
    snapshots_.push_back(std::move(item));
    return true;
  }

  /// Whether a snapshot counts as one that is kept.
  Status CheckKept(Storage& storage, std::uint64_t unique_id) const {
    RESHARD_TRY(OpenComplete(storage, unique_id));
    if (!options_.verify) {
      return OkStatus();
    }
    VerifyOptions verify;
    verify.unique_id = unique_id;
    verify.progress = options_.progress;
    RESHARD_TRY_ASSIGN(const VerifyReport report, Verify(storage, verify));
    for (const SnapshotVerdict& verdict : report.snapshots) {
      for (const VerifyFault& fault : verdict.faults) {
        if (IsIncomplete(fault.error) || !report.damaged()) {
          return tl::unexpected<Error>(fault.error);
        }
      }
    }
    return OkStatus();
  }

  Status LookForForeign(const std::string& path, Storage& storage, const GcDirectory& directory) {
    for (const auto& [unique_id, id] : directory.ids) {
      if (id.catalog) {
        any_snapshot_ = true;
        return OkStatus();
      }
    }
    RESHARD_TRY_ASSIGN(const CheckpointList list, ListCheckpoints(storage));
    if (!list.empty() || !list.unknown.empty()) {
      foreign_.push_back(path);
    }
    return OkStatus();
  }

  /// Says so when there is nothing for gc to keep.
  void NoteNone() {
    if (any_snapshot_ || places_.paths.empty()) {
      return;
    }
    if (foreign_.empty()) {
      plan_.notes.push_back(
          fmt::format("{} holds no snapshot, nor does anything below it; check the path",
                      places_.paths.front()));
      return;
    }
    plan_.notes.push_back(fmt::format(
        "{}{} holds a checkpoint of another format; gc removes native "
        "snapshots only, and found none",
        foreign_.back(),
        foreign_.size() == 1 ? std::string() : fmt::format(" (and {} more)", foreign_.size() - 1)));
  }

  /// Whether no marker of a deletion stays.
  bool JudgeMarker(const std::string& path, std::uint64_t unique_id, const GcId& id) {
    if (!id.marker) {
      return true;
    }
    if (id.busy() || (id.catalog && !id.committed.readable)) {
      plan_.notes.push_back(
          fmt::format("{}/{} waits: its id is in use again", path, id.marker->name));
      return false;
    }
    GcItem item = MakeItem(GcKind::kInterrupted, path, unique_id, id.deleting.attempt);
    item.last = id.marker->name;
    item.bytes = id.marker->size;
    for (const auto& [number, attempt] : id.attempts) {
      for (const ObjectInfo& file : attempt.files) {
        if (id.deleting.files.count(file.name) > 0 && id.committed.files.count(file.name) == 0) {
          AddFile(file, item);
        }
      }
    }
    interrupted_.push_back(std::move(item));
    return true;
  }

  /// Whether nothing else of the id stays.
  bool JudgeStrays(const std::string& path, std::uint64_t unique_id, const GcId& id,
                   bool catalog_goes) {
    const bool unknown = id.catalog && !id.committed.readable && !catalog_goes;
    bool all_go = true;
    for (const auto& [number, attempt] : id.attempts) {
      GcItem item = MakeItem(GcKind::kStray, path, unique_id, number);
      for (const ObjectInfo& file : attempt.files) {
        const bool listed = id.committed.files.count(file.name) > 0;
        const bool being_deleted = id.marker && id.deleting.files.count(file.name) > 0;
        all_go = all_go && (!listed || catalog_goes);
        if (!listed && !being_deleted) {
          AddFile(file, item);
        }
      }
      if (attempt.claim) {
        item.last = attempt.claim->name;
        item.bytes += attempt.claim->size;
      }
      if (item.files.empty() && item.last.empty()) {
        continue;
      }
      if (unknown || attempt.busy || attempt.newest_ns >= cutoff_ns_) {
        all_go = false;
        NoteStay(item, attempt.busy, unknown);
      } else {
        strays_.push_back(std::move(item));
      }
    }
    return all_go;
  }

  void NoteStay(const GcItem& item, bool busy, bool unknown) {
    plan_.notes.push_back(
        fmt::format("{} attempt {}: {}", NameOf(item.path, item.unique_id), item.attempt,
                    busy      ? "a save is at work"
                    : unknown ? "its files stay, since the catalog cannot be read"
                              : "files that no snapshot needs, kept because they are recent "
                                "(--older-than)"));
  }

  static GcItem MakeItem(GcKind kind, const std::string& path, std::uint64_t unique_id,
                         std::uint64_t attempt) {
    GcItem item;
    item.kind = kind;
    item.path = path;
    item.unique_id = unique_id;
    item.attempt = attempt;
    return item;
  }

  static void AddFile(const ObjectInfo& file, GcItem& item) {
    item.files.push_back(file.name);
    item.bytes += file.size;
  }

  const Places& places_;
  const GcOptions& options_;
  std::int64_t cutoff_ns_ = 0;
  GcPlan plan_;
  bool any_snapshot_ = false;
  std::vector<std::string> foreign_;  // places with a checkpoint of another format
  std::vector<GcItem> interrupted_;
  std::vector<GcItem> snapshots_;
  std::vector<GcItem> strays_;
};

class Remover {
 public:
  Remover(const Places& places, GcPlan& plan) : places_(places), plan_(plan) {}

  Status Run() {
    for (GcItem& item : plan_.items) {
      RESHARD_TRY_ASSIGN(const std::unique_ptr<Storage> storage, OpenPlace(places_, item.path));
      if (storage == nullptr) {
        continue;
      }
      // An overwrite may have renamed without having synced: what it replaced goes only after that.
      RESHARD_TRY(storage->SyncNames());
      RESHARD_TRY(RemoveItem(*storage, item));
      emptied_.insert(item.path);
    }
    if (places_.remove_if_empty) {
      for (auto path = emptied_.rbegin(); path != emptied_.rend(); ++path) {
        RESHARD_TRY(places_.remove_if_empty(*path));
      }
    }
    return OkStatus();
  }

 private:
  Status RemoveItem(Storage& storage, GcItem& item) {
    if (item.last == kReplaceLockName) {
      return RemoveReplaceLock(storage, item);
    }
    RESHARD_TRY_ASSIGN(const HeldClaim held, HoldClaim(storage, item.unique_id, item.attempt));
    if (held.busy) {
      return Skip(item, "a save is at work");
    }
    if (item.kind == GcKind::kSnapshot) {
      return RemoveSnapshot(storage, item);
    }
    // A save of this id may have committed since the plan was made.
    RESHARD_TRY_ASSIGN(
        const std::optional<CatalogSummary> committed,
        SummarizeCatalog(storage, native::CatalogName(item.unique_id), item.unique_id));
    if (committed && !committed->readable) {
      return Skip(item, "the catalog of its id cannot be read");
    }
    if (committed) {
      std::erase_if(item.files, [&committed](const std::string& name) {
        return committed->files.count(name) > 0;
      });
    }
    return RemoveFiles(storage, item, item.last);
  }

  Status RemoveSnapshot(Storage& storage, GcItem& item) {
    RESHARD_TRY_ASSIGN(const bool busy, IsBusy(storage, item.unique_id));
    if (busy) {
      return Skip(item, "a save of that id is at work");
    }
    const std::string marker = native::DeletingName(item.unique_id);
    Status renamed = storage.Rename(item.last, marker);
    if (!renamed.ok()) {
      const ErrorCode code = renamed.error().code;
      if (code == ErrorCode::kNotFound || code == ErrorCode::kAlreadyExists) {
        return Skip(item, "another gc is at work");
      }
      return renamed;
    }
    Result<std::optional<CatalogSummary>> taken = SummarizeCatalog(storage, marker, item.unique_id);
    if (!taken.ok() || !*taken || (*taken)->checksum != item.catalog_checksum) {
      RESHARD_TRY(storage.Rename(marker, item.last));
      RESHARD_TRY(storage.SyncNames());
      if (!taken.ok()) {
        return tl::unexpected<Error>(std::move(taken).error());
      }
      return Skip(item, "it was overwritten meanwhile");
    }
    RESHARD_TRY(storage.SyncNames());
    return RemoveFiles(storage, item, marker);
  }

  /// Files first; what tells of them goes last, when they are gone for good.
  Status RemoveFiles(Storage& storage, GcItem& item, const std::string& last) {
    for (const std::string& name : item.files) {
      RESHARD_TRY(storage.Remove(name));
    }
    if (!item.files.empty()) {
      RESHARD_TRY(storage.SyncNames());
    }
    if (!last.empty()) {
      RESHARD_TRY(storage.Remove(last));
      RESHARD_TRY(storage.SyncNames());
    }
    item.removed = true;
    return OkStatus();
  }

  static Result<bool> IsBusy(Storage& storage, std::uint64_t unique_id) {
    RESHARD_TRY_ASSIGN(const std::vector<ObjectInfo> objects, storage.List());
    for (const ObjectInfo& object : objects) {
      const std::optional<native::Name> name = native::ParseName(object.name);
      if (name && name->kind == native::NameKind::kTempCatalog && name->unique_id == unique_id) {
        RESHARD_TRY_ASSIGN(const HeldClaim held, HoldClaim(storage, unique_id, name->attempt));
        if (held.busy) {
          return true;
        }
      }
    }
    return false;
  }

  Status RemoveReplaceLock(Storage& storage, GcItem& item) {
    RESHARD_TRY_ASSIGN(const GcDirectory now, ScanForGc(storage));
    if (!now.ids.empty()) {
      return Skip(item, "the directory is in use");
    }
    return RemoveFiles(storage, item, item.last);
  }

  Status Skip(const GcItem& item, std::string_view why) {
    plan_.notes.push_back(
        fmt::format("{} was left alone: {}", NameOf(item.path, item.unique_id), why));
    return OkStatus();
  }

  const Places& places_;
  GcPlan& plan_;
  std::set<std::string> emptied_;
};

}  // namespace

std::string_view GcKindName(GcKind kind) {
  switch (kind) {
    case GcKind::kSnapshot:
      return "snapshot";
    case GcKind::kInterrupted:
      return "interrupted";
    case GcKind::kStray:
      return "stray";
  }
  return "unknown";
}

std::uint64_t GcPlan::bytes() const {
  return std::accumulate(items.begin(), items.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const GcItem& item) { return sum + item.bytes; });
}

Result<GcPlan> PlanGc(const Places& places, const GcOptions& options, const Clock& clock) {
  return Planner(places, options, clock).Run();
}

Status RunGc(const Places& places, GcPlan& plan) { return Remover(places, plan).Run(); }

}  // namespace reshard
