#pragma once

// Gc: removes old snapshots and what dead saves left behind, in an order that a crash cannot turn
// into a damaged snapshot.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "reshard/base/clock.h"
#include "reshard/base/result.h"
#include "reshard/engine/latest.h"
#include "reshard/engine/places.h"
#include "reshard/engine/progress.h"

namespace reshard {

/// Choices of PlanGc.
struct GcOptions {
  /// Complete snapshots to keep, the newest ones; at least 1.
  std::uint64_t keep = 1;
  /// What a dead save left is removed when nothing of that attempt changed for so long.
  std::chrono::seconds older_than = std::chrono::hours(24);
  /// Read the snapshots that are to be kept whole, as Verify does; a damaged one stays and is not
  /// counted. Without it payload bytes are not read: complete means the catalog, and every file
  /// with its size and head.
  bool verify = false;
  ProgressCallback progress = nullptr;  ///< Of `verify`, for each snapshot anew.
};

/// Why something is removed.
enum class GcKind {
  kSnapshot,     ///< Older than the snapshots that are kept.
  kInterrupted,  ///< A deletion that did not end.
  kStray,        ///< Left by a save that died, or replaced by an overwrite.
};

/// "snapshot", "interrupted", "stray".
std::string_view GcKindName(GcKind kind);

/// Things that are removed together.
struct GcItem {
  GcKind kind = GcKind::kStray;
  std::string path;  ///< The directory.
  std::uint64_t unique_id = 0;
  std::uint64_t attempt = 0;
  std::vector<std::string> files;  ///< Without the catalog or claim, which goes last.
  std::string last;                ///< That one; empty: there is none.
  std::uint64_t bytes = 0;
  std::uint64_t catalog_checksum = 0;  ///< kSnapshot: CRC-64 of the catalog that was judged.
  bool removed = false;                ///< Set by RunGc.
};

/// What is kept and what goes.
struct GcPlan {
  std::vector<SnapshotRef> kept;   ///< Complete ones, the newest first.
  std::vector<GcItem> items;       ///< In the order of removal.
  std::vector<std::string> notes;  ///< What stays although nobody needs it, and why.

  std::uint64_t bytes() const;
};

/// Decides; changes nothing. Over all places, newest first as in FindLatest: the `keep` newest
/// complete snapshots stay, and whatever is newer than the last of them; older ones go, complete or
/// not, unless a save of their id is at work (the lock of a claim is held). Without a complete
/// snapshot none goes. A stray goes when no claim of its attempt is locked and every file of the
/// attempt is older than options.older_than. Only names of the native format are looked at.
/// Without any native snapshot a note says so.
/// Errors: kInvalidArgument BAD_KEEP; whatever kept it from being found out: then nothing may be
/// removed.
Result<GcPlan> PlanGc(const Places& places, const GcOptions& options, const Clock& clock);

/// Removes what the plan says. A snapshot: its catalog becomes "{id}.reshard.deleting", names are
/// synced, its files go, names are synced, the marker goes; so a crash leaves either the snapshot,
/// or a marker that the next gc finishes from. What changed since the plan was made is left alone
/// (a catalog that was replaced meanwhile is put back), and noted in `plan.notes`.
/// Errors: the first failure; what was not removed is found again by the next gc.
Status RunGc(const Places& places, GcPlan& plan);

}  // namespace reshard
