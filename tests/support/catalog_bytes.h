#pragma once

// Hand-made changes to encoded catalogs: right checksums over wrong content. Shared by tests and
// fuzz targets, so nothing here trusts the bytes.

#include <algorithm>
#include <cstdint>

#include "reshard/base/bytes.h"
#include "reshard/codec/crc64.h"
#include "reshard/format/native/catalog_codec.h"

namespace reshard::testing {

/// Makes the checksums of an encoded catalog right again, as far as its table can be followed.
inline void FixChecksums(Bytes& bytes) {
  if (bytes.size() < native::kHeaderBytes) {
    return;
  }
  const auto count = LoadLittle<std::uint32_t>(bytes.data() + 12);
  if (count > (bytes.size() - native::kHeaderBytes) / native::kSectionEntryBytes) {
    return;
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    std::byte* entry = bytes.data() + native::kHeaderBytes + i * native::kSectionEntryBytes;
    const auto offset = LoadLittle<std::uint64_t>(entry + 8);
    const auto size = LoadLittle<std::uint64_t>(entry + 16);
    if (offset <= bytes.size() && size <= bytes.size() - offset) {
      StoreLittle(entry + 24, Crc64(ByteSpan(bytes).subspan(offset, size)));
    }
  }
  Bytes covered(bytes.begin(), bytes.begin() + 32);
  covered.insert(covered.end(), bytes.begin() + native::kHeaderBytes,
                 bytes.begin() + static_cast<std::ptrdiff_t>(native::kHeaderBytes +
                                                             count * native::kSectionEntryBytes));
  StoreLittle(bytes.data() + 32, Crc64(covered));
}

/// The table entry of section `id`, which must be there.
inline const std::byte* SectionEntry(const Bytes& bytes, std::uint32_t id) {
  const std::byte* entry = bytes.data() + native::kHeaderBytes;
  while (LoadLittle<std::uint32_t>(entry) != id) {
    entry += native::kSectionEntryBytes;
  }
  return entry;
}

/// Appends a section to an encoded catalog.
inline void AddSection(Bytes& bytes, std::uint32_t id, const Bytes& content) {
  const auto count = LoadLittle<std::uint32_t>(bytes.data() + 12);
  const std::size_t table_end = native::kHeaderBytes + count * native::kSectionEntryBytes;
  for (std::uint32_t i = 0; i < count; ++i) {
    std::byte* entry = bytes.data() + native::kHeaderBytes + i * native::kSectionEntryBytes;
    StoreLittle<std::uint64_t>(entry + 8,
                               LoadLittle<std::uint64_t>(entry + 8) + native::kSectionEntryBytes);
  }
  Bytes entry(native::kSectionEntryBytes);
  StoreLittle<std::uint32_t>(entry.data(), id);
  StoreLittle<std::uint64_t>(entry.data() + 8, bytes.size() + entry.size());
  StoreLittle<std::uint64_t>(entry.data() + 16, content.size());
  bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(table_end), entry.begin(), entry.end());
  bytes.insert(bytes.end(), content.begin(), content.end());
  bytes.resize((bytes.size() + 7) / 8 * 8);
  StoreLittle<std::uint32_t>(bytes.data() + 12, count + 1);
  StoreLittle<std::uint64_t>(bytes.data() + 16, bytes.size());
  FixChecksums(bytes);
}

}  // namespace reshard::testing
