#pragma once

// The header of a native data file: a safetensors header whose metadata carries the file's own
// catalog entries. docs/format/native.md section 3.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "reshard/base/bytes.h"
#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"

namespace reshard::native {

/// The part of a file that the catalog's head checksum covers.
inline constexpr std::uint64_t kHeadBytes = 4096;

/// Largest JSON header that safetensors readers accept.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

/// Reasons of this decoder.
inline constexpr std::string_view kBadHead = "BAD_HEAD";
inline constexpr std::string_view kHeaderTooLarge = "HEADER_TOO_LARGE";

/// What stands in the first 4096 bytes.
struct Head {
  std::uint64_t unique_id = 0;
  std::uint64_t attempt = 0;
  std::uint64_t rank = 0;
  std::uint64_t file_size = 0;
  std::uint64_t payload_offset = 0;
  std::uint64_t rest_checksum = 0;  ///< CRC-64 of the header's bytes from 4096 on.
  bool operator==(const Head&) const = default;
};

/// One tensor entry of the safetensors header, in file order.
struct HeaderEntry {
  std::string_view key;
  DType dtype = DType::kUint8;
  std::span<const std::uint64_t> shape;  ///< Of the whole tensor.
  BoxView box;
  std::uint64_t payload_offset = 0;
};

/// Size of the header (length field, JSON and padding): the file offset of the payload.
/// `fragment_bytes` is the size of the encoded fragment, which does not depend on checksums.
/// Errors: kUnsupported HEADER_TOO_LARGE (says how many tensors are too many for one file).
Result<std::uint64_t> HeaderSize(std::span<const HeaderEntry> entries,
                                 std::uint64_t fragment_bytes);

/// The header's bytes, exactly head.payload_offset of them; fills in the rest checksum.
Bytes EncodeHeader(std::span<const HeaderEntry> entries, Head head, ByteSpan fragment);

/// Reads the first min(4096, file) bytes. Errors: kCorruption BAD_HEAD.
Result<Head> DecodeHead(ByteSpan first_bytes);

/// The fragment inside a complete header (head.payload_offset bytes). Errors: kCorruption BAD_HEAD
/// and those of DecodeCatalog.
Result<Catalog> DecodeFragment(ByteSpan header);

/// A chunk's name for people: the key, or "key@o0,o1" for a part; '@', '%' and what strict readers
/// refuse as %XX. Two keys never give one name. In a header, names longer than 4000 bytes are cut
/// and numbered.
std::string ChunkName(std::string_view key, std::span<const std::uint64_t> shape, BoxView box);

}  // namespace reshard::native
