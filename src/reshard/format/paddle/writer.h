#pragma once

// The data files that we write for Paddle: protocol-4 pickles of a dict of numpy arrays and the
// name table, as literal bytes with holes for the payloads. docs/format/paddle.md, "What we write".

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "reshard/base/bytes.h"
#include "reshard/tensor/dtype.h"

namespace reshard::paddle {

/// The last entry of a data file: key -> name of each array. Never a key of a tensor.
inline constexpr std::string_view kNameTable = "StructuredToParameterName@@";

/// The entry by which older protocols mark tensors that were cut. Never a key of a tensor.
inline constexpr std::string_view kSplitTable = "UnpackBigParamInfor@@";

/// Most axes of an array that every numpy accepts.
inline constexpr std::size_t kMaxArrayAxes = 32;

/// The type code of the numpy array that holds elements of `dtype` ("f4"; bfloat16 lies in "u2",
/// float8 in "i1"); nothing for a dtype that Paddle does not have.
std::optional<std::string_view> NumpyCode(DType dtype);

/// An array of a data file.
struct ArrayEntry {
  std::string_view key;
  std::string_view name;  ///< In the name table.
  DType dtype = DType::kUint8;
  std::span<const std::uint64_t> shape;  ///< Of the piece.
};

/// Where everything lies in a data file.
struct DataFileLayout {
  Bytes literals;
  /// Running ends in `literals`: one stretch before each payload, one after the last.
  std::vector<std::uint64_t> literal_ends;
  std::vector<std::uint64_t> payload_offsets;  ///< Of each array, in the file.
  std::uint64_t file_size = 0;

  /// The bytes before the payload of array `index`; for index = number of arrays those at the end.
  ByteSpan Literal(std::size_t index) const;
};

/// Lays out a file of these arrays, whose keys are unique and not kNameTable or kSplitTable, in
/// this order. Every dtype must have a NumpyCode. Deterministic.
DataFileLayout LayOutDataFile(std::span<const ArrayEntry> arrays);

}  // namespace reshard::paddle
