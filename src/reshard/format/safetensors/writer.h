#pragma once

// The header of a safetensors file that we write. docs/format/safetensors.md section 5.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "reshard/base/bytes.h"
#include "reshard/base/result.h"
#include "reshard/tensor/dtype.h"

namespace reshard::safetensors {

/// A tensor to write. Views must outlive the call.
struct WriteEntry {
  std::string_view name;
  DType dtype = DType::kUint8;
  std::span<const std::uint64_t> shape;
};

/// Whether a dtype has a tag of its own: all but complex32 and complex128.
bool HasTag(DType dtype);

/// Everything before the tensors' bytes: their length, then JSON padded with spaces to a multiple
/// of eight. The bytes follow in the order of `entries`, without gaps; put larger elements first to
/// have them aligned. Every dtype must have a tag, names must differ and be UTF-8. Deterministic.
/// Errors: kUnsupported HEADER_TOO_LARGE, which says to spread the tensors over more files.
Result<Bytes> EncodeHeader(std::span<const WriteEntry> entries);

}  // namespace reshard::safetensors
