#pragma once

// From the keys a caller wants to the tensors and objects that are stored: exact names, the
// caller's rules, then the two names of master weights; and the comparison of dtypes and shapes.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/catalog/value.h"

namespace reshard {

/// What to do when the stored dtype is not the wanted one.
enum class DTypePolicy { kExact, kCast };

/// What to do when the stored shape is not the wanted one. kAllowLarger: a wanted axis may be
/// longer than the stored one (a padded vocabulary); what lies beyond the stored part keeps its
/// value.
enum class ShapePolicy { kExact, kAllowLarger };

/// What to do with per-rank values when the number of ranks changed. kSameRank: rank r takes the
/// value of rank r where there is one; kAll: every rank gets the list of all values.
enum class PerRankPolicy { kExact, kSameRank, kAll };

/// Maps a wanted flat key to the stored one; nothing when the rule does not apply.
using RenameRule = std::function<std::optional<std::string>(std::string_view)>;

/// Choices of Resolve.
struct ResolveOptions {
  DTypePolicy dtype = DTypePolicy::kExact;
  ShapePolicy shape = ShapePolicy::kExact;
  PerRankPolicy per_rank = PerRankPolicy::kExact;
  bool mw_name_compatibility = true;
  RenameRule rename;
  int rank = 0;        ///< Group rank that loads.
  int world_size = 1;  ///< Of the loading group.
};

/// A difference that keeps a key from being loaded.
struct Mismatch {
  std::string key;
  std::string what;  ///< "stored float32 (4, 8), wanted bfloat16 (4, 8)"
};

/// A wanted tensor and the stored one.
struct ResolvedTensor {
  std::size_t leaf = 0;  ///< Index among the wanted leaves.
  TensorId tensor = 0;
};

/// A wanted object and its stored value.
struct ResolvedObject {
  std::size_t leaf = 0;
  Value value;
};

/// The outcome for one rank.
struct Resolution {
  std::vector<ResolvedTensor> tensors;
  std::vector<ResolvedObject> objects;
  std::vector<std::string> missing;
  std::vector<Mismatch> mismatched;
  std::vector<std::pair<std::string, std::string>> renamed;  ///< (wanted, stored)
  std::vector<std::string> stored_keys;  ///< Stored keys that were asked for, sorted.
};

/// Resolves every wanted leaf. Errors: kInvalidArgument AMBIGUOUS_MASTER_WEIGHT; kCorruption
/// BAD_OBJECT. Keys that cannot be loaded are in the lists, not errors.
Result<Resolution> Resolve(const Catalog& catalog, const std::vector<MutableFlatEntry>& wanted,
                           const ResolveOptions& options);

/// The stored keys (tensors and objects) that are not in `asked` (sorted).
std::vector<std::string> UnaskedKeys(const Catalog& catalog, const std::vector<std::string>& asked);

}  // namespace reshard
