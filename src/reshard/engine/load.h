#pragma once

// Load: a snapshot into the tensors of a state dict, in place, whatever the layout it was saved
// with.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/catalog/resolve.h"
#include "reshard/catalog/value.h"
#include "reshard/comm/process_group.h"
#include "reshard/engine/progress.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// How bytes get from files to ranks.
enum class Transfer {
  kAuto,  ///< Direct, or exchange when some rank does not see a file or bytes would be read often.
  kDirect,    ///< Every rank reads what it needs.
  kExchange,  ///< Every byte is read once, by one rank that sees it, and sent on.
};

/// Choices of Load; all ranks must pass the same (else OPTIONS_MISMATCH), `rename`, `progress` and
/// `threads` apart.
struct LoadOptions {
  /// Which snapshot; without it the newest committed one.
  std::optional<std::uint64_t> unique_id;
  /// Global rank that reads the catalog and plans; must be in the group.
  int coordinator_rank = 0;
  /// Missing and mismatched keys are errors; otherwise they are in the report.
  bool strict = true;
  /// Check every byte against the stored checksums.
  bool verify = true;
  DTypePolicy dtype = DTypePolicy::kExact;
  ShapePolicy shape = ShapePolicy::kExact;
  PerRankPolicy per_rank = PerRankPolicy::kExact;
  /// Find optimizer master weights under their other name (static or dynamic graph).
  bool mw_name_compatibility = true;
  /// Wanted flat key -> stored key, before the master-weight names.
  RenameRule rename;
  Transfer transfer = Transfer::kAuto;
  /// Readers in flight on this rank; 0: as many as the machine has cores, at most 8.
  std::size_t threads = 0;
  /// Bound on buffers: staging for sinks and casts, and the exchange.
  std::uint64_t memory_bytes = std::uint64_t{256} * 1024 * 1024;
  ProgressCallback progress;
};

/// What happened; the lists are those of this rank, `unexpected` of all ranks together.
struct LoadReport {
  std::uint64_t unique_id = 0;
  std::vector<std::string> missing;     ///< Wanted, not stored.
  std::vector<std::string> unexpected;  ///< Stored, wanted by no rank; per-rank values too.
  std::vector<Mismatch> mismatched;     ///< Stored with another dtype, shape or kind.
  std::vector<std::pair<std::string, std::string>> renamed;  ///< (wanted, stored)
  bool exchanged = false;                                    ///< Bytes were read once and sent on.
  std::uint64_t bytes_needed = 0;    ///< Tensor bytes that this rank wanted.
  std::uint64_t bytes_read = 0;      ///< From storage by this rank, catalog apart.
  std::uint64_t bytes_received = 0;  ///< That other ranks read.
  std::uint64_t cast_overflows = 0;  ///< Values that became infinite in a cast.
};

/// Loads into `state` in place: tensor leaves give where (boxes of the global tensor, memory or
/// sink), other leaves are replaced by the stored objects. A tensor leaf without shards wants
/// nothing. Nothing is written into any target before all ranks agree that the request fits; after
/// a data fault (kCorruption, kIo) the contents of the targets are unspecified.
///
/// Every element of every target is covered exactly once and, by default, verified: blocks that are
/// read whole by their checksums; blocks read in part by the tensor's digest when the ranks
/// together load the whole tensor, else by reading the block whole.
///
/// Memory: at most options.memory_bytes plus the catalog, whatever the checkpoint's size.
/// Errors: kNotFound NO_SNAPSHOT, DIRECTORY_MISSING (there is nothing to resume from),
///         MISSING_KEYS, FILE_MISSING; kInvalidArgument MISMATCH, and those of a bad target;
///         kCorruption BLOCK_CHECKSUM, TENSOR_DIGEST, FILE_SIZE, FILE_HEAD, CATALOG_*; kIo
///         (retryable when the stored bytes were found whole on a second look); kCancelled;
///         kPeerFailed. The same error on every rank.
/// Collective: yes. Source: ARCHITECTURE.md ("A load"), docs/format/native.md sections 2 and 3,
///         docs/format/checksums.md.
Result<LoadReport> Load(StateDict& state, Storage& storage, ProcessGroup& group,
                        const LoadOptions& options = {});

/// The same from the directory `path`, or from "PATH@ID", which names the snapshot as the command
/// line does: when nothing exists under the literal name and options.unique_id is not another.
Result<LoadReport> Load(StateDict& state, const std::string& path, ProcessGroup& group,
                        const LoadOptions& options = {});

}  // namespace reshard
