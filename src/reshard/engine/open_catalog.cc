#include "reshard/engine/open_catalog.h"

#include <fmt/format.h>

#include <array>
#include <string>
#include <utility>

#include "reshard/catalog/wire.h"
#include "reshard/codec/crc64.h"
#include "reshard/engine/message.h"
#include "reshard/engine/open_foreign.h"
#include "reshard/engine/snapshot.h"
#include "reshard/format/native/catalog_codec.h"
#include "reshard/format/native/names.h"

namespace reshard {
namespace {

/// What a rank can offer.
struct Candidate {
  bool found = false;
  std::uint64_t unique_id = 0;
  std::uint64_t attempt = 0;
  std::uint64_t checksum = 0;  // 0: not known
  bool needs_opening = false;  // foreign, without an index
  ForeignRef foreign;
  Bytes bytes;  // of the catalog; not sent
};

/// A foreign checkpoint, and its index if there is one.
Result<Candidate> FindForeignCandidate(Storage& storage, std::optional<std::uint64_t> unique_id) {
  RESHARD_TRY_ASSIGN(const std::vector<ForeignRef> refs, FindForeign(storage));
  Candidate out;
  for (const ForeignRef& ref : refs) {
    if (!unique_id || ref.unique_id == *unique_id) {
      out.found = true;
      out.foreign = ref;  // the last one has the largest id
    }
  }
  if (!out.found) {
    return out;
  }
  out.unique_id = out.foreign.unique_id;
  RESHARD_TRY_ASSIGN(const ForeignIndex index, ReadIndex(storage, out.foreign));
  out.needs_opening = !index.catalog;
  if (index.catalog) {
    out.attempt = index.catalog->info().attempt;
    out.bytes = native::EncodeCatalog(*index.catalog);
    out.checksum = Crc64(out.bytes);
  }
  return out;
}

Result<Candidate> FindCandidate(Storage& storage, std::optional<std::uint64_t> unique_id) {
  RESHARD_TRY_ASSIGN(const DirectoryView view, ViewDirectory(storage));
  if (!view.newest()) {
    return FindForeignCandidate(storage, unique_id);
  }
  const std::optional<std::uint64_t> id = unique_id ? unique_id : view.newest();
  Candidate out;
  if (view.ids.count(*id) == 0 || !view.ids.at(*id).committed) {
    return out;
  }
  const std::string name = native::CatalogName(*id);
  RESHARD_TRY_ASSIGN(out.bytes, ReadWhole(storage, name));
  RESHARD_TRY_ASSIGN(const Catalog catalog,
                     DecodeSnapshotCatalog(out.bytes, PlaceOf(storage, name)));
  if (catalog.info().unique_id != *id) {
    return MakeError(
        ErrorCode::kCorruption, "CATALOG_KIND",
        fmt::format("{} is the catalog of snapshot {}: it was renamed; give it its own "
                    "name again",
                    PlaceOf(storage, name), catalog.info().unique_id));
  }
  out.found = true;
  out.unique_id = *id;
  out.attempt = catalog.info().attempt;
  out.checksum = Crc64(out.bytes);
  return out;
}

/// The coordinator's choice: a rank, from everybody's messages.
class Chooser {
 public:
  Chooser(ProcessGroup& group, Storage* storage, std::optional<std::uint64_t> unique_id)
      : group_(group), storage_(storage), unique_id_(unique_id) {}

  Status Read(const std::vector<Bytes>& all) {
    for (int rank = 0; rank < group_.size(); ++rank) {
      WireReader reader(all[static_cast<std::size_t>(rank)]);
      RESHARD_TRY(UnpackStatus(reader, group_.global_rank(rank)));
      std::uint8_t shared = 0;
      std::uint8_t found = 0;
      Candidate theirs;
      std::uint8_t needs_opening = 0;
      ByteSpan format;
      ByteSpan metadata_name;
      if (!reader.Read(shared) || !reader.Read(found) || !reader.Read(theirs.unique_id) ||
          !reader.Read(theirs.attempt) || !reader.Read(theirs.checksum) ||
          !reader.Read(needs_opening) || !reader.ReadCounted(format) ||
          !reader.ReadCounted(metadata_name) || !ReadTexts(reader, theirs.foreign.more_names)) {
        return BadMessage("catalog candidate");
      }
      theirs.needs_opening = needs_opening != 0;
      theirs.foreign.format = std::string(AsText(format));
      theirs.foreign.metadata_name = std::string(AsText(metadata_name));
      theirs.foreign.unique_id = theirs.unique_id;
      all_shared_ = all_shared_ && shared != 0;
      if (found != 0) {
        RESHARD_TRY(Consider(rank, theirs));
      }
    }
    if (rank_ < 0) {
      return MakeError(
          ErrorCode::kNotFound, "NO_SNAPSHOT",
          unique_id_ ? fmt::format("{0} holds no committed snapshot {1}; `reshard info {0}` says "
                                   "what it holds",
                                   storage_->description(), *unique_id_)
                     : fmt::format("{0} holds no committed snapshot; check the path: `reshard "
                                   "latest {0}` finds those below it",
                                   storage_->description()));
    }
    return OkStatus();
  }

