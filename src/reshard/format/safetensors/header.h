#pragma once

// The header of a safetensors file: an 8-byte length, a JSON object that names tensors and their
// bytes, then the bytes. Read strictly: what two readers could take differently is refused.
// docs/format/paddle.md section 3.3; safetensors' README.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/base/byte_source.h"
#include "reshard/base/result.h"
#include "reshard/tensor/box.h"
#include "reshard/tensor/dtype.h"

namespace reshard::safetensors {

/// Largest JSON header.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

/// Longest name of a tensor.
inline constexpr std::size_t kMaxNameBytes = 4096;

/// Most names in `__metadata__`.
inline constexpr std::size_t kMaxMetadataNames = std::size_t{1} << 18;

/// Reasons of this decoder.
inline constexpr std::string_view kTooShort = "TOO_SHORT";
inline constexpr std::string_view kHeaderEmpty = "HEADER_EMPTY";
inline constexpr std::string_view kHeaderTooLarge = "HEADER_TOO_LARGE";
inline constexpr std::string_view kHeaderTruncated = "HEADER_TRUNCATED";
inline constexpr std::string_view kBadHeader = "BAD_HEADER";
inline constexpr std::string_view kDuplicateName = "DUPLICATE_NAME";
inline constexpr std::string_view kOverlap = "OVERLAP";
inline constexpr std::string_view kGap = "GAP";
inline constexpr std::string_view kTrailing = "TRAILING_DATA";
inline constexpr std::string_view kDataTruncated = "DATA_TRUNCATED";
inline constexpr std::string_view kBadRange = "BAD_RANGE";
inline constexpr std::string_view kBadInteger = "BAD_INTEGER";
inline constexpr std::string_view kDepth = "DEPTH";
inline constexpr std::string_view kBadString = "BAD_STRING";
inline constexpr std::string_view kBadDType = "BAD_DTYPE";
inline constexpr std::string_view kBadMetadata = "BAD_METADATA";
inline constexpr std::string_view kLimit = "LIMIT";

/// A tensor of the file.
struct Entry {
  std::string name;
  DType dtype = DType::kUint8;
  Shape shape;
  ByteRange bytes;  ///< In the file.
};

/// All tensors, in the order of their bytes.
struct Header {
  std::vector<Entry> entries;
  std::vector<std::pair<std::string, std::string>> metadata;  ///< `__metadata__`, as it stands.
  std::uint64_t payload_offset = 0;
};

/// Reads the header; no tensor's bytes are touched.
/// Errors: kCorruption with the reasons above, SHAPE_OVERFLOW, TOO_MANY_AXES and NOT_BYTE_SIZED;
///         kIo from the source. Memory: at most 8 times the header's bytes and 64 MiB.
/// Thread-safe.
Result<Header> ReadHeader(ByteSource& source);

}  // namespace reshard::safetensors
