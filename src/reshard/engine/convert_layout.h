#pragma once

// How a conversion lays its tensors out: in which dtype each is stored, on how many ranks, and
// which box of it each of these saves.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/tensor/mesh.h"

namespace reshard {

/// The placements of the tensors whose keys match a shell pattern (MatchesKey).
struct PlacementRule {
  std::string pattern;
  std::vector<Placement> placements;  ///< One per axis of the mesh.
};

/// The dtype of the floating-point tensors whose keys match a shell pattern.
struct DTypeRule {
  std::string pattern;
  DType dtype = DType::kFloat32;
};

/// What the caller wants of the layout.
struct LayoutOptions {
  /// Every tensor is cut along its first axis over so many ranks, as Shard(0) does. 0: as many as
  /// the per-rank values need, 1 when there are none.
  int ranks = 0;
  /// Instead of `ranks`: the ranks are those of this mesh. A tensor is placed by the first rule
  /// that matches its key; without one it is cut along its first axis over all ranks, as `ranks`
  /// does. A tensor without axes is whole on every rank.
  std::optional<ProcessMesh> mesh;
  std::vector<PlacementRule> placements;
  /// For formats that cut no tensor: a file holds at most so many bytes of tensors, or one tensor
  /// that is larger. 0: no bound.
  std::uint64_t max_file_bytes = 0;
  /// The dtype of a floating-point tensor is that of the first rule that matches its key, else
  /// `dtype` when given, which leaves 4- and 6-bit types as they are. Others keep theirs.
  std::optional<DType> dtype;
  std::vector<DTypeRule> dtypes;
};

/// What the destination's format holds.
struct LayoutLimits {
  bool cut_tensors = true;
  bool aliases = true;
  bool per_rank_values = true;
  bool skip_unsupported = false;  ///< Values per rank may be left out, where they are not held.
};

/// The part of a catalog that is converted.
struct ConvertSelection {
  std::vector<TensorId> tensors;
  std::vector<std::size_t> objects;  ///< The first of each key.
};

/// The layout of a selection. Immutable, so thread-safe.
class ConvertLayout {
 public:
  /// Checks the options against each other, the format and the tensors. Errors: kInvalidArgument
  /// CONVERT_LAYOUT (options that do not go together), UNUSED_RULE (a rule that decides nothing),
  /// MISSING_PER_RANK, those of LocalBox, naming rule and tensor; kUnsupported CAST.
  static Result<ConvertLayout> Create(const Catalog& catalog, const ConvertSelection& selection,
                                      const LayoutOptions& options, const LayoutLimits& limits);

  int ranks() const { return ranks_; }

  /// In the destination.
  DType dtype(TensorId tensor) const { return dtypes_[tensor]; }

  /// Bytes in the destination.
  std::uint64_t num_bytes(TensorId tensor) const;

  /// Whether some tensor changes its dtype.
  bool casts() const { return casts_; }

  /// Whether each tensor lies whole on one rank, which alone need know of it.
  bool whole() const { return !rank_of_.empty(); }

  /// What `rank` saves of a selected tensor; may be empty. With whole(): nothing when another rank
  /// saves it.
  std::optional<Box> BoxOf(TensorId tensor, int rank) const;

  /// Equal for two tensors exactly if they share their bytes in the destination, where the format
  /// can store them once: the first tensor of those.
  TensorId identity(TensorId tensor) const { return identities_[tensor]; }

 private:
  explicit ConvertLayout(const Catalog& catalog) : catalog_(&catalog) {}

  Status ChooseDTypes(const ConvertSelection& selection, const LayoutOptions& options);
  Status ChooseRanks(const ConvertSelection& selection, const LayoutOptions& options,
                     const LayoutLimits& limits);
  Status ChooseRules(const ConvertSelection& selection, const LayoutOptions& options);
  void FindIdentities(const ConvertSelection& selection, bool aliases);
  Status Distribute(const ConvertSelection& selection, std::uint64_t max_file_bytes);
  Result<std::optional<Box>> Place(TensorId tensor, int rank) const;

  const Catalog* catalog_;
  int ranks_ = 1;
  bool casts_ = false;
  std::vector<DType> dtypes_;              // per tensor of the catalog
  std::vector<TensorId> identities_;       // likewise
  std::vector<std::uint32_t> rules_;       // likewise: 0, or 1 + the rule that places it
  std::vector<int> rank_of_;               // likewise, where tensors are not cut
  std::vector<PlacementRule> placements_;  // those of the options
  std::optional<ProcessMesh> mesh_;        // that of the options
  std::optional<ProcessMesh> line_;        // all ranks in a row
};

/// "replicate,shard(1)". Errors: kInvalidArgument BAD_PLACEMENT.
Result<std::vector<Placement>> ParsePlacements(std::string_view text);

/// The opposite.
std::string ToString(std::span<const Placement> placements);

}  // namespace reshard
