#pragma once

// The part of a comparison that reads tensors: windows of both sides, several at a time.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/engine/diff_values.h"
#include "reshard/engine/progress.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// Two tensors of equally many elements to compare.
struct DiffJob {
  /// What is read: one side, for its digest, or both, for their bytes or values.
  enum class Mode { kDigestOfA, kDigestOfB, kBytes, kValues };
  TensorId a = 0;
  TensorId b = 0;
  Mode mode = Mode::kBytes;

  std::optional<Error> error;  ///< Why it could not be done; then the rest means nothing.
  bool equal = true;           ///< The bytes (the values, of other dtypes).
  std::uint64_t digest = 0;    ///< That was computed.
  ValueDifference values;      ///< With kValues.
};

/// What a reading comparison needs.
struct DiffReadOptions {
  std::uint64_t memory_bytes = std::uint64_t{512} << 20;  ///< Bound on all buffers together.
  std::size_t threads = 0;  ///< Readers at once; 0: as many as there are cores, at most 8.
  ProgressCallback progress;
};

/// Where a side's tensors are.
struct DiffPlace {
  const Catalog& catalog;
  Storage& storage;
};

/// Does the jobs, whose modes must fit the dtypes. Returns the bytes that were read. Errors:
/// kInvalidArgument MEMORY_TOO_SMALL; kUnavailable NO_MEMORY; those of the callback. What keeps a
/// tensor from being read is in its job.
Result<std::uint64_t> ReadAndCompare(const DiffPlace& a, const DiffPlace& b,
                                     std::vector<DiffJob>& jobs, const DiffReadOptions& options);

}  // namespace reshard
