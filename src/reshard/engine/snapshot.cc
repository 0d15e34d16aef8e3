#include "reshard/engine/snapshot.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "reshard/catalog/wire.h"
#include "reshard/format/native/catalog_codec.h"
#include "reshard/format/native/names.h"

namespace reshard {
namespace {

/// Names that only other formats' checkpoints use.
bool IsForeign(std::string_view name) {
  return name.ends_with(".metadata") || name.ends_with(".distcp") ||
         name == "model.safetensors.index.json" || name == "model.safetensors";
}

/// Most ids that are listed in full.
constexpr std::size_t kMostIds = 6;

constexpr std::string_view kCatalogAdvice =
    "load another snapshot, or restore this file from a copy";

/// Adds the file and, to damage, what to do.
tl::unexpected<Error> Named(const Error& error, std::string_view place) {
  Error named = error.WithContext(place);
  if (error.code == ErrorCode::kCorruption) {
    named.message += fmt::format("; {}", kCatalogAdvice);
  }
  return tl::unexpected<Error>(std::move(named));
}

tl::unexpected<Error> Renamed(std::string_view place, std::uint64_t found) {
  return MakeError(
      ErrorCode::kCorruption, "CATALOG_KIND",
      fmt::format("{} is the catalog of snapshot {}: it was renamed; give it its own name again",
                  place, found));
}

}  // namespace

std::optional<std::uint64_t> DirectoryView::newest() const {
  for (auto at = ids.rbegin(); at != ids.rend(); ++at) {
    if (at->second.committed) {
      return at->first;
    }
  }
  return std::nullopt;
}

Result<DirectoryView> ViewDirectory(Storage& storage) {
  RESHARD_TRY_ASSIGN(const std::vector<ObjectInfo> objects, storage.List());
  DirectoryView view;
  for (const ObjectInfo& object : objects) {
    const std::optional<native::Name> name = native::ParseName(object.name);
    if (!name) {
      if (view.foreign_name.empty() && IsForeign(object.name)) {
        view.foreign_name = object.name;
      }
      continue;
    }
    SnapshotNames& names = view.ids[name->unique_id];
    if (name->kind == native::NameKind::kCatalog) {
      names.committed = true;
    } else if (name->kind != native::NameKind::kDeleting) {
      names.last_attempt = std::max(names.last_attempt.value_or(0), name->attempt);
    }
  }
  return view;
}

Bytes EncodeDirectoryView(const DirectoryView& view) {
  Bytes out;
  AppendLittle(out, static_cast<std::uint64_t>(view.ids.size()));
  for (const auto& [id, names] : view.ids) {
    AppendLittle(out, id);
    out.push_back(std::byte{names.committed});
    out.push_back(std::byte{names.last_attempt.has_value()});
    AppendLittle(out, names.last_attempt.value_or(0));
  }
  AppendCounted(out, AsBytes(view.foreign_name));
  return out;
}

Result<DirectoryView> DecodeDirectoryView(ByteSpan bytes) {
  WireReader reader(bytes);
  DirectoryView view;
  std::uint64_t count = 0;
  bool good = reader.Read(count);
  for (std::uint64_t i = 0; good && i < count; ++i) {
    std::uint64_t id = 0;
    std::uint8_t committed = 0;
    std::uint8_t has_attempt = 0;
    std::uint64_t attempt = 0;
    good = reader.Read(id) && reader.Read(committed) && reader.Read(has_attempt) &&
           reader.Read(attempt);
    view.ids[id] = {committed != 0,
                    has_attempt != 0 ? std::optional(attempt) : std::optional<std::uint64_t>()};
  }
  ByteSpan name;
  if (!good || !reader.ReadCounted(name)) {
    return BadMessage("directory view");
  }
  view.foreign_name = std::string(AsText(name));
  return view;
}

void MergeViews(DirectoryView& into, const DirectoryView& other) {
  for (const auto& [id, names] : other.ids) {
    SnapshotNames& mine = into.ids[id];
    mine.committed = mine.committed || names.committed;
    if (names.last_attempt) {
      mine.last_attempt = std::max(mine.last_attempt.value_or(0), *names.last_attempt);
    }
  }
  if (into.foreign_name.empty()) {
    into.foreign_name = other.foreign_name;
  }
}

std::string IdsText(const std::vector<std::uint64_t>& ids) {
  if (ids.size() <= kMostIds) {
    return fmt::format("{}", fmt::join(ids, ", "));
  }
  return fmt::format("{}, {}, ..., {}, {}, {} ({} in all)", ids[0], ids[1], ids[ids.size() - 3],
                     ids[ids.size() - 2], ids.back(), ids.size());
}

std::string PlaceOf(const Storage& storage, std::string_view name) {
  const std::string& place = storage.description();  // of a file among others: its own path
  return place == name || place.ends_with(fmt::format("/{}", name))
             ? place
             : fmt::format("{}/{}", place, name);
}

Result<Bytes> ReadWhole(Storage& storage, std::string_view name) {
  RESHARD_TRY_ASSIGN(const std::unique_ptr<ReadableObject> object, storage.Open(name));
  Bytes bytes(object->size());
  RESHARD_TRY(object->ReadAt(0, bytes));
  return bytes;
}

Result<Catalog> DecodeSnapshotCatalog(ByteSpan bytes, std::string_view place) {
  Result<Catalog> catalog = native::DecodeCatalog(bytes);
  if (!catalog.ok()) {
    return Named(catalog.error(), place);
  }
  const bool native_name =
      std::all_of(catalog->files().begin(), catalog->files().end(), [&](const FileEntry& file) {
        const auto parsed = native::ParseName(file.name);
        return parsed && parsed->kind == native::NameKind::kDataFile &&
               parsed->unique_id == catalog->info().unique_id &&
               parsed->attempt == catalog->info().attempt;
      });
  if (catalog->info().kind != CatalogKind::kSnapshot || !native_name) {
    return MakeError(
        ErrorCode::kCorruption, "CATALOG_KIND",
        fmt::format("{}: this is no catalog of a native snapshot; {}", place, kCatalogAdvice));
  }
  return catalog;
}

Result<Catalog> ReadCatalog(Storage& storage, std::uint64_t unique_id) {
  const std::string name = native::CatalogName(unique_id);
  Result<Bytes> bytes = ReadWhole(storage, name);
  if (!bytes.ok() && bytes.error().code == ErrorCode::kNotFound) {
    RESHARD_TRY_ASSIGN(const DirectoryView view, ViewDirectory(storage));
    std::vector<std::uint64_t> ids;
    for (const auto& [id, names] : view.ids) {
      if (names.committed) {
        ids.push_back(id);
      }
    }
    return MakeError(ErrorCode::kNotFound, "NO_SNAPSHOT",
                     fmt::format("{} holds no snapshot {}; {}", storage.description(), unique_id,
                                 ids.empty() ? std::string("it holds none at all")
                                             : "it holds " + IdsText(ids)));
  }
  RESHARD_TRY_ASSIGN(const Bytes content, std::move(bytes));
  RESHARD_TRY_ASSIGN(Catalog catalog, DecodeSnapshotCatalog(content, PlaceOf(storage, name)));
  if (catalog.info().unique_id != unique_id) {
    return Renamed(PlaceOf(storage, name), catalog.info().unique_id);
  }
  return catalog;
}

}  // namespace reshard
