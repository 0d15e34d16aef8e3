#include "reshard/tensor/mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <utility>

#include "reshard/base/check.h"
#include "reshard/base/checked.h"

namespace reshard {
namespace {

tl::unexpected<Error> BadMesh(std::string message) {
  return MakeError(ErrorCode::kInvalidArgument, "BAD_MESH", std::move(message));
}

Status CheckMeshShape(const Shape& shape) {
  if (shape.size() > kMaxAxes || std::ranges::find(shape, 0U) != shape.end()) {
    return BadMesh(fmt::format("mesh {} needs at most {} axes, each of at least 1 rank",
                               ToString(shape), kMaxAxes));
  }
  const auto size = CheckedProduct(shape);
  if (!size || *size > kMaxMeshRanks) {
    return BadMesh(fmt::format("mesh {} has more than {} ranks", ToString(shape), kMaxMeshRanks));
  }
  return OkStatus();
}

Status CheckAxisNames(const std::vector<std::string>& names, std::size_t axes) {
  if (names.size() != axes) {
    return BadMesh(fmt::format("{} axis names for {} mesh axes", names.size(), axes));
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i].empty()) {
      return BadMesh(fmt::format("mesh axis {} has an empty name", i));
    }
    if (std::find(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(i), names[i]) !=
        names.begin() + static_cast<std::ptrdiff_t>(i)) {
      return BadMesh(fmt::format("two mesh axes have the name '{}'", names[i]));
    }
  }
  return OkStatus();
}

// Pairs (rank, position in the mesh), sorted; an error for a rank that is negative or repeated.
Result<std::vector<std::pair<int, std::uint64_t>>> IndexRanks(const std::vector<int>& ranks) {
  std::vector<std::pair<int, std::uint64_t>> sorted;
  sorted.reserve(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0) {
      return BadMesh(fmt::format("the mesh lists rank {}; ranks begin at 0", ranks[i]));
    }
    sorted.emplace_back(ranks[i], i);
  }
  std::ranges::sort(sorted);
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i].first == sorted[i - 1].first) {
      return BadMesh(fmt::format("the mesh lists rank {} twice", sorted[i].first));
    }
  }
  return sorted;
}

// Resolves the tensor axis that each mesh axis cuts (nothing where it replicates).
Result<std::vector<std::optional<std::size_t>>> ResolveAxes(std::span<const Placement> placements,
                                                            std::size_t axes,
                                                            const ProcessMesh& mesh) {
  std::vector<std::optional<std::size_t>> cuts(placements.size());
  for (std::size_t i = 0; i < placements.size(); ++i) {
    if (std::holds_alternative<Partial>(placements[i])) {
      return MakeError(
          ErrorCode::kInvalidArgument, "PARTIAL_PLACEMENT",
          fmt::format("mesh axis '{}' is Partial: each rank holds a summand and the tensor itself "
                      "exists nowhere; reduce it (all-reduce or reduce-scatter) first",
                      mesh.axis_names()[i]));
    }
    if (const Shard* shard = std::get_if<Shard>(&placements[i])) {
      const auto count = static_cast<std::int64_t>(axes);
      const std::int64_t axis = shard->axis < 0 ? shard->axis + count : shard->axis;
      if (axis < 0 || axis >= count) {
        return MakeError(ErrorCode::kInvalidArgument, "BAD_AXIS",
                         fmt::format("mesh axis '{}' shards axis {} of a tensor of {} axes",
                                     mesh.axis_names()[i], shard->axis, axes));
      }
      cuts[i] = static_cast<std::size_t>(axis);
    }
  }
  return cuts;
}

// Splits the row-major range [begin, end) of the axes from `axis` on; `corner` holds the indices
// of the axes before, and of the extents 1.
class RangeSplitter {
 public:
  explicit RangeSplitter(BoxView local) : local_(local), corner_(local.ToBox().offset) {}

  std::vector<Box> Split(std::uint64_t begin, std::uint64_t end) {
    SplitAxis(0, NumElements(local_), begin, end);
    return std::move(boxes_);
  }

 private:
  // `elements` is the number of elements of the axes from `axis` on. A row is one step of `axis`.
  void SplitAxis(std::size_t axis, std::uint64_t elements, std::uint64_t begin, std::uint64_t end) {
    if (axis == local_.axes()) {
      boxes_.push_back({corner_, Index(axis, 1)});
      return;
    }
    const std::uint64_t row = elements / local_.extent[axis];
    std::uint64_t first = begin / row;
    const std::uint64_t last = end / row;
    if (first == last) {
      return SplitRow(axis, row, first, begin % row, end % row);
    }
    if (begin % row != 0) {
      SplitRow(axis, row, first, begin % row, row);
      ++first;
    }
    if (first < last) {
      PushRows(axis, first, last - first);
    }
    if (end % row != 0) {
      SplitRow(axis, row, last, 0, end % row);
    }
  }

  void SplitRow(std::size_t axis, std::uint64_t row, std::uint64_t index, std::uint64_t begin,
                std::uint64_t end) {
    corner_[axis] = local_.offset[axis] + index;
    SplitAxis(axis + 1, row, begin, end);
    corner_[axis] = local_.offset[axis];
  }

  void PushRows(std::size_t axis, std::uint64_t first, std::uint64_t count) {
    Box box{corner_, Index(local_.extent.begin(), local_.extent.end())};
    std::fill_n(box.extent.begin(), axis, 1);
    box.offset[axis] += first;
    box.extent[axis] = count;
    boxes_.push_back(std::move(box));
  }

