#pragma once

// The kernels below the copy nests: the two innermost loops of a copy, which is where the time
// goes.
//
// Private to the tensor layer.

#include <cstddef>
#include <cstdint>

#include "reshard/tensor/strided.h"

namespace reshard {

/// Runs shorter than this (a cache line) profit from another order of the loops; longer ones fill
/// lines by themselves.
inline constexpr std::uint64_t kLineBytes = 64;

/// Shortest runs that StreamPlane takes.
inline constexpr std::uint64_t kStreamRunBytes = 256;

/// Bytes from element 0 to element `i`.
inline std::ptrdiff_t At(std::uint64_t i, std::int64_t stride) {
  return static_cast<std::ptrdiff_t>(i) * stride;
}

/// The two innermost loops of a nest; a count of 1 where there are fewer. Counts are at least 1.
struct Plane {
  NestLoop outer{1, 0, 0};
  NestLoop inner{1, 0, 0};
};

/// Copies a run of `run_bytes` bytes for every step of the two loops.
void CopyPlane(std::uint64_t run_bytes, const Plane& plane, const std::byte* src, std::byte* dst);

/// The same with stores that bypass the cache, for runs of at least kStreamRunBytes. Call EndStream
/// before another thread is told that the bytes are there.
void StreamPlane(std::uint64_t run_bytes, const Plane& plane, const std::byte* src, std::byte* dst);
void EndStream();

/// A plane whose two sides disagree about the inner loop (a transpose): one loop has the smaller
/// source stride (across), the other the smaller destination stride (down).
struct CrossPlane {
  NestLoop across;
  NestLoop down;
};

/// Copies a cross plane of runs shorter than kLineBytes in tiles that fit the cache.
void CopyCross(std::uint64_t run_bytes, const CrossPlane& plane, const std::byte* src,
               std::byte* dst);

}  // namespace reshard
