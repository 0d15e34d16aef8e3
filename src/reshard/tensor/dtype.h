#pragma once

// Element types: every safetensors dtype plus complex128 and complex32.
//
// Sub-byte types are handled in *units*: the smallest whole number of bytes that holds whole
// elements (F4: 2 elements in 1 byte, F6: 4 elements in 3 bytes; all others: 1 element). Units lie
// along the last axis, and the edges of boxes fall on units.

#include <cstdint>
#include <span>
#include <string_view>

#include "reshard/base/result.h"

namespace reshard {

/// Element type. The numbers are stored in catalogs and never reused.
enum class DType : std::uint8_t {
  kBool = 1,
  kUint8 = 2,
  kInt8 = 3,
  kUint16 = 4,
  kInt16 = 5,
  kUint32 = 6,
  kInt32 = 7,
  kUint64 = 8,
  kInt64 = 9,
  kFloat16 = 10,
  kBfloat16 = 11,
  kFloat32 = 12,
  kFloat64 = 13,
  kComplex32 = 14,
  kComplex64 = 15,
  kComplex128 = 16,
  kFloat8E4m3fn = 17,
  kFloat8E5m2 = 18,
  kFloat8E8m0fnu = 19,
  kFloat8E4m3fnuz = 20,
  kFloat8E5m2fnuz = 21,
  kFloat4E2m1 = 22,
  kFloat6E2m3 = 23,
  kFloat6E3m2 = 24,
};

/// What the library knows of a dtype.
struct DTypeInfo {
  DType dtype;
  std::string_view name;         ///< As users write it: "float32", "bfloat16", "float8_e4m3fn".
  std::string_view safetensors;  ///< Tag in a safetensors header; of complex128/32 the part's tag.
  std::uint32_t bits;            ///< Bits of one element.
  std::uint32_t unit_elements;   ///< Elements per unit: 1, F4 2, F6 4.
  std::uint32_t unit_bytes;      ///< Bytes per unit: bits * unit_elements / 8.
  bool split_complex;            ///< Stored in safetensors as real pairs with a last axis of 2.
};

/// All dtypes in number order.
std::span<const DTypeInfo> AllDTypes();

/// The entry of `dtype`, which must be one of the enumerators.
const DTypeInfo& Info(DType dtype);

/// Whether `number` is one of the enumerators (for decoders).
bool IsDType(std::uint8_t number);

/// Errors: kInvalidArgument BAD_DTYPE, with the names that exist.
Result<DType> DTypeFromName(std::string_view name);

/// Errors: kInvalidArgument BAD_DTYPE. Tags of split complex types yield the real type.
Result<DType> DTypeFromSafetensors(std::string_view tag);

}  // namespace reshard
