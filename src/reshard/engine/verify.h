#pragma once

// Verify: reads snapshots whole and lists everything that is wrong with them.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/engine/progress.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// Choices of Verify.
struct VerifyOptions {
  /// Which snapshot; without it every committed one.
  std::optional<std::uint64_t> unique_id;
  /// Shell patterns (MatchesKey): only these tensors, the blocks that hold them, and the files that
  /// hold those. Empty: everything.
  std::vector<std::string> keys;
  /// Readers in flight; 0: as many as the machine has cores, at most 8.
  std::size_t threads = 0;
  ProgressCallback progress;
};

/// One thing that is wrong.
struct VerifyFault {
  Error error;       ///< kCorruption or kNotFound: damaged. Others: could not be read.
  std::string file;  ///< Empty when it concerns the snapshot as a whole.
  std::optional<ByteRange> range;  ///< In the file.
  std::vector<std::string> keys;   ///< Tensors with bytes in it, the first few.
  std::uint64_t num_keys = 0;      ///< How many there are.
};

/// What was found about one snapshot.
struct SnapshotVerdict {
  std::uint64_t unique_id = 0;
  std::uint64_t tensors = 0;  ///< Checked.
  std::uint64_t files = 0;
  std::uint64_t blocks = 0;
  std::uint64_t bytes = 0;          ///< In those blocks.
  std::uint64_t digests = 0;        ///< Tensors whose digest was recomputed and compared.
  bool structure_only = false;      ///< There are no checksums: a foreign one without an index.
  std::vector<VerifyFault> faults;  ///< By file, then by place in it.
};

/// The answer.
struct VerifyReport {
  std::vector<SnapshotVerdict> snapshots;  ///< By id.
  /// Things in the directory that no snapshot needs: leftovers of saves that died, saves at work,
  /// data files whose commit record is not there.
  std::vector<std::string> notes;

  /// Whether no snapshot has a fault.
  bool whole() const;

  /// The newest one without a fault, as far as it was checked.
  std::optional<std::uint64_t> newest_whole() const;

  /// Whether some fault is damage, not a failure to read.
  bool damaged() const;
};

/// Checks, of each snapshot: the catalog and that its chunks cover each tensor exactly once; each
/// data file's presence, size and head; its header's checksum, and that the entries in it agree
/// with the catalog; every block's checksum; every tensor's digest, recomputed from its bytes.
/// Never stops at the first fault. Blocks of one file that follow each other and are all damaged
/// are one fault. If something is wrong and the catalog was replaced meanwhile by an overwrite, the
/// snapshot is checked once more.
///
/// Of a foreign checkpoint: that its metadata decodes, its data files are there and hold the arrays
/// that it names, and that these cover each tensor exactly once; with an index beside it, that this
/// describes the same layout, and then every checksum and digest as above. Without an index the
/// bytes of the tensors are not read.
///
/// Memory: the catalog, a header per reader, threads x 256 KiB, and the faults.
/// Errors (what keeps it from beginning): kNotFound NO_SNAPSHOT, NO_SUCH_KEY when no stored key
///         matches; kIo LIST; kCancelled from the progress callback.
/// Collective: no. Source: docs/format/native.md.
Result<VerifyReport> Verify(Storage& storage, const VerifyOptions& options = {});

}  // namespace reshard