  int rank() const { return rank_; }

  bool all_shared() const { return all_shared_; }

  const Candidate& best() const { return best_; }

 private:
  Status Consider(int rank, const Candidate& theirs) {
    const auto order = std::pair(theirs.unique_id, theirs.attempt);
    const auto best = std::pair(best_.unique_id, best_.attempt);
    if (rank_ >= 0 && order == best && theirs.checksum != best_.checksum && theirs.checksum != 0 &&
        best_.checksum != 0) {
      return MakeError(
          ErrorCode::kCorruption, "CATALOG_CONFLICT",
          fmt::format("ranks {} and {} hold different catalogs of snapshot {}, attempt {}; "
                      "their directories belong to different runs",
                      group_.global_rank(rank_), group_.global_rank(rank), theirs.unique_id,
                      theirs.attempt));
    }
    if (rank_ < 0 || order > best) {
      rank_ = rank;
      best_ = theirs;
    }
    return OkStatus();
  }

  ProcessGroup& group_;
  Storage* storage_;
  std::optional<std::uint64_t> unique_id_;
  int rank_ = -1;
  Candidate best_;
  bool all_shared_ = true;
};

void AppendForeign(Bytes& out, const Candidate& candidate) {
  out.push_back(std::byte{candidate.needs_opening});
  AppendCounted(out, AsBytes(candidate.foreign.format));
  AppendCounted(out, AsBytes(candidate.foreign.metadata_name));
  AppendTexts(out, candidate.foreign.more_names);
}

}  // namespace

Result<AgreedCatalog> AgreeOnCatalog(Storage* storage, Status local, ProcessGroup& group, int root,
                                     std::optional<std::uint64_t> unique_id) {
  const std::uint64_t own = storage == nullptr ? 0 : storage->Identity();
  RESHARD_TRY_ASSIGN(const std::uint64_t root_identity, BroadcastNumber(group, own, root));
  const bool is_root = group.rank() == root;
  const bool shared = is_root || (own != 0 && own == root_identity);
  Candidate mine;
  if (local.ok() && (is_root || !shared)) {
    Result<Candidate> found = FindCandidate(*storage, unique_id);
    if (found.ok()) {
      mine = std::move(*found);
    } else {
      local = tl::unexpected<Error>(std::move(found).error());
    }
  }
  Bytes message = PackStatus(local);
  message.push_back(std::byte{shared});
  message.push_back(std::byte{mine.found});
  AppendNumbers(message, std::array{mine.unique_id, mine.attempt, mine.checksum});
  AppendForeign(message, mine);
  RESHARD_TRY_ASSIGN(const std::vector<Bytes> all, group.Gather(message, root));
  Bytes decision;
  if (is_root) {
    Chooser chooser(group, storage, unique_id);
    decision = PackStatus(chooser.Read(all));
    AppendLittle(decision, static_cast<std::uint32_t>(chooser.rank()));
    decision.push_back(std::byte{chooser.all_shared()});
    AppendLittle(decision, chooser.best().unique_id);
    AppendForeign(decision, chooser.best());
  }
  RESHARD_TRY_ASSIGN(const Bytes told, group.Broadcast(decision, root));
  WireReader reader(told);
  RESHARD_TRY(UnpackStatus(reader));
  std::uint32_t source = 0;
  std::uint8_t all_shared = 0;
  ForeignRef ref;
  std::uint8_t needs_opening = 0;
  ByteSpan format;
  ByteSpan metadata_name;
  if (!reader.Read(source) || !reader.Read(all_shared) || !reader.Read(ref.unique_id) ||
      !reader.Read(needs_opening) || !reader.ReadCounted(format) ||
      !reader.ReadCounted(metadata_name) || !ReadTexts(reader, ref.more_names) ||
      source >= static_cast<std::uint32_t>(group.size())) {
    return BadMessage("catalog decision");
  }
  if (needs_opening != 0) {
    ref.format = std::string(AsText(format));
    ref.metadata_name = std::string(AsText(metadata_name));
    RESHARD_TRY_ASSIGN(
        TogetherOpened opened,
        OpenForeignTogether(*storage, group, static_cast<int>(source), ref, all_shared != 0));
    return AgreedCatalog{std::move(opened.catalog), all_shared != 0, std::move(opened.faults)};
  }
  RESHARD_TRY_ASSIGN(const Bytes bytes, group.Broadcast(mine.bytes, static_cast<int>(source)));
  Result<Catalog> catalog =
      format.empty() ? DecodeSnapshotCatalog(bytes, "the catalog") : native::DecodeCatalog(bytes);
  if (!catalog.ok()) {
    return tl::unexpected<Error>(std::move(catalog).error());
  }
  return AgreedCatalog{std::move(*catalog), all_shared != 0, {}};
}

}  // namespace reshard
