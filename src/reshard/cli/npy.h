#pragma once

// NumPy's .npy format, writing. Source: the public description in NumPy's documentation
// (numpy.lib.format, versions 1.0 and 2.0).

#include <span>
#include <string>

#include "reshard/base/result.h"
#include "reshard/tensor/dtype.h"

namespace reshard::cli {

/// How .npy writes a dtype: "<f4". What NumPy itself has no name for is raw: "<V2" for bfloat16, as
/// ml_dtypes has it, "|V1" for the float8 types and "<V4" for complex32. Errors: kUnsupported
/// SUB_BYTE.
Result<std::string> NpyDescr(DType dtype);

/// What to call after `np.load` to see the values of a dtype that NumPy does not have; empty when
/// nothing is needed.
std::string NpyView(DType dtype);

/// The bytes before the elements: magic, version (1.0, or 2.0 when the text is longer than 65535
/// bytes), length and the dictionary, padded to a multiple of 64. Row-major.
std::string NpyHeader(const std::string& descr, std::span<const std::uint64_t> shape);

}  // namespace reshard::cli
