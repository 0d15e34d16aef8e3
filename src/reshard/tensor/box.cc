#include "reshard/tensor/box.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "reshard/base/check.h"
#include "reshard/base/checked.h"

namespace reshard {
namespace {

constexpr std::uint64_t kMaxBytes = std::numeric_limits<std::int64_t>::max();

// Elements to bytes; `elements` is whole units, or zero.
std::uint64_t ElementsToBytes(std::uint64_t elements, const DTypeInfo& info) {
  return elements / info.unit_elements * info.unit_bytes;
}

tl::unexpected<Error> NotByteSized(std::string message) {
  return MakeError(ErrorCode::kInvalidArgument, "NOT_BYTE_SIZED", std::move(message));
}

}  // namespace

bool operator==(const BoxView& a, const BoxView& b) {
  return std::ranges::equal(a.offset, b.offset) && std::ranges::equal(a.extent, b.extent);
}

Box WholeBox(std::span<const std::uint64_t> shape) {
  return {Index(shape.size(), 0), Index(shape.begin(), shape.end())};
}

std::uint64_t NumElements(BoxView box) { return NumElements(box.extent); }

std::uint64_t NumElements(std::span<const std::uint64_t> shape) {
  std::uint64_t product = 1;
  for (std::uint64_t extent : shape) {
    product *= extent;
  }
  return product;
}

bool IsEmpty(BoxView box) {
  for (std::uint64_t extent : box.extent) {
    if (extent == 0) {
      return true;
    }
  }
  return false;
}

bool Overlaps(BoxView a, BoxView b) {
  RESHARD_CHECK(a.axes() == b.axes());
  for (std::size_t i = 0; i < a.axes(); ++i) {
    const std::uint64_t begin = std::max(a.offset[i], b.offset[i]);
    const std::uint64_t end = std::min(a.offset[i] + a.extent[i], b.offset[i] + b.extent[i]);
    if (begin >= end) {
      return false;
    }
  }
  return true;
}

std::optional<Box> Intersect(BoxView a, BoxView b) {
  if (!Overlaps(a,
                b)) {  // Most pairs a planner asks about do not meet: allocate only for the rest.
    return std::nullopt;
  }
  Box out{Index(a.axes()), Index(a.axes())};
  for (std::size_t i = 0; i < a.axes(); ++i) {
    out.offset[i] = std::max(a.offset[i], b.offset[i]);
    out.extent[i] = std::min(a.offset[i] + a.extent[i], b.offset[i] + b.extent[i]) - out.offset[i];
  }
  return out;
}

bool Contains(BoxView outer, BoxView inner) {
  RESHARD_CHECK(outer.axes() == inner.axes());
  bool contained = true;
  for (std::size_t i = 0; i < outer.axes(); ++i) {
    if (inner.extent[i] == 0) {
      return true;
    }
    contained = contained && inner.offset[i] >= outer.offset[i] &&
                inner.offset[i] + inner.extent[i] <= outer.offset[i] + outer.extent[i];
  }
  return contained;
}

Status CheckShape(std::span<const std::uint64_t> shape, DType dtype) {
  const DTypeInfo& info = Info(dtype);
  if (shape.size() > kMaxAxes) {
    return MakeError(
        ErrorCode::kInvalidArgument, "TOO_MANY_AXES",
        fmt::format("the shape has {} axes; at most {} are possible", shape.size(), kMaxAxes));
  }
  // A sub-byte element takes less than a byte, so its limit is on the elements.
  const std::uint64_t limit = info.unit_elements > 1 ? kMaxBytes : kMaxBytes / info.unit_bytes;
  std::uint64_t elements = 1;  // Zeros are left out: they must not hide an overflow.
  for (std::uint64_t extent : shape) {
    const auto product = CheckedMul(elements, std::max<std::uint64_t>(extent, 1));
    if (!product || *product > limit) {
      return MakeError(ErrorCode::kInvalidArgument, "SHAPE_OVERFLOW",
                       fmt::format("shape {} of {} has more than 2^63 - 1 bytes or elements",
                                   ToString(shape), info.name));
    }
    elements = *product;
  }
  if (info.unit_elements > 1 && (shape.empty() || shape.back() % info.unit_elements != 0)) {
    return NotByteSized(fmt::format(
        "shape {} of {} is not whole bytes: the last axis must be a multiple of {} elements",
        ToString(shape), info.name, info.unit_elements));
  }
  return OkStatus();
}

Status CheckBox(BoxView box, std::span<const std::uint64_t> shape, DType dtype) {
  const DTypeInfo& info = Info(dtype);
  if (box.offset.size() != shape.size() || box.extent.size() != shape.size()) {
    return MakeError(
        ErrorCode::kInvalidArgument, "BOX_RANK",
        fmt::format("the box has {} offsets and {} extents; shape {} has {} axes",
                    box.offset.size(), box.extent.size(), ToString(shape), shape.size()));
  }
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (box.offset[i] > shape[i] || box.extent[i] > shape[i] - box.offset[i]) {
      return MakeError(ErrorCode::kInvalidArgument, "BOX_OUT_OF_SHAPE",
                       fmt::format("axis {}: offset {} and extent {} leave shape {}", i,
                                   box.offset[i], box.extent[i], ToString(shape)));
    }
  }
  if (info.unit_elements > 1 && (shape.empty() || box.offset.back() % info.unit_elements != 0 ||
                                 box.extent.back() % info.unit_elements != 0)) {
    return NotByteSized(fmt::format(
        "box {} of {} is not whole bytes: the edges on the last axis must be multiples of {}",
        ToString(box), info.name, info.unit_elements));
  }
  return OkStatus();
}

std::uint64_t NumBytes(BoxView box, DType dtype) { return NumBytes(box.extent, dtype); }

std::uint64_t NumBytes(std::span<const std::uint64_t> shape, DType dtype) {
  return ElementsToBytes(NumElements(shape), Info(dtype));
}

Box ToUnits(BoxView box, DType dtype) {
  return {ToUnits(box.offset, dtype), ToUnits(box.extent, dtype)};
}

Shape ToUnits(std::span<const std::uint64_t> shape, DType dtype) {
  Shape units(shape.begin(), shape.end());
  if (!units.empty()) {
    units.back() /= Info(dtype).unit_elements;
  }
  return units;
}

std::string ToString(BoxView box) {
  std::string out = "[";
  for (std::size_t i = 0; i < box.axes(); ++i) {
    out += fmt::format("{}{}:{}", i == 0 ? "" : ", ", box.offset[i], box.offset[i] + box.extent[i]);
  }
  return out + "]";
}

std::string ToString(std::span<const std::uint64_t> shape) {
  return fmt::format("({})", fmt::join(shape, ", "));
}

}  // namespace reshard