  BoxView local_;
  Index corner_;
  std::vector<Box> boxes_;
};

}  // namespace

Result<ProcessMesh> ProcessMesh::Create(Shape shape, std::vector<std::string> axis_names,
                                        std::vector<int> ranks) {
  RESHARD_TRY(CheckMeshShape(shape));
  ProcessMesh mesh;
  if (axis_names.empty()) {
    for (std::size_t i = 0; i < shape.size(); ++i) {
      axis_names.push_back(fmt::format("d{}", i));
    }
  }
  RESHARD_TRY(CheckAxisNames(axis_names, shape.size()));
  const std::uint64_t size = NumElements(shape);
  if (ranks.empty()) {
    ranks.resize(size);
    std::iota(ranks.begin(), ranks.end(), 0);
  } else if (ranks.size() != size) {
    return BadMesh(fmt::format("{} ranks for mesh {} of {}", ranks.size(), ToString(shape), size));
  }
  RESHARD_TRY_ASSIGN(mesh.positions_, IndexRanks(ranks));
  mesh.shape_ = std::move(shape);
  mesh.axis_names_ = std::move(axis_names);
  mesh.ranks_ = std::move(ranks);
  return mesh;
}

Result<ProcessMesh> ProcessMesh::Parse(std::string_view text) {
  Shape shape;
  std::vector<std::string> names;
  for (std::string_view rest = text;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    const std::size_t equals = part.find('=');
    const std::string_view number =
        equals == std::string_view::npos ? std::string_view() : part.substr(equals + 1);
    std::uint64_t extent = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), extent);
    if (equals == 0 || error != std::errc() || end != number.data() + number.size() ||
        extent == 0) {
      return BadMesh(
          fmt::format("'{}' in mesh '{}' is not NAME=RANKS; write \"dp=2,tp=4\"", part, text));
    }
    names.emplace_back(part.substr(0, equals));
    shape.push_back(extent);
    if (comma == std::string_view::npos) {
      return Create(std::move(shape), std::move(names));
    }
    rest.remove_prefix(comma + 1);
  }
}

std::optional<Index> ProcessMesh::Coordinates(int global_rank) const {
  const auto found =
      std::ranges::lower_bound(positions_, global_rank, {}, &std::pair<int, std::uint64_t>::first);
  if (found == positions_.end() || found->first != global_rank) {
    return std::nullopt;
  }
  Index coordinates(shape_.size());
  std::uint64_t position = found->second;
  for (std::size_t i = shape_.size(); i-- > 0;) {
    coordinates[i] = position % shape_[i];
    position /= shape_[i];
  }
  return coordinates;
}

std::uint64_t ProcessMesh::AxisSize(std::string_view name) const {
  const auto found = std::ranges::find(axis_names_, name);
  return found == axis_names_.end() ? 1
                                    : shape_[static_cast<std::size_t>(found - axis_names_.begin())];
}

AxisPart CutEvenly(std::uint64_t count, std::uint64_t parts, std::uint64_t part) {
  RESHARD_CHECK(part < parts);
  const std::uint64_t size = count / parts + (count % parts != 0 ? 1 : 0);
  // No overflow: size * part exceeds count by less than parts, both below 2^63.
  const std::uint64_t offset = std::min(count, size * part);
  return {offset, std::min(size, count - offset)};
}

Result<std::optional<Box>> LocalBox(std::span<const std::uint64_t> global_shape, DType dtype,
                                    const ProcessMesh& mesh, std::span<const Placement> placements,
                                    int global_rank) {
  if (placements.size() != mesh.shape().size()) {
    return MakeError(
        ErrorCode::kInvalidArgument, "PLACEMENT_COUNT",
        fmt::format("{} placements for a mesh of {} axes", placements.size(), mesh.shape().size()));
  }
  RESHARD_TRY(CheckShape(global_shape, dtype));
  RESHARD_TRY_ASSIGN(const auto cuts, ResolveAxes(placements, global_shape.size(), mesh));
  const std::optional<Index> coordinates = mesh.Coordinates(global_rank);
  if (!coordinates) {
    return std::optional<Box>();
  }
  const Shape whole = ToUnits(global_shape, dtype);
  Box box = WholeBox(whole);
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    if (cuts[i]) {
      const std::size_t axis = *cuts[i];
      const AxisPart piece = CutEvenly(box.extent[axis], mesh.shape()[i], (*coordinates)[i]);
      box.offset[axis] += piece.offset;
      box.extent[axis] = piece.extent;
    }
  }
  for (std::size_t axis = 0; axis < whole.size(); ++axis) {
    if (box.extent[axis] == 0) {
      box.offset[axis] = whole[axis];  // Every empty piece is at the same place, the axis's end.
    }
  }
  if (!whole.empty()) {
    box.offset.back() *= Info(dtype).unit_elements;
    box.extent.back() *= Info(dtype).unit_elements;
  }
  return std::optional<Box>(std::move(box));
}

Result<std::vector<Box>> FlattenedRangeToBoxes(BoxView local, std::uint64_t begin,
                                               std::uint64_t end) {
  const std::uint64_t elements = NumElements(local);
  if (begin > end || end > elements) {
    return MakeError(ErrorCode::kInvalidArgument, "BAD_RANGE",
                     fmt::format("range [{}, {}) of the flattened box {} of {} elements", begin,
                                 end, ToString(local), elements));
  }
  if (begin == end) {
    return std::vector<Box>();
  }
  return RangeSplitter(local).Split(begin, end);
}

}  // namespace reshard
