#pragma once

// Boxes: half-open regions [offset, offset + extent) of a tensor, in elements, of any number of
// axes. A box of zero axes is one element (a scalar); a box with a zero extent is empty.
//
// Thread-safety: plain values.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/tensor/dtype.h"

namespace reshard {

/// One number per axis, in elements.
using Index = std::vector<std::uint64_t>;

/// Extents of a tensor, outermost axis first. Row-major order everywhere.
using Shape = Index;

/// Most axes a tensor may have (NumPy's and PyTorch's limit).
inline constexpr std::size_t kMaxAxes = 64;

/// A region of a tensor.
struct Box {
  Index offset;
  Index extent;
  bool operator==(const Box&) const = default;
};

/// A box that lies in someone else's memory (a catalog column); valid as long as that is.
struct BoxView {
  std::span<const std::uint64_t> offset;
  std::span<const std::uint64_t> extent;

  BoxView(std::span<const std::uint64_t> o, std::span<const std::uint64_t> e)
      : offset(o), extent(e) {}

  BoxView(const Box& box) : offset(box.offset), extent(box.extent) {}  // NOLINT: a view of it

  std::size_t axes() const { return offset.size(); }

  Box ToBox() const {
    return {Index(offset.begin(), offset.end()), Index(extent.begin(), extent.end())};
  }
};

bool operator==(const BoxView& a, const BoxView& b);

/// The box that covers a whole tensor.
Box WholeBox(std::span<const std::uint64_t> shape);

/// Number of elements. The box must have passed CheckBox or CheckShape (no overflow).
std::uint64_t NumElements(BoxView box);
std::uint64_t NumElements(std::span<const std::uint64_t> shape);

bool IsEmpty(BoxView box);

/// Whether two boxes of equally many axes have a common element. Boxes of zero axes always meet.
/// Never allocates.
bool Overlaps(BoxView a, BoxView b);

/// The common part of two boxes of equally many axes; nothing when it is empty. Boxes of zero axes
/// always meet.
std::optional<Box> Intersect(BoxView a, BoxView b);

/// Whether every element of `inner` is in `outer` (an empty box is in every box).
bool Contains(BoxView outer, BoxView inner);

/// Checks a shape that came from outside: at most kMaxAxes axes, byte and element counts fit in
/// 63 bits (zeros do not hide an overflow), and for sub-byte dtypes there is a last axis and it is
/// a multiple of the unit. Errors: kInvalidArgument TOO_MANY_AXES, SHAPE_OVERFLOW, NOT_BYTE_SIZED.
Status CheckShape(std::span<const std::uint64_t> shape, DType dtype);

/// Checks a box that came from outside against a checked shape.
/// Errors: kInvalidArgument BOX_RANK (other number of axes), BOX_OUT_OF_SHAPE, NOT_BYTE_SIZED.
Status CheckBox(BoxView box, std::span<const std::uint64_t> shape, DType dtype);

/// Bytes of a checked box or shape.
std::uint64_t NumBytes(BoxView box, DType dtype);
std::uint64_t NumBytes(std::span<const std::uint64_t> shape, DType dtype);

/// The same box with the last axis counted in units of the dtype (unchanged unless sub-byte). A
/// checked 0-d box stays 0-d.
Box ToUnits(BoxView box, DType dtype);
Shape ToUnits(std::span<const std::uint64_t> shape, DType dtype);

/// "[0:4, 2:6]", "[]" for zero axes.
std::string ToString(BoxView box);

/// "(4, 8)", "()" for zero axes.
std::string ToString(std::span<const std::uint64_t> shape);

}  // namespace reshard
