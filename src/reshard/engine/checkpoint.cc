#include "reshard/engine/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/engine/snapshot.h"

namespace reshard {

bool CheckpointList::Has(std::uint64_t id) const {
  return std::binary_search(ids.begin(), ids.end(), id);
}

Result<CheckpointList> ListCheckpoints(Storage& storage) {
  CheckpointList out;
  RESHARD_TRY_ASSIGN(const DirectoryView view, ViewDirectory(storage));
  for (const auto& [id, names] : view.ids) {
    if (names.committed) {
      out.ids.push_back(id);
    }
  }
  if (!out.ids.empty()) {
    out.format = "native";
    if (!view.foreign_name.empty()) {
      out.others.push_back(view.foreign_name);
    }
    return out;
  }
  RESHARD_TRY_ASSIGN(out.foreign, FindForeign(storage));
  for (const ForeignRef& ref : out.foreign) {
    out.format = ref.format;
    out.ids.push_back(ref.unique_id);
  }
  if (out.empty()) {
    out.unknown = view.foreign_name;
  }
  return out;
}

Result<OpenedCheckpoint> ReadCheckpoint(Storage& storage, std::optional<std::uint64_t> unique_id,
                                        const ForeignOptions& options) {
  RESHARD_TRY_ASSIGN(const CheckpointList list, ListCheckpoints(storage));
  if (list.empty() || (unique_id && !list.Has(*unique_id))) {
    return MakeError(
        ErrorCode::kNotFound, "NO_SNAPSHOT",
        list.empty() ? fmt::format("{} holds no checkpoint; check the path", storage.description())
                     : fmt::format("{} holds no snapshot {}; it holds {}", storage.description(),
                                   *unique_id, IdsText(list.ids)));
  }
  const std::uint64_t id = unique_id.value_or(list.ids.back());
  if (list.native()) {
    RESHARD_TRY_ASSIGN(Catalog catalog, ReadCatalog(storage, id));
    return OpenedCheckpoint{std::move(catalog), true, {}, {}};
  }
  const auto at = std::find(list.ids.begin(), list.ids.end(), id) - list.ids.begin();
  RESHARD_TRY_ASSIGN(ForeignCheckpoint opened,
                     OpenForeign(storage, list.foreign[static_cast<std::size_t>(at)], options));
  return OpenedCheckpoint{std::move(opened.content.catalog), opened.indexed,
                          std::move(opened.content.faults), std::move(opened.content.notes)};
}

}  // namespace reshard
