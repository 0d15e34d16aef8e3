#pragma once

// Conversion between element types, for loads and conversions that ask for it.
//
// Round to nearest, ties to even; NaN stays NaN; values beyond a floating-point target become infinity
// (or NaN where the type has no infinity) and are counted; beyond an integer target they are an error.

#include <cstdint>

#include "reshard/base/bytes.h"
#include "reshard/base/result.h"
#include "reshard/tensor/dtype.h"

namespace reshard {

/// What a conversion lost.
struct CastCounts {
  std::uint64_t overflowed = 0;  ///< Finite values that became infinity or NaN.
};

/// Whether values of `from` can be converted to `to`: floating point to floating point (4- and 6-bit
/// types excepted), integers and bool to wider or equal-range integers and to floating point, complex to
/// complex. Never complex to real, floating point to integer, or to bool.
bool CanCast(DType from, DType to);

/// Converts dense elements; `dst` holds as many as `src`. Equal types copy bits. The buffers must not
/// overlap. Adds to `counts`. Errors: kUnsupported CAST for a pair that CanCast refuses;
/// kInvalidArgument CAST_RANGE never for pairs that CanCast allows.
Status CastElements(DType from, ByteSpan src, DType to, MutableByteSpan dst, CastCounts& counts);

}  // namespace reshard
