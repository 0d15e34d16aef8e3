#include "reshard/engine/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <thread>

#include "reshard/base/thread_pool.h"
#include "reshard/engine/checkpoint.h"
#include "reshard/engine/complete.h"
#include "reshard/engine/foreign.h"
#include "reshard/engine/key_pattern.h"
#include "reshard/engine/snapshot.h"
#include "reshard/engine/verify_snapshot.h"
#include "reshard/format/native/names.h"

namespace reshard {
namespace {

constexpr std::size_t kMostThreads = 8;
constexpr std::size_t kMostKeys = 4;

std::size_t NumThreads(const VerifyOptions& options) {
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  return options.threads > 0 ? options.threads : std::min(cores, kMostThreads);
}

/// Whether two catalogs place the same tensors at the same bytes of the same files.
bool IsSameLayout(const Catalog& a, const Catalog& b) {
  const CatalogColumns& x = a.columns();
  const CatalogColumns& y = b.columns();
  const bool same_files =
      std::equal(x.files.begin(), x.files.end(), y.files.begin(), y.files.end(),
                 [](const FileEntry& f, const FileEntry& g) {
                   return f.name == g.name && f.size == g.size && f.encoding == g.encoding;
                 });
  return same_files && x.keys == y.keys && x.key_ends == y.key_ends && x.dtypes == y.dtypes &&
         x.axes == y.axes && x.shapes == y.shapes && x.chunk_ends == y.chunk_ends &&
         x.chunk_files == y.chunk_files && x.chunk_offsets == y.chunk_offsets &&
         x.chunk_orders == y.chunk_orders && x.chunk_boxes == y.chunk_boxes;
}

class Verifier {
 public:
  Verifier(Storage& storage, const VerifyOptions& options)
      : storage_(storage), options_(options), pool_(NumThreads(options)) {}

  Result<VerifyReport> Run() {
    RESHARD_TRY_ASSIGN(const std::vector<ObjectInfo> objects, storage_.ListForeign());
    RESHARD_TRY_ASSIGN(const CheckpointList list, ListCheckpoints(storage_));
    RESHARD_TRY(CheckIds(list));
    for (std::size_t i = 0; i < list.ids.size(); ++i) {
      if (!options_.unique_id || *options_.unique_id == list.ids[i]) {
        RESHARD_TRY(list.native() ? VerifyId(list.ids[i])
                                  : VerifyForeign(list.foreign[i], objects));
      }
    }
    std::uint64_t tensors = 0;
    for (const SnapshotVerdict& verdict : report_.snapshots) {
      tensors += verdict.tensors;
    }
    if (!options_.keys.empty() && tensors == 0 && report_.whole()) {
      return MakeError(ErrorCode::kNotFound, "NO_SUCH_KEY",
                       fmt::format("no tensor in {} matches '{}'", storage_.description(),
                                   options_.keys.front()));
    }
    NoteStrays(objects, list);
    return std::move(report_);
  }

 private:
  Status CheckIds(const CheckpointList& list) const {
    if (options_.unique_id && !list.Has(*options_.unique_id)) {
      return MakeError(
          ErrorCode::kNotFound, "NO_SNAPSHOT",
          fmt::format("{} holds no snapshot {}", storage_.description(), *options_.unique_id));
    }
    if (list.empty()) {
      return MakeError(ErrorCode::kNotFound, "NO_SNAPSHOT",
                       fmt::format("{} holds no snapshot", storage_.description()));
    }
    return OkStatus();
  }

  Status VerifyId(std::uint64_t id) {
    const std::string name = native::CatalogName(id);
    const Result<Bytes> before = ReadWhole(storage_, name);
    SnapshotVerdict verdict;
    RESHARD_TRY(VerifyOnce(id, verdict));
    if (!verdict.faults.empty()) {
      // An overwrite removes the files of the catalog that it replaced.
      const Result<Bytes> after = ReadWhole(storage_, name);
      if (before.ok() && after.ok() && *before != *after) {
        verdict = SnapshotVerdict();
        RESHARD_TRY(VerifyOnce(id, verdict));
      }
    }
    report_.snapshots.push_back(std::move(verdict));
    return OkStatus();
  }

