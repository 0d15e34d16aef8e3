// Strided tensors as dense parts.

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/checked.h"
#include "reshard/format/torch/tensor_pickle.h"

namespace reshard::torch {
namespace {

/// The axes of a tensor in two groups: those that together are dense in the file, innermost last,
/// and those that have to be cut into single indices.
struct Split {
  std::vector<std::size_t> dense;
  std::vector<std::size_t> cut;
};

Split SplitAxes(BoxView box, std::span<const std::uint64_t> stride) {
  std::vector<std::size_t> axes;  // that matter, small strides first
  for (std::size_t a = 0; a < box.axes(); ++a) {
    if (box.extent[a] > 1) {
      axes.push_back(a);
    }
  }
  std::stable_sort(axes.begin(), axes.end(),
                   [&](std::size_t a, std::size_t b) { return stride[a] < stride[b]; });
  Split out;
  std::uint64_t expected = 1;
  for (const std::size_t a : axes) {
    if (stride[a] == expected) {
      out.dense.push_back(a);
      expected *= box.extent[a];  // at most the elements of a checked box
    } else {
      out.cut.push_back(a);
    }
  }
  std::reverse(out.dense.begin(), out.dense.end());
  std::sort(out.cut.begin(), out.cut.end());
  return out;
}

/// The order of all axes, of which those outside `dense` have one index, so that they may stand
/// anywhere.
std::optional<ChunkOrder> OrderOfDense(std::span<const std::size_t> dense, std::size_t axes) {
  if (std::is_sorted(dense.begin(), dense.end())) {
    return ChunkOrder::kRowMajor;
  }
  if (std::is_sorted(dense.rbegin(), dense.rend())) {
    return ChunkOrder::kColumnMajor;
  }
  std::vector<std::size_t> order;
  for (std::size_t a = 0; a < axes; ++a) {
    if (std::find(dense.begin(), dense.end(), a) == dense.end()) {
      order.push_back(a);
    }
  }
  order.insert(order.end(), dense.begin(), dense.end());
  return OrderOf(order);
}

}  // namespace

Result<std::vector<DensePart>> StridedToChunks(BoxView box, std::span<const std::uint64_t> stride,
                                               std::uint64_t byte_offset, DType dtype,
                                               std::uint64_t most) {
  if (IsEmpty(box)) {
    return std::vector<DensePart>();
  }
  Split split = SplitAxes(box, stride);
  std::optional<ChunkOrder> order = OrderOfDense(split.dense, box.axes());
  while (!order) {  // too many axes for an odd order: cut the outermost ones
    split.cut.push_back(split.dense.front());
    split.dense.erase(split.dense.begin());
    order = OrderOfDense(split.dense, box.axes());
  }
  std::uint64_t count = 1;
  for (const std::size_t a : split.cut) {
    count = CheckedMul(count, box.extent[a]).value_or(most + 1);
    if (count > most) {
      return MakeError(ErrorCode::kUnsupported, pickle::kLimit,
                       fmt::format("a view of shape {} with strides {} falls into more than {} "
                                   "parts; save it from torch with .contiguous()",
                                   ToString(box.extent), ToString(stride), most));
    }
  }
  const std::uint64_t itemsize = Info(dtype).unit_bytes;
  Box part = box.ToBox();
  for (const std::size_t a : split.cut) {
    part.extent[a] = 1;
  }
  std::vector<DensePart> parts;
  parts.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t rest = i;
    std::uint64_t elements = 0;
    for (std::size_t c = split.cut.size(); c-- > 0;) {
      const std::size_t a = split.cut[c];
      const std::uint64_t index = rest % box.extent[a];
      rest /= box.extent[a];
      part.offset[a] = box.offset[a] + index;
      elements += index * stride[a];
    }
    parts.push_back({part, byte_offset + elements * itemsize, *order});
  }
  return parts;
}

}  // namespace reshard::torch
