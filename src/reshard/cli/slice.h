#pragma once

// Slices as NumPy writes them: `w[0:4, ::2]`, `w[-1]`, `w[..., 3]`.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/tensor/box.h"

namespace reshard::cli {

/// What is taken of one axis: start, start + step, ..., `count` indices.
struct AxisSlice {
  std::uint64_t start = 0;
  std::int64_t step = 1;  ///< Never 0; 1 when count is below 2.
  std::uint64_t count = 0;
  bool drop = false;  ///< An integer index: the result does not have this axis.
  bool operator==(const AxisSlice&) const = default;
};

/// Reads what stands between the brackets: integers, START:STOP:STEP, and at most one `...`,
/// separated by commas, with NumPy's meaning: negative numbers count from the end, bounds of a
/// range are cut to the axis, integers are not. Axes that are not named are taken whole. Errors:
/// kInvalidArgument BAD_SLICE.
Result<std::vector<AxisSlice>> ParseSlice(std::string_view text,
                                          std::span<const std::uint64_t> shape);

/// Everything.
std::vector<AxisSlice> WholeSlice(std::span<const std::uint64_t> shape);

/// The shape of the result.
Shape ShapeOf(const std::vector<AxisSlice>& slice);

/// The smallest box that contains a slice with elements.
Box CoverOf(const std::vector<AxisSlice>& slice);

/// Cuts a slice into parts that follow each other in its row-major order, such that the cover of
/// each has at most `most_bytes`; far-apart indices come one by one, so that what lies between them
/// is not read. Nothing for a slice without elements. Errors: the first that `visit` returns.
Status ForEachPart(const std::vector<AxisSlice>& slice, std::uint64_t item_bytes,
                   std::uint64_t most_bytes,
                   const std::function<Status(const std::vector<AxisSlice>&)>& visit);

/// Copies the elements of `slice` out of its cover, which lies in `cover` in row-major order.
void PickFromCover(const std::vector<AxisSlice>& slice, std::uint32_t item_bytes,
                   const std::byte* cover, std::byte* out);

}  // namespace reshard::cli
