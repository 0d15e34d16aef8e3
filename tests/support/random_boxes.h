#pragma once

// Random cuts of a region into boxes, and boxes by their elements, for tests of tilings and plans.

#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "reshard/tensor/box.h"

namespace reshard::testing {

/// Cuts `box` at random into up to 2^depth boxes along edges that are multiples of `unit` on the
/// last axis. Together they tile it.
inline std::vector<Box> RandomTiling(const Box& box, int depth, std::uint64_t unit,
                                     std::mt19937_64& random) {
  if (depth == 0 || box.extent.empty() || random() % 5 == 0) {
    return {box};
  }
  const std::size_t axis = random() % box.extent.size();
  const std::uint64_t step = axis + 1 == box.extent.size() ? unit : 1;
  const std::uint64_t steps = box.extent[axis] / step;
  if (steps < 2) {
    return {box};
  }
  const std::uint64_t at = (1 + random() % (steps - 1)) * step;
  Box left = box;
  Box right = box;
  left.extent[axis] = at;
  right.offset[axis] += at;
  right.extent[axis] -= at;
  std::vector<Box> out = RandomTiling(left, depth - 1, unit, random);
  for (Box& piece : RandomTiling(right, depth - 1, unit, random)) {
    out.push_back(std::move(piece));
  }
  return out;
}

/// Calls `visit` with the row-major number, in a tensor of `shape`, of each element of `box`.
inline void ForEachElement(BoxView box, std::span<const std::uint64_t> shape,
                           const std::function<void(std::uint64_t)>& visit) {
  const std::uint64_t count = NumElements(box);
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t rest = i;
    std::uint64_t number = 0;
    std::uint64_t stride = 1;
    for (std::size_t a = shape.size(); a-- > 0;) {
      number += (box.offset[a] + rest % box.extent[a]) * stride;
      rest /= box.extent[a];
      stride *= shape[a];
    }
    visit(number);
  }
}

/// How many of `boxes` hold each element of a tensor of `shape`.
inline std::vector<int> CountElements(std::span<const std::uint64_t> shape,
                                      const std::vector<BoxView>& boxes) {
  std::vector<int> counts(NumElements(shape), 0);
  for (const BoxView& box : boxes) {
    ForEachElement(box, shape, [&](std::uint64_t element) { ++counts[element]; });
  }
  return counts;
}

}  // namespace reshard::testing
