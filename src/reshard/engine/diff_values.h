#pragma once

// The values of two tensors, element by element.

#include <cstdint>
#include <optional>
#include <string>

#include "reshard/base/bytes.h"
#include "reshard/tensor/dtype.h"

namespace reshard {

/// How the elements of two tensors differ.
///
/// Elements of one dtype are equal when their bits are: so NaN equals a NaN of the same bits, and
/// -0 differs from 0, by 0. Elements of two floating-point types are equal when their values are,
/// -0 and 0 excepted, or when both are NaN; likewise complex ones. Integers and bools are compared
/// as numbers, a complex number by the absolute value of the difference.
struct ValueDifference {
  std::uint64_t elements = 0;          ///< That differ.
  std::uint64_t nans = 0;              ///< Of them, where one side or both are NaN.
  double max_abs = 0;                  ///< Largest absolute difference of the others.
  std::optional<std::uint64_t> first;  ///< The first that differs, in row-major order.
  std::string first_a;                 ///< Its values; of 4- and 6-bit types their bits in hex.
  std::string first_b;

  /// Adds what was found elsewhere in the same tensors.
  void Merge(const ValueDifference& other);
};

/// Whether the values of two dtypes can be compared: one dtype, or both of them floating-point
/// (not of 4 or 6 bits), integer or bool, or complex.
bool AreComparable(DType a, DType b);

/// Compares equally many dense elements; the first is element `index` of its tensor. The dtypes
/// must be comparable. 4- and 6-bit elements lie in their unit from its lowest bit on, and have no
/// max_abs.
ValueDifference CompareValues(DType dtype_a, ByteSpan a, DType dtype_b, ByteSpan b,
                              std::uint64_t index);

}  // namespace reshard