  Status VerifyOnce(std::uint64_t id, SnapshotVerdict& verdict) {
    verdict.unique_id = id;
    Result<Catalog> catalog = ReadCatalog(storage_, id);
    if (!catalog.ok()) {
      verdict.faults.push_back(
          {std::move(catalog).error(), native::CatalogName(id), std::nullopt, {}, 0});
      unknown_ids_.insert(id);
      return OkStatus();
    }
    for (const FileEntry& file : catalog->files()) {
      listed_.insert(file.name);
    }
    return VerifySnapshot(*catalog, storage_, options_, pool_, verdict);
  }

  /// The layout is always derived from the foreign files; an index adds checksums.
  Status VerifyForeign(const ForeignRef& ref, const std::vector<ObjectInfo>& objects) {
    SnapshotVerdict verdict;
    verdict.unique_id = ref.unique_id;
    ForeignOptions foreign;
    foreign.use_index = false;
    foreign.threads = options_.threads;
    Result<ForeignCheckpoint> opened = OpenForeign(storage_, ref, foreign);
    RESHARD_TRY_ASSIGN(const ForeignIndex index, ReadIndex(storage_, ref));
    report_.notes.insert(report_.notes.end(), index.notes.begin(), index.notes.end());
    if (opened.ok()) {
      const Assembled& content = opened->content;
      report_.notes.insert(report_.notes.end(), content.notes.begin(), content.notes.end());
      AddFaults(content.faults, verdict);
      NoteUnnamed(ref, content, objects);
      if (index.catalog && content.faults.empty() &&
          !IsSameLayout(*index.catalog, content.catalog)) {
        verdict.faults.push_back({{ErrorCode::kCorruption, "INDEX_MISMATCH",
                                   fmt::format("{} does not describe what {} and its data files "
                                               "hold; `reshard index` writes it anew",
                                               IndexNameOf(ref), ref.metadata_name),
                                   false, false},
                                  IndexNameOf(ref),
                                  std::nullopt,
                                  {},
                                  0});
      }
    } else {
      verdict.faults.push_back({opened.error(), ref.metadata_name, std::nullopt, {}, 0});
    }
    verdict.structure_only = !index.catalog;
    if (index.catalog) {
      const std::size_t known = verdict.faults.size();
      RESHARD_TRY(VerifySnapshot(*index.catalog, storage_, options_, pool_, verdict));
      DropRepeated(known, verdict.faults);
    } else if (opened.ok()) {
      RESHARD_TRY(VerifySnapshot(opened->content.catalog, storage_, options_, pool_, verdict));
    }
    report_.snapshots.push_back(std::move(verdict));
    return OkStatus();
  }

  /// Data files of that id of which the metadata names nothing.
  void NoteUnnamed(const ForeignRef& ref, const Assembled& content,
                   const std::vector<ObjectInfo>& objects) {
    std::set<std::string_view> named(ref.more_names.begin(), ref.more_names.end());
    named.insert(ref.metadata_name);
    for (const FileEntry& file : content.catalog.files()) {
      named.insert(file.name);
    }
    for (const ForeignFault& fault : content.faults) {
      named.insert(fault.file);
    }
    for (const ObjectInfo& object : objects) {
      if (FormatOf(ref).IsDataFileName(ref, object.name) && named.count(object.name) == 0) {
        report_.notes.push_back(
            fmt::format("{}: {} does not name it; it is left over, or its copies "
                        "of tensors are not the ones that count",
                        object.name, ref.metadata_name));
      }
    }
  }

