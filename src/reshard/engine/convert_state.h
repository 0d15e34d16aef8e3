#pragma once

// The state dicts of a conversion: what each rank of the destination saves, its tensors being read
// from the source when they are written.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/catalog/value.h"
#include "reshard/engine/tensor_reader.h"
#include "reshard/tensor/mesh.h"

namespace reshard {

/// The part of a catalog that is converted.
struct ConvertSelection {
  std::vector<TensorId> tensors;
  std::vector<std::size_t> objects;  ///< The first of each key.
};

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
  /// All must outlive the state dicts.
  ConvertState(const Catalog& catalog, const ConvertSelection& selection, TensorReader& reader);

  /// What `rank` of `ranks` saves. A list with holes becomes a map with integer keys. Errors:
  /// kCorruption PATH_CONFLICT, BAD_OBJECT; kInvalidArgument NESTING.
  Result<StateDict> OfRank(int rank, int ranks) const;

 private:
  Result<Value> TensorOf(TensorId id, int rank, const ProcessMesh& mesh) const;
  Result<Value> ObjectOf(std::size_t first, int rank) const;

  const Catalog& catalog_;
  const ConvertSelection& selection_;
  TensorReader& reader_;
  std::vector<char> identities_;  // per tensor: its address tells which shards share bytes
};

}  // namespace reshard
