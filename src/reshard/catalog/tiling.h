#pragma once

// Does a set of boxes cover a region exactly once? And: which boxes meet a given box?

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "reshard/tensor/box.h"

namespace reshard {

/// Whether `boxes` (each inside `region`) cover every element of `region` exactly once. Empty boxes
/// count for nothing; an empty region needs no box.
///
/// Cost: boxes x axes. The indicator of a box is fixed by its corners; with a random value h(axis,
/// x) per coordinate, a box weighs prod(h(axis, end) - h(axis, begin)) and the weights of a tiling
/// add up to the region's. A set of boxes that is no tiling passes with probability <= axes / 2^61
/// (the polynomial in h is not zero; Schwartz 1980, Zippel 1979), whoever made it: h is drawn per
/// process.
bool TilesExactly(BoxView region, std::span<const BoxView> boxes);

/// Why `boxes` do not tile `region`, for a message: indices of two boxes that overlap, or neither.
struct TilingFault {
  std::size_t first = 0;
  std::size_t second = 0;
  bool overlap = false;  ///< False: a part of the region is not covered.
};

/// Call only when TilesExactly said no. Cost: n log n for grids, more only on the error path.
TilingFault FindTilingFault(std::span<const BoxView> boxes);

/// Finds the boxes that meet a given one, without looking at all of them.
class BoxIndex {
 public:
  /// Keeps `boxes` (views; their memory must outlive the index).
  explicit BoxIndex(std::vector<BoxView> boxes);

  /// Calls `visit` with the number of each box that has an element in common with `wanted`, in
  /// increasing number.
  void ForEachMeeting(BoxView wanted, const std::function<void(std::size_t)>& visit) const;

 private:
  std::vector<BoxView> boxes_;
  std::size_t axis_ = 0;                // the axis with the most distinct starts
  std::vector<std::size_t> by_start_;   // box numbers sorted by start on axis_; empty: few boxes
  std::vector<std::uint64_t> max_end_;  // prefix maximum of the ends in that order
};

}  // namespace reshard
