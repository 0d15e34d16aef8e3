#include "reshard/tensor/strided.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "reshard/base/check.h"
#include "reshard/base/checked.h"

namespace reshard {
namespace {

tl::unexpected<Error> BadView(std::string message) {
  return MakeError(ErrorCode::kInvalidArgument, "BAD_VIEW", std::move(message));
}

std::uint64_t Magnitude(std::int64_t stride) {
  return stride < 0 ? ~static_cast<std::uint64_t>(stride) + 1 : static_cast<std::uint64_t>(stride);
}

// Whether every element's distance from element 0 fits in 63 bits, in bytes.
bool ReachFits(const TensorView& view) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();
  std::uint64_t reach = 0;  // Elements; 63 bits divided by the unit's bytes at most.
  for (std::size_t i = 0; i < view.shape.size(); ++i) {
    const auto distance = CheckedMul(view.shape[i] - 1, Magnitude(view.strides[i]));
    const auto sum = distance ? CheckedAdd(reach, *distance) : std::nullopt;
    if (!sum || *sum > kMax / Info(view.dtype).unit_bytes) {
      return false;
    }
    reach = *sum;
  }
  return true;
}

Status CheckSubByteStrides(const TensorView& view) {
  const DTypeInfo& info = Info(view.dtype);
  for (std::size_t i = 0; i + 1 < view.strides.size(); ++i) {
    if (view.strides[i] % static_cast<std::int64_t>(info.unit_elements) != 0) {
      return BadView(fmt::format("axis {}: stride {} of {} is not a multiple of {} elements", i,
                                 view.strides[i], info.name, info.unit_elements));
    }
  }
  if (view.strides.back() != 1) {
    return BadView(fmt::format("the last axis of {} must be dense; its stride is {}", info.name,
                               view.strides.back()));
  }
  return OkStatus();
}

bool AnyZero(std::span<const std::uint64_t> extents) {
  return std::ranges::find(extents, 0U) != extents.end();
}

// Row-major strides when neighbours on the last axis are `innermost` apart. Zero extents count as
// one, so that the outer strides of an empty tensor stay plausible.
std::vector<std::int64_t> StridesFrom(std::span<const std::uint64_t> extents,
                                      std::int64_t innermost) {
  std::vector<std::int64_t> strides(extents.size());
  std::int64_t stride = innermost;
  for (std::size_t i = extents.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= static_cast<std::int64_t>(std::max<std::uint64_t>(extents[i], 1));
  }
  return strides;
}

}  // namespace

std::vector<std::int64_t> RowMajorStrides(std::span<const std::uint64_t> shape) {
  return StridesFrom(shape, 1);
}

TensorView DenseView(void* data, DType dtype, Shape shape) {
  std::vector<std::int64_t> strides = RowMajorStrides(shape);
  return {static_cast<std::byte*>(data), dtype, std::move(shape), std::move(strides)};
}

TensorView ConstDenseView(const void* data, DType dtype, Shape shape) {
  return DenseView(const_cast<void*>(data), dtype, std::move(shape));
}

Status CheckView(const TensorView& view) {
  if (view.shape.size() != view.strides.size()) {
    return BadView(fmt::format("the view has {} extents and {} strides", view.shape.size(),
                               view.strides.size()));
  }
  RESHARD_TRY(CheckShape(view.shape, view.dtype));
  if (AnyZero(view.shape)) {
    return OkStatus();  // Nothing is ever read or written: strides and address do not matter.
  }
  if (view.data == nullptr) {
    return BadView(fmt::format("the view of shape {} has no address", ToString(view.shape)));
  }
  if (!ReachFits(view)) {
    return BadView(fmt::format("the strides of shape {} reach beyond 63 bits of address",
                               ToString(view.shape)));
  }
  return Info(view.dtype).unit_elements > 1 ? CheckSubByteStrides(view) : OkStatus();
}

bool IsDense(const TensorView& view) {
  if (AnyZero(view.shape)) {
    return true;
  }
  std::int64_t dense = 1;
  for (std::size_t i = view.shape.size(); i-- > 0;) {
    if (view.shape[i] != 1 && view.strides[i] != dense) {
      return false;
    }
    dense *= static_cast<std::int64_t>(view.shape[i]);
  }
  return true;
}

std::vector<std::int64_t> StrideBytes(const TensorView& view) {
  const DTypeInfo& info = Info(view.dtype);
  std::vector<std::int64_t> bytes(view.strides.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = view.strides[i] / static_cast<std::int64_t>(info.unit_elements) *
               static_cast<std::int64_t>(info.unit_bytes);
  }
  if (info.unit_elements > 1 && !bytes.empty()) {
    bytes.back() = info.unit_bytes;  // Counted in units, and dense (CheckView).
  }
  return bytes;
}

std::vector<std::int64_t> DenseStrideBytes(std::span<const std::uint64_t> unit_extent,
                                           std::uint32_t unit_bytes) {
  return StridesFrom(unit_extent, unit_bytes);
}

std::uint64_t CopyNest::num_runs() const {
  std::uint64_t runs = run_bytes == 0 ? 0 : 1;
  for (const NestLoop& loop : loops) {
    runs *= loop.count;
  }
  return runs;
}

std::uint64_t CopyNest::src_span() const {
  if (num_runs() == 0) {
    return 0;
  }
  std::uint64_t span = run_bytes;
  for (const NestLoop& loop : loops) {
    span += (loop.count - 1) * static_cast<std::uint64_t>(loop.src_stride);
  }
  return span;
}

CopyNest MakeCopyNest(std::span<const std::uint64_t> unit_extent, std::uint32_t unit_bytes,
                      std::span<const std::int64_t> src_stride_bytes,
                      std::span<const std::int64_t> dst_stride_bytes) {
  RESHARD_CHECK(unit_extent.size() == src_stride_bytes.size() &&
                unit_extent.size() == dst_stride_bytes.size());
  CopyNest nest;
  if (AnyZero(unit_extent)) {
    return nest;
  }
  nest.run_bytes = unit_bytes;
  for (std::size_t i = unit_extent.size(); i-- > 0;) {  // Innermost first; turned round below.
    const NestLoop loop{unit_extent[i], src_stride_bytes[i], dst_stride_bytes[i]};
    if (loop.count == 1) {
      continue;
    }
    const auto run = static_cast<std::int64_t>(nest.run_bytes);
    if (nest.loops.empty() && loop.src_stride == run && loop.dst_stride == run) {
      nest.run_bytes *= loop.count;
      continue;
    }
    if (!nest.loops.empty()) {
      NestLoop& inner = nest.loops.back();
      const auto count = static_cast<std::int64_t>(inner.count);
      if (loop.src_stride == inner.src_stride * count &&
          loop.dst_stride == inner.dst_stride * count) {
        inner.count *= loop.count;
        continue;
      }
    }
    nest.loops.push_back(loop);
  }
  std::ranges::reverse(nest.loops);
  return nest;
}

}  // namespace reshard
