#include "reshard/engine/latest.h"

#include <fmt/format.h>

#include "reshard/engine/checkpoint.h"
#include "reshard/engine/complete.h"

namespace reshard {
namespace {

Status LookInto(const std::string& path, Storage& storage, Latest& latest) {
  RESHARD_TRY_ASSIGN(const CheckpointList list, ListCheckpoints(storage));
  if (!list.unknown.empty()) {
    latest.foreign.push_back(path);
  }
  for (std::size_t i = list.ids.size(); i-- > 0;) {
    const std::uint64_t id = list.ids[i];
    Result<Catalog> catalog =
        list.native() ? OpenComplete(storage, id) : OpenComplete(storage, list.foreign[i]);
    if (catalog.ok()) {
      latest.newest = SnapshotRef{path, id};
      latest.only_one = list.ids.size() == 1;
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
