#include "reshard/engine/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <thread>

#include "reshard/base/thread_pool.h"
#include "reshard/engine/complete.h"
#include "reshard/engine/snapshot.h"
#include "reshard/engine/verify_snapshot.h"
#include "reshard/format/native/names.h"

namespace reshard {
namespace {

constexpr std::size_t kMostThreads = 8;

std::size_t NumThreads(const VerifyOptions& options) {
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  return options.threads > 0 ? options.threads : std::min(cores, kMostThreads);
}

class Verifier {
 public:
  Verifier(Storage& storage, const VerifyOptions& options)
      : storage_(storage), options_(options), pool_(NumThreads(options)) {}

  Result<VerifyReport> Run() {
    RESHARD_TRY_ASSIGN(const std::vector<ObjectInfo> objects, storage_.List());
    RESHARD_TRY(ChooseIds(objects));
    for (const std::uint64_t id : ids_) {
      RESHARD_TRY(VerifyId(id));
    }
    std::uint64_t tensors = 0;
    for (const SnapshotVerdict& verdict : report_.snapshots) {
      tensors += verdict.tensors;
    }
    if (!options_.keys.empty() && tensors == 0 && report_.whole()) {
      return MakeError(ErrorCode::kInvalidArgument, "NO_SUCH_KEY",
                       fmt::format("no tensor in {} matches '{}'", storage_.description(),
                                   options_.keys.front()));
    }
    NoteStrays(objects);
    return std::move(report_);
  }

 private:
  Status ChooseIds(const std::vector<ObjectInfo>& objects) {
    for (const ObjectInfo& object : objects) {
      const std::optional<native::Name> name = native::ParseName(object.name);
      if (name && name->kind == native::NameKind::kCatalog &&
          (!options_.unique_id || *options_.unique_id == name->unique_id)) {
        ids_.insert(name->unique_id);
      }
    }
    if (ids_.empty()) {
      return MakeError(
          ErrorCode::kNotFound, "NO_SNAPSHOT",
          options_.unique_id
              ? fmt::format("{} holds no snapshot {}", storage_.description(), *options_.unique_id)
              : fmt::format("{} holds no snapshot", storage_.description()));
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

  /// Native names of the checked ids that their catalogs do not list.
  void NoteStrays(const std::vector<ObjectInfo>& objects) {
    for (const ObjectInfo& object : objects) {
      const std::optional<native::Name> name = native::ParseName(object.name);
      if (!name || name->kind == native::NameKind::kCatalog ||
          (options_.unique_id && *options_.unique_id != name->unique_id)) {
        continue;
      }
      if (name->kind == native::NameKind::kDeleting) {
        report_.notes.push_back(object.name +
                                ": a deletion that did not end; `reshard gc` finishes it");
      } else if (name->kind == native::NameKind::kTempCatalog) {
        report_.notes.push_back(
            object.name + ": a save at work, or one that died; `reshard gc` removes the latter");
      } else if (listed_.count(object.name) == 0 && unknown_ids_.count(name->unique_id) == 0) {
        report_.notes.push_back(object.name + ": no snapshot needs it; `reshard gc` removes it");
      }
    }
  }

  Storage& storage_;
  const VerifyOptions& options_;
  ThreadPool pool_;
  std::set<std::uint64_t> ids_;
  std::set<std::string> listed_;         // data files that a catalog lists
  std::set<std::uint64_t> unknown_ids_;  // their catalogs cannot be read
  VerifyReport report_;
};

}  // namespace

bool VerifyReport::whole() const {
  return std::all_of(snapshots.begin(), snapshots.end(),
                     [](const SnapshotVerdict& verdict) { return verdict.faults.empty(); });
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
