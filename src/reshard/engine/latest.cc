#include "reshard/engine/latest.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/engine/complete.h"
#include "reshard/engine/snapshot.h"

namespace reshard {
namespace {

std::vector<std::uint64_t> CommittedNewestFirst(const DirectoryView& view) {
  std::vector<std::uint64_t> ids;
  for (const auto& [id, names] : view.ids) {
    if (names.committed) {
      ids.push_back(id);
    }
  }
  return {ids.rbegin(), ids.rend()};
}

Status LookInto(const std::string& path, Storage& storage, Latest& latest) {
  RESHARD_TRY_ASSIGN(const DirectoryView view, ViewDirectory(storage));
  const std::vector<std::uint64_t> ids = CommittedNewestFirst(view);
  if (ids.empty() && !view.foreign_name.empty()) {
    latest.foreign.push_back(path);
  }
  for (const std::uint64_t id : ids) {
    Result<Catalog> catalog = OpenComplete(storage, id);
    if (catalog.ok()) {
      latest.newest = SnapshotRef{path, id};
      latest.only_one = ids.size() == 1;
      return OkStatus();
    }
    if (!IsIncomplete(catalog.error())) {
      return tl::unexpected<Error>(catalog.error().WithContext(path));
    }
    latest.skipped.push_back({{path, id}, std::move(catalog).error()});
  }
  return OkStatus();
}

}  // namespace

std::string ToString(const SnapshotRef& snapshot) {
  return fmt::format("{}@{}", snapshot.path, snapshot.unique_id);
}

Result<Latest> FindLatest(const Places& places) {
  Latest latest;
  for (auto path = places.paths.rbegin(); path != places.paths.rend(); ++path) {
    Result<std::unique_ptr<Storage>> storage = places.open(*path);
    if (!storage.ok()) {
      if (storage.error().code == ErrorCode::kNotFound) {  // removed meanwhile
        continue;
      }
      return tl::unexpected<Error>(std::move(storage).error());
    }
    RESHARD_TRY(LookInto(*path, **storage, latest));
    if (latest.newest) {
      break;
    }
  }
  return latest;
}

Result<Latest> FindLatest(const std::string& root) {
  RESHARD_TRY_ASSIGN(const Places places, FindPlaces(root));
  return FindLatest(places);
}

}  // namespace reshard
