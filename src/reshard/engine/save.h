#pragma once

// Save: a sharded state dict of all ranks becomes one committed snapshot.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/catalog/save_plan.h"
#include "reshard/catalog/value.h"
#include "reshard/comm/process_group.h"
#include "reshard/engine/progress.h"
#include "reshard/storage/storage.h"

namespace reshard {

class WriteTurns;

/// Remembers the plan of the last save, so that a training loop that saves the same tensors again
/// does not plan anew. Every rank may have one; the coordinator's counts. Not thread-safe.
class SavePlanCache {
 public:
  SavePlanCache();
  ~SavePlanCache();
  SavePlanCache(SavePlanCache&&) noexcept;
  SavePlanCache& operator=(SavePlanCache&&) noexcept;

  /// How often a plan was taken from here.
  std::uint64_t hits() const;

  struct Entry;

  std::unique_ptr<Entry>& entry() { return entry_; }

 private:
  std::unique_ptr<Entry> entry_;
};

/// Choices of Save; all ranks must pass the same format, skip_unsupported, unique_id,
/// coordinator_rank and overwrite. Of the rest the coordinator's `plan` and `plan_cache` count.
struct SaveOptions {
  /// "native"; "safetensors": one file of one rank, else one per rank and Hugging Face's index, and
  /// no ids; "paddle", which Paddle 3.2 and later load; "paddle:RELEASE", which that release of
  /// Paddle loads (2.6 to 3.1 load one form, 3.2 and later the other); "torch", "torch:RELEASE":
  /// PyTorch DCP, which 2.6 and later load.
  std::string format = "native";
  /// Leave out what the format cannot hold, instead of failing; the result says what that was.
  bool skip_unsupported = false;
  /// The version number of the snapshot; without it the next free one (1 + the largest committed),
  /// in Paddle's format 0.
  std::optional<std::uint64_t> unique_id;
  /// Global rank that plans and writes the commit record; must be in the group.
  int coordinator_rank = 0;
  /// Replace the snapshot `unique_id` if it is committed. Readers see the old or the new one,
  /// whole.
  bool overwrite = false;
  /// Writers in flight on this rank.
  std::size_t threads = 3;
  SavePlanOptions plan;
  SavePlanCache* plan_cache = nullptr;
  ProgressCallback progress;
  /// Size of a writer's buffer, a multiple of kBlockBytes.
  std::size_t buffer_bytes = std::size_t{8} << 20;
  /// Ranks that are threads of one process may share one, so that only some of them have buffers at
  /// a time. Null: all write at once.
  WriteTurns* turns = nullptr;
  /// Called on the coordinator with the finished catalog, digests included, before the commit; an
  /// error ends the save on all ranks. May be missing.
  std::function<Status(const Catalog&)> inspect;
};

/// What was saved; the same on every rank but for bytes_written.
struct SaveResult {
  std::uint64_t unique_id = 0;
  std::uint64_t attempt = 0;
  std::uint64_t bytes_total = 0;     ///< Tensor bytes of the snapshot, each replica once.
  std::uint64_t bytes_written = 0;   ///< By this rank, header included.
  std::string file_name;             ///< This rank's (first) data file, empty when it wrote none.
  std::vector<std::string> skipped;  ///< With skip_unsupported: "key: why", sorted by key.
};

/// Saves `state` of all ranks of `group` into `storage`. Returns on every rank only when the
/// snapshot is committed and durable, or with the same error everywhere. Replicas (the same box on
/// several ranks) are stored once; tensors that share memory are stored once. The previous
/// snapshots stay readable at every moment; a crash leaves the new one absent.
///
/// `storage`  each rank's own object; the same directory, or node-local ones.
/// Memory: threads x buffer_bytes of buffers on each rank; the plan of all ranks on the
/// coordinator. Errors: kInvalidArgument (the state dict, ranks that disagree: OPTIONS_MISMATCH,
///         BAD_COORDINATOR and those of PlanSave; BAD_FORMAT, BAD_RELEASE; FOREIGN_DIRECTORY,
///         ID_CLASH), kUnsupported UNSUPPORTED_BY_FORMAT (lists what the format cannot hold),
///         kAlreadyExists SNAPSHOT_EXISTS (committed id without overwrite), ONE_ID_PER_DIRECTORY
///         (Paddle's format) and LOST_RACE, kIo and what Storage returns, kCancelled (callback),
///         kPeerFailed, kIndeterminate COMMIT_UNKNOWN: it may or may not be committed; read the
///         directory to find out.
/// Collective: yes. Source: ARCHITECTURE.md ("A save"), docs/format/native.md sections 1 to 3,
///         docs/format/paddle.md.
Result<SaveResult> Save(const StateDict& state, Storage& storage, ProcessGroup& group,
                        const SaveOptions& options = {});

/// The same into the directory `path`, which is made when it is missing, with its parents. It is
/// removed again when the state dict or the options are refused. Errors: also kIo CREATE,
/// kInvalidArgument NOT_A_DIRECTORY.
Result<SaveResult> Save(const StateDict& state, const std::string& path, ProcessGroup& group,
                        const SaveOptions& options = {});

}  // namespace reshard
