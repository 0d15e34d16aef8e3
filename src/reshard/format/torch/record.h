#pragma once

// A record of DCP: one archive of torch.save inside a data file, which holds one chunk of a tensor
// or one value. docs/format/torch_dcp.md section 2.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/byte_source.h"
#include "reshard/base/result.h"
#include "reshard/catalog/value.h"
#include "reshard/format/torch/tensor_pickle.h"

namespace reshard::torch {

/// Reasons of this decoder, beside those of zip archives, the pickle machine and tensors.
inline constexpr std::string_view kBadRecord = "BAD_RECORD";
inline constexpr std::string_view kStorageMissing = "STORAGE_MISSING";
inline constexpr std::string_view kStorageSize = "STORAGE_SIZE";
inline constexpr std::string_view kRecordKind = "KIND_NOT_SUPPORTED";
inline constexpr std::string_view kByteOrder = "BIG_ENDIAN";

/// Largest record of a value, and largest pickle of a tensor, that is read.
inline constexpr std::uint64_t kMaxValueBytes = std::uint64_t{16} << 20;
inline constexpr std::uint64_t kMaxTensorPickle = std::uint64_t{1} << 20;

/// A chunk as its record describes it.
struct TensorRecord {
  DType dtype = DType::kFloat32;
  Shape shape;
  Shape stride;                   ///< In elements.
  std::uint64_t byte_offset = 0;  ///< Of its first element, in the source.
  bool operator==(const TensorRecord&) const = default;
};

/// Reads the record of a chunk; the payload is not touched. Usually two small reads.
/// Errors: kCorruption STORAGE_MISSING, STORAGE_SIZE (the archive's member is not what the pickle
///         says), BAD_RECORD (no tensor in it); kUnsupported KIND_NOT_SUPPORTED (TorchScript),
///         BIG_ENDIAN, LAZY_VIEW; those of zip::Archive, pickle::Parse and ReadTensor.
Result<TensorRecord> ReadTensorRecord(ByteSource& source, ByteRange record);

/// Reads the record of a value. What consists of None, booleans, numbers, texts, bytes, lists,
/// tuples (which become lists) and dicts with text or integer keys becomes that; anything else is
/// Opaque: the name of the first class that is not among these, and the whole record.
/// Errors: kUnsupported LIMIT (more than kMaxValueBytes), KIND_NOT_SUPPORTED; kCorruption
///         BAD_RECORD (no pickle in it), those of zip::Archive and of damaged pickles.
Result<Value> ReadValueRecord(ByteSource& source, ByteRange record);

}  // namespace reshard::torch
