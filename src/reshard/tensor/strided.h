#pragma once

// Strided memory and the copies between strided places.
//
// A copy of one box between two places is a *nest*: a contiguous run repeated over a few loops.
// Axes that are contiguous in both places are merged, so most copies have a long run and no loop.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "reshard/base/bytes.h"
#include "reshard/tensor/box.h"
#include "reshard/tensor/dtype.h"

namespace reshard {

/// A tensor, or a part of one, in memory. Not owning.
struct TensorView {
  std::byte* data = nullptr;  ///< Address of element (0, ..., 0).
  DType dtype = DType::kUint8;
  Shape shape;                        ///< Extents in elements.
  std::vector<std::int64_t> strides;  ///< In elements per axis, may be negative or zero; for
                                      ///< sub-byte dtypes in elements too, multiples of the unit,
                                      ///< the last axis dense.
};

/// Row-major strides in elements of a dense tensor.
std::vector<std::int64_t> RowMajorStrides(std::span<const std::uint64_t> shape);

/// A dense row-major view.
TensorView DenseView(void* data, DType dtype, Shape shape);

/// The same of memory that is only read: for Save. A load into it would write there.
TensorView ConstDenseView(const void* data, DType dtype, Shape shape);

/// Checks a view from a caller: ranks agree, CheckShape, sub-byte rules, null only when empty.
/// Errors: kInvalidArgument BAD_VIEW, and those of CheckShape.
Status CheckView(const TensorView& view);

/// Whether the view is dense row-major.
bool IsDense(const TensorView& view);

/// Strides in bytes of each axis, last axis in units of the dtype.
std::vector<std::int64_t> StrideBytes(const TensorView& view);

/// Row-major strides in bytes of a dense box of `unit_extent` units of `unit_bytes` bytes.
std::vector<std::int64_t> DenseStrideBytes(std::span<const std::uint64_t> unit_extent,
                                           std::uint32_t unit_bytes);

/// One loop of a nest.
struct NestLoop {
  std::uint64_t count = 0;
  std::int64_t src_stride = 0;  ///< bytes
  std::int64_t dst_stride = 0;  ///< bytes
  bool operator==(const NestLoop&) const = default;
};

/// A copy: `run_bytes` contiguous bytes at every combination of the loops (outermost first), source
/// and destination offsets counted from two base addresses.
struct CopyNest {
  std::uint64_t run_bytes = 0;  ///< 0 when there is nothing to copy.
  std::vector<NestLoop> loops;

  std::uint64_t num_runs() const;

  std::uint64_t num_bytes() const { return run_bytes * num_runs(); }

  /// Source bytes from the first to one past the last byte touched; needs src_stride >= 0.
  std::uint64_t src_span() const;
};

/// The nest that copies a box of `unit_extent` units between two strided places. Loops of count 1
/// vanish; neighbours that are contiguous in both are merged; the order of loops is kept, so when
/// the source is dense row-major memory, runs come in increasing source offset.
CopyNest MakeCopyNest(std::span<const std::uint64_t> unit_extent, std::uint32_t unit_bytes,
                      std::span<const std::int64_t> src_stride_bytes,
                      std::span<const std::int64_t> dst_stride_bytes);

/// Copies the nest. Runs of >= 256 bytes move at memcpy speed; shorter ones (1, 2, 3, 4, 8, 16
/// bytes above all) have fast paths, with a blocked path for transposes. The order of the writes is
/// unspecified. No overlap of src and dst. Nests of >= 8 MiB in long runs bypass the cache, here
/// and in RunCopyWindow.
void RunCopy(const CopyNest& nest, const std::byte* src, std::byte* dst);

/// Copies only what lies in source bytes [window.offset, window.end()) counted from the nest's
/// source base; `window_data` holds exactly those bytes. The nest's runs must come in increasing,
/// non-overlapping source order (a dense row-major source). Runs cut by the window's edges are
/// copied in part. Cost: proportional to the runs inside the window, not to the nest.
void RunCopyWindow(const CopyNest& nest, ByteRange window, const std::byte* window_data,
                   std::byte* dst);

/// The opposite: fills destination bytes [window.offset, window.end()) of a nest whose
/// *destination* is dense row-major, from a strided source at `src`. Used to stage shards for a
/// file.
void RunGatherWindow(const CopyNest& nest, ByteRange window, const std::byte* src,
                     std::byte* window_data);

}  // namespace reshard
