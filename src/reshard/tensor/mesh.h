#pragma once

// Process meshes and placements: which box of a tensor each rank holds.
//
// Conventions follow PyTorch's DTensor and Paddle's dist tensor: a mesh is an n-d array of global
// ranks; placement i says what mesh axis i does to the tensor. Several mesh axes may cut one tensor
// axis: they cut in mesh-axis order, the first one coarsest. A cut of n elements over k ranks gives
// every rank ceil(n / k), the last ones what is left: 5 over 4 is 2, 2, 1, 0 (torch.chunk's rule).

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "reshard/base/bytes.h"
#include "reshard/base/result.h"
#include "reshard/tensor/box.h"

namespace reshard {

/// The mesh axis cuts tensor axis `axis`; a negative axis counts from the end.
struct Shard {
  int axis = 0;
  bool operator==(const Shard&) const = default;
};

/// Every rank along the mesh axis holds the same elements.
struct Replicate {
  bool operator==(const Replicate&) const = default;
};

/// Every rank holds a summand; the tensor itself exists nowhere, so it cannot be saved.
struct Partial {
  bool operator==(const Partial&) const = default;
};

using Placement = std::variant<Shard, Replicate, Partial>;

/// Most ranks a mesh may have; a larger number is a slip of the pen.
inline constexpr std::uint64_t kMaxMeshRanks = 1U << 24;

/// An n-d array of distinct global ranks with named axes.
class ProcessMesh {
 public:
  /// `ranks` in row-major order of `shape`; empty means 0, 1, 2, ... Empty `axis_names` means "d0",
  /// "d1", ... A mesh of no axes has one rank. Errors: kInvalidArgument BAD_MESH (size mismatch,
  /// repeated or negative rank, zero extent, more than kMaxMeshRanks, other number of names, empty
  /// or repeated name).
  static Result<ProcessMesh> Create(Shape shape, std::vector<std::string> axis_names = {},
                                    std::vector<int> ranks = {});

  /// Reads "dp=2,tp=4". Errors: kInvalidArgument BAD_MESH naming the part.
  static Result<ProcessMesh> Parse(std::string_view text);

  const Shape& shape() const { return shape_; }

  const std::vector<std::string>& axis_names() const { return axis_names_; }

  const std::vector<int>& ranks() const { return ranks_; }

  /// The rank's coordinates, or nothing when it is outside the mesh. Cost: logarithmic in the
  /// ranks.
  std::optional<Index> Coordinates(int global_rank) const;

  /// Extent of the named axis, 1 when there is none of that name.
  std::uint64_t AxisSize(std::string_view name) const;

 private:
  ProcessMesh() = default;
  Shape shape_;
  std::vector<std::string> axis_names_;
  std::vector<int> ranks_;
  std::vector<std::pair<int, std::uint64_t>> positions_;  // (rank, place in ranks_), sorted
};

/// A part of an axis: [offset, offset + extent).
struct AxisPart {
  std::uint64_t offset = 0;
  std::uint64_t extent = 0;
  bool operator==(const AxisPart&) const = default;
};

/// AxisPart `part` of `count` elements cut over `parts` ranks.
/// `part` must be below `parts`, `count` below 2^63. Empty pieces lie at the end: offset = count.
AxisPart CutEvenly(std::uint64_t count, std::uint64_t parts, std::uint64_t part);

/// The box of `global_shape` that `global_rank` holds; nothing for a rank outside the mesh. A piece
/// may be empty: extent 0 at the end of the axis. One placement per mesh axis. Sub-byte dtypes are
/// cut in units.
/// Errors: kInvalidArgument PLACEMENT_COUNT, BAD_AXIS, PARTIAL_PLACEMENT (with advice to reduce
/// first), and those of CheckShape. They do not depend on the rank.
Result<std::optional<Box>> LocalBox(std::span<const std::uint64_t> global_shape, DType dtype,
                                    const ProcessMesh& mesh, std::span<const Placement> placements,
                                    int global_rank);

/// The boxes that hold exactly the elements [begin, end) of the row-major flattening of `local`
/// (a box of a tensor, offsets kept): at most 2 * axes - 1 boxes, disjoint, in row-major order.
/// Zero axes: one box for [0, 1). An empty range gives none. Errors: kInvalidArgument BAD_RANGE
/// when begin > end or end exceeds the elements.
Result<std::vector<Box>> FlattenedRangeToBoxes(BoxView local, std::uint64_t begin,
                                               std::uint64_t end);

}  // namespace reshard
