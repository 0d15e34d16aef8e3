#pragma once

// Conversion between element types, for loads and conversions that ask for it.
//
// * Floating point rounds to nearest, ties to even, in one step; subnormals are exact and minus
// zero
//   stays where the type has it (the fnuz types have none). The thread's own rounding mode and
//   flush-to-zero do not matter.
// * NaN stays NaN, becomes quiet, and keeps its sign and as much of its payload as fits.
// * A value beyond the target becomes infinity, or NaN where the type has no infinity
//   (float8_e4m3fn and the fnuz types), and is counted. An infinity does the same, uncounted.
// * float8_e8m0fnu holds powers of two alone (scales, where a rounding would change a whole block
// by
//   up to a third): a power of two in its range is converted, every other value becomes NaN and is
//   counted.
// * Bytes other than 0 of a bool are true when they are converted; equal types copy bits.

#include <cstdint>

#include "reshard/base/bytes.h"
#include "reshard/base/result.h"
#include "reshard/tensor/dtype.h"

namespace reshard {

/// What a conversion lost.
struct CastCounts {
  std::uint64_t overflowed = 0;  ///< Finite values that became infinity or NaN.
};

/// Whether values of `from` can be converted to `to`: floating point to floating point (4- and
/// 6-bit types excepted), integers and bool to integers that hold all their values and to floating
/// point of 16 bits or more, complex to complex, every type to itself. Never complex to real,
/// floating point to integer, or anything to bool.
bool CanCast(DType from, DType to);

/// Converts dense elements; `dst` holds as many as `src`. Equal types copy bits. The buffers must
/// not overlap. Adds to `counts`. Errors: kUnsupported CAST for a pair that CanCast refuses;
/// kInvalidArgument CAST_SIZE when the spans do not hold equally many
/// elements. No pair that CanCast allows can fail on a value. Thread-safe: yes.
Status CastElements(DType from, ByteSpan src, DType to, MutableByteSpan dst, CastCounts& counts);

}  // namespace reshard
