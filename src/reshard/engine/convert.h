#pragma once

// Convert: a checkpoint of any format that can be read becomes a new one, in another format, cut
// over other ranks or in other dtypes, without ever holding more of it than some buffers.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/engine/convert_layout.h"
#include "reshard/engine/progress.h"
#include "reshard/format/foreign.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// An open checkpoint to convert. References must outlive the call.
struct ConvertSource {
  const Catalog& catalog;
  Storage& storage;
  std::vector<ForeignFault> faults;  ///< Found when it was opened.
};

/// Choices of Convert.
struct ConvertOptions {
  /// Of the destination: SaveOptions::format.
  std::string format = "native";
  /// Of the destination; without it the source's id for the native format, else the format's own
  /// default.
  std::optional<std::uint64_t> unique_id;
  /// Ranks of the destination, what each holds, and in which dtypes.
  LayoutOptions layout;
  /// Bound on all buffers together; catalogs and plans come on top.
  std::uint64_t memory_bytes = std::uint64_t{512} << 20;
  /// Shell patterns (MatchesKey) over flat keys of tensors and objects: what matches one of
  /// `include` (all, when it is empty) and none of `exclude` is converted.
  std::vector<std::string> include;
  std::vector<std::string> exclude;
  /// Leave out what the format cannot hold, and tensors of kinds that are not read, and report it,
  /// instead of refusing.
  bool skip_unsupported = false;
  /// The destination may hold a checkpoint already: see SaveOptions::overwrite.
  bool overwrite = false;
  /// Only check, and report what would be done.
  bool dry_run = false;
  ProgressCallback progress;
};

/// Values of a tensor that its new dtype cannot hold.
struct CastOverflow {
  std::string key;
  DType from = DType::kFloat32;
  DType to = DType::kFloat32;
  std::uint64_t elements = 0;  ///< Finite values that became infinity, or NaN where there is none.
};

/// What was done.
struct ConvertReport {
  std::uint64_t unique_id = 0;  ///< Of the destination.
  int ranks = 0;
  bool whole = false;                   ///< No tensor was cut: a rank is a file of whole tensors.
  std::uint64_t tensors = 0;            ///< In the destination.
  std::uint64_t aliases = 0;            ///< Of them, share the bytes of another one.
  std::uint64_t objects = 0;            ///< Keys.
  std::uint64_t bytes = 0;              ///< Of the tensors, aliases once.
  std::uint64_t bytes_read = 0;         ///< From the source.
  std::uint64_t digests_equal = 0;      ///< Tensors whose digest in the source was found again.
  std::uint64_t digests_new = 0;        ///< Tensors without one there...
  std::uint64_t unverified = 0;         ///< ...of which some bytes have no checksum either.
  std::uint64_t digests_cast = 0;       ///< Tensors in another dtype: their digests are new ones.
  std::vector<CastOverflow> overflows;  ///< By key.
  std::vector<std::string> skipped;     ///< "key: why" that the format cannot hold, or we not read.
};

/// Converts. `destination` has the new checkpoint when it returns OK, and nothing new otherwise
/// (kIndeterminate excepted). Blocks are verified as they are read, where the source has checksums;
/// before the commit the digests of all tensors that keep their dtype are compared with the
/// source's. Casts round to nearest, ties to even; NaN stays NaN (tensor/cast.h). A list of the
/// nested state dict that exclusion leaves with holes becomes a map with integer keys.
///
/// Memory: options.memory_bytes of buffers, whatever the number of ranks, of which only some write
///         at once when it is little; the source's catalog; per rank of the destination a thread
///         and the description of its shards.
/// Cost: reads the source once, but for tensors that it stores column-major, whose blocks are read
///       again for every buffer that they have a part in.
/// Errors: kNotFound NO_SUCH_KEY (nothing is selected); kInvalidArgument SAME_DIRECTORY,
///         MEMORY_TOO_SMALL, those of ConvertLayout::Create; kCorruption SOURCE_FAULTS (lists
///         them), TENSOR_DIGEST, PATH_CONFLICT and those of reading; kAlreadyExists
///         SNAPSHOT_EXISTS; kUnsupported UNSUPPORTED_SOURCE (lists tensors of kinds that are not
///         read); those of Save.
/// Collective: no; it makes threads of its own.
Result<ConvertReport> Convert(const ConvertSource& source, Storage& destination,
                              const ConvertOptions& options = {});

}  // namespace reshard
