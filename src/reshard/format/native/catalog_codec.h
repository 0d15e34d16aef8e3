#pragma once

// The catalog file: a header, a table of sections, and one section per column, each with its own
// checksum. docs/format/native.md section 2.

#include <cstdint>
#include <string_view>

#include "reshard/base/bytes.h"
#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"

namespace reshard::native {

/// The first eight bytes: a byte with the high bit set, the name, and line ends that a text
/// transfer would damage.
inline constexpr std::string_view kMagic = "\x89RSHD\r\n\x1a";
inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::size_t kHeaderBytes = 40;
inline constexpr std::size_t kSectionEntryBytes = 32;

/// Sections with this bit may be skipped by a reader that does not know them.
inline constexpr std::uint32_t kOptionalSection = 0x80000000;

/// Reasons of this decoder.
inline constexpr std::string_view kBadMagic = "BAD_MAGIC";
inline constexpr std::string_view kTruncated = "CATALOG_TRUNCATED";
inline constexpr std::string_view kCatalogChecksum = "CATALOG_CHECKSUM";
inline constexpr std::string_view kCatalogLayout = "CATALOG_LAYOUT";
inline constexpr std::string_view kNewerVersion = "NEWER_VERSION";

/// Deterministic: equal catalogs give equal bytes. The size depends on the lengths of the columns
/// only, not on checksums and digests.
Bytes EncodeCatalog(const Catalog& catalog);

/// Errors: kCorruption BAD_MAGIC, CATALOG_TRUNCATED, CATALOG_CHECKSUM (names the section),
/// CATALOG_LAYOUT, and those of Catalog::Create; kUnsupported NEWER_VERSION. Memory: proportional
/// to the input.
Result<Catalog> DecodeCatalog(ByteSpan bytes);

/// Whether the bytes begin like a catalog.
bool LooksLikeCatalog(ByteSpan bytes);

}  // namespace reshard::native
