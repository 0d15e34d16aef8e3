#pragma once

// The state dicts of a conversion: what each rank of the destination saves, its tensors being read
// from the source when they are written.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/mutex.h"
#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/catalog/value.h"
#include "reshard/engine/convert_layout.h"
#include "reshard/engine/tensor_reader.h"
#include "reshard/storage/staging_buffer.h"

namespace reshard {

/// Whether a key is converted: it matches one of `include` (any, when that is empty), and none of
/// `exclude`.
bool IsSelected(std::string_view key, const std::vector<std::string>& include,
                const std::vector<std::string>& exclude);

/// The entries whose keys are selected.
ConvertSelection SelectKeys(const Catalog& catalog, const std::vector<std::string>& include,
                            const std::vector<std::string>& exclude);

/// How many ranks the per-rank values are from; 0 when there are none. Errors: kInvalidArgument
/// MISSING_PER_RANK when two differ, or one has not a value for each of `ranks` (0: any number).
Result<int> PerRankCount(const Catalog& catalog, const ConvertSelection& selection, int ranks);

/// Makes state dicts of a selection.
class ConvertState {
 public:
  /// All must outlive the state dicts. `cast_bytes`: of a buffer that a reading thread has beside
  /// the reader's, where the dtype of a tensor changes; at least 16.
  ConvertState(const Catalog& catalog, const ConvertSelection& selection,
               const ConvertLayout& layout, TensorReader& reader, std::size_t cast_bytes);

  /// What `rank` saves. A list with holes becomes a map with integer keys. Errors: kCorruption
  /// PATH_CONFLICT, BAD_OBJECT; kInvalidArgument NESTING.
  Result<StateDict> OfRank(int rank) const;

  /// What all ranks together save, as far as a format looks at it: every tensor, some of its boxes.
  Result<StateDict> Outline() const;

  /// Finite values that became infinity or NaN in their new dtype, by tensor, of all that was read
  /// so far. Thread-safe.
  std::map<TensorId, std::uint64_t> Overflows() const;

 private:
  Result<StateDict> Make(int rank, bool outline) const;
  Value TensorOf(TensorId id, std::optional<Box> box) const;
  Result<Value> ObjectOf(std::size_t first, int rank) const;
  Status ReadCast(TensorId id, const Box& box, MutableByteSpan out) const;
  Result<StagingBuffer> TakeBuffer() const;

  const Catalog& catalog_;
  const ConvertSelection& selection_;
  const ConvertLayout& layout_;
  TensorReader& reader_;
  const std::size_t cast_bytes_;
  std::vector<char> identities_;  // per tensor: its address tells which shards share bytes
  mutable Mutex mutex_;
  mutable std::vector<StagingBuffer> buffers_ RESHARD_GUARDED_BY(mutex_);  // not in use
  // Of boxes that were read, by their first element: what is read again counts once.
  mutable std::map<TensorId, std::map<std::uint64_t, std::uint64_t>> overflows_
      RESHARD_GUARDED_BY(mutex_);
};

}  // namespace reshard