  /// A file that is missing is so for the structure and for the index: once is enough.
  static void DropRepeated(std::size_t known, std::vector<VerifyFault>& faults) {
    const auto later = faults.begin() + static_cast<std::ptrdiff_t>(known);
    faults.erase(std::remove_if(later, faults.end(),
                                [&](const VerifyFault& fault) {
                                  return std::any_of(
                                      faults.begin(), later, [&fault](const VerifyFault& first) {
                                        return first.file == fault.file &&
                                               first.error.reason == fault.error.reason;
                                      });
                                }),
                 faults.end());
  }

  void AddFaults(const std::vector<ForeignFault>& faults, SnapshotVerdict& verdict) const {
    for (const ForeignFault& fault : faults) {
      std::vector<std::string> keys;
      std::copy_if(fault.keys.begin(), fault.keys.end(), std::back_inserter(keys),
                   [this](const std::string& key) { return MatchesAnyKey(options_.keys, key); });
      if (keys.empty() && !options_.keys.empty()) {
        continue;
      }
      const std::size_t count = keys.size();
      keys.resize(std::min(count, kMostKeys));
      verdict.faults.push_back({fault.error, fault.file, std::nullopt, std::move(keys), count});
    }
  }

  /// Native names of the checked ids that their catalogs do not list.
  void NoteStrays(const std::vector<ObjectInfo>& objects, const CheckpointList& list) {
    std::map<std::uint64_t, std::uint64_t> orphans;  // data files without a commit record, by id
    std::set<std::uint64_t> deleting;
    for (const ObjectInfo& object : objects) {
      const std::optional<native::Name> name = native::ParseName(object.name);
      if (!name || name->kind == native::NameKind::kCatalog ||
          (options_.unique_id && *options_.unique_id != name->unique_id)) {
        continue;
      }
      if (name->kind == native::NameKind::kDeleting) {
        deleting.insert(name->unique_id);
        report_.notes.push_back(object.name +
                                ": a deletion that did not end; `reshard gc` finishes it");
      } else if (name->kind == native::NameKind::kTempCatalog) {
        report_.notes.push_back(
            object.name + ": a save at work, or one that died; `reshard gc` removes the latter");
      } else if (!list.native() || !list.Has(name->unique_id)) {
        ++orphans[name->unique_id];
      } else if (listed_.count(object.name) == 0 && unknown_ids_.count(name->unique_id) == 0) {
        report_.notes.push_back(object.name + ": no snapshot needs it; `reshard gc` removes it");
      }
    }
    for (const auto& [id, count] : orphans) {
      if (deleting.count(id) == 0) {
        report_.notes.push_back(OrphanNote(id, count));
      }
    }
  }

  static std::string OrphanNote(std::uint64_t id, std::uint64_t count) {
    return fmt::format(
        "{0} data file(s) of snapshot {1}, but not its commit record {2}: an unfinished save, or a "
        "lost record. `reshard gc` removes them once they are old: find out first",
        count, id, native::CatalogName(id));
  }

  Storage& storage_;
  const VerifyOptions& options_;
  ThreadPool pool_;
  std::set<std::string> listed_;         // data files that a catalog lists
  std::set<std::uint64_t> unknown_ids_;  // their catalogs cannot be read
  VerifyReport report_;
};

}  // namespace

bool VerifyReport::whole() const {
  return std::all_of(snapshots.begin(), snapshots.end(),
                     [](const SnapshotVerdict& verdict) { return verdict.faults.empty(); });
}

std::optional<std::uint64_t> VerifyReport::newest_whole() const {
  const auto at = std::find_if(snapshots.rbegin(), snapshots.rend(),
                               [](const auto& verdict) { return verdict.faults.empty(); });
  return at == snapshots.rend() ? std::nullopt : std::optional(at->unique_id);
}

bool VerifyReport::damaged() const {
  return std::any_of(snapshots.begin(), snapshots.end(), [](const SnapshotVerdict& verdict) {
    return std::any_of(verdict.faults.begin(), verdict.faults.end(),
                       [](const VerifyFault& fault) { return IsIncomplete(fault.error); });
  });
}

Result<VerifyReport> Verify(Storage& storage, const VerifyOptions& options) {
  return Verifier(storage, options).Run();
}

}  // namespace reshard
