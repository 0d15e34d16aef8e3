#include "reshard/format/native/catalog_codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "reshard/codec/crc64.h"

namespace reshard::native {
namespace {

// Section numbers, never reused. Order in the file: increasing.
enum SectionId : std::uint32_t {
  kInfo = 1,
  kFileNames = 2,
  kFileNameEnds = 3,
  kFileFields = 4,
  kBlockChecksums = 5,
  kKeys = 10,
  kKeyEnds = 11,
  kPaths = 12,
  kPathEnds = 13,
  kDTypes = 14,
  kAxes = 15,
  kHasDigest = 16,
  kDigests = 17,
  kShapes = 18,
  kChunkEnds = 19,
  kAliasOf = 20,
  kChunkFiles = 30,
  kChunkOffsets = 31,
  kChunkOrders = 32,
  kChunkBoxes = 33,
  kObjectKeys = 40,
  kObjectKeyEnds = 41,
  kObjectPaths = 42,
  kObjectPathEnds = 43,
  kObjectRanks = 44,
  kObjectValues = 45,
  kObjectValueEnds = 46,
};

constexpr std::size_t kInfoNumbers = 4;
constexpr std::size_t kIndexNumbers = 6;  // of an index: the foreign metadata too
constexpr std::size_t kFileNumbers = 6;
constexpr std::uint64_t kHasBlocksFlag = 1;
constexpr std::uint32_t kEncodingShift = 8;
constexpr auto kLastEncoding = static_cast<std::uint64_t>(FileEncoding::kZstdRecords);

/// The columns that are stored as they are. `Visit(id, column)` for each, by increasing id from 5.
template <typename Columns, typename Visit>
void ForEachColumn(Columns& c, Visit visit) {
  visit(kBlockChecksums, c.block_checksums);
  visit(kKeys, c.keys);
  visit(kKeyEnds, c.key_ends);
  visit(kPaths, c.paths);
  visit(kPathEnds, c.path_ends);
  visit(kDTypes, c.dtypes);
  visit(kAxes, c.axes);
  visit(kHasDigest, c.has_digest);
  visit(kDigests, c.digests);
  visit(kShapes, c.shapes);
  visit(kChunkEnds, c.chunk_ends);
  visit(kAliasOf, c.alias_of);
  visit(kChunkFiles, c.chunk_files);
  visit(kChunkOffsets, c.chunk_offsets);
  visit(kChunkOrders, c.chunk_orders);
  visit(kChunkBoxes, c.chunk_boxes);
  visit(kObjectKeys, c.object_keys);
  visit(kObjectKeyEnds, c.object_key_ends);
  visit(kObjectPaths, c.object_paths);
  visit(kObjectPathEnds, c.object_path_ends);
  visit(kObjectRanks, c.object_ranks);
  visit(kObjectValues, c.object_values);
  visit(kObjectValueEnds, c.object_value_ends);
}

Bytes EncodeInfo(const CatalogInfo& info) {
  Bytes out;
  AppendLittle(out, info.unique_id);
  AppendLittle(out, info.attempt);
  AppendLittle(out, info.world_size);
  AppendLittle(out, info.coordinator_rank);
  if (info.kind == CatalogKind::kIndex) {
    AppendLittle(out, info.metadata_size);
    AppendLittle(out, info.metadata_checksum);
  }
  const ByteSpan format = AsBytes(info.format);
  out.insert(out.end(), format.begin(), format.end());
  return out;
}

struct FileColumns {
  std::string names;
  std::vector<std::uint64_t> ends;
  std::vector<std::uint64_t> fields;
};

std::uint64_t FileFlags(const FileEntry& file) {
  return (file.has_blocks ? kHasBlocksFlag : 0) | static_cast<std::uint64_t>(file.encoding)
                                                      << kEncodingShift;
}

FileColumns SplitFiles(const std::vector<FileEntry>& files) {
  FileColumns out;
  for (const FileEntry& file : files) {
    out.names += file.name;
    out.ends.push_back(out.names.size());
    out.fields.insert(out.fields.end(),
                      {file.rank, file.size, file.payload_offset, file.head_checksum,
                       static_cast<std::uint64_t>(file.mtime_ns), FileFlags(file)});
  }
  return out;
}

class Encoder {
 public:
  explicit Encoder(const Catalog& catalog) : catalog_(catalog) {}

  Bytes Run() {
    const CatalogColumns& c = catalog_.columns();
    const Bytes info = EncodeInfo(c.info);
    const FileColumns files = SplitFiles(c.files);
    Add(kInfo, info);
    Add(kFileNames, AsBytes(files.names));
    Add(kFileNameEnds, std::as_bytes(std::span(files.ends)));
    Add(kFileFields, std::as_bytes(std::span(files.fields)));
    ForEachColumn(c, [this](std::uint32_t id, const auto& column) {
      Add(id, std::as_bytes(std::span(column)));
    });
    return Assemble();
  }

 private:
  struct Section {
    std::uint32_t id;
    ByteSpan bytes;
  };

  void Add(std::uint32_t id, ByteSpan bytes) { sections_.push_back({id, bytes}); }

  static std::uint64_t Padded(std::uint64_t size) { return (size + 7) / 8 * 8; }

  Bytes Assemble() const {
    std::uint64_t size = kHeaderBytes + sections_.size() * kSectionEntryBytes;
    for (const Section& section : sections_) {
      size += Padded(section.bytes.size());
    }
    Bytes out(size);
    std::uint64_t at = kHeaderBytes + sections_.size() * kSectionEntryBytes;
    std::byte* entry = out.data() + kHeaderBytes;
    for (const Section& section : sections_) {
      StoreLittle<std::uint32_t>(entry, section.id);
      StoreLittle<std::uint64_t>(entry + 8, at);
      StoreLittle<std::uint64_t>(entry + 16, section.bytes.size());
      StoreLittle<std::uint64_t>(entry + 24, Crc64(section.bytes));
      std::copy(section.bytes.begin(), section.bytes.end(), out.data() + at);
      at += Padded(section.bytes.size());
      entry += kSectionEntryBytes;
    }
    std::copy_n(AsBytes(kMagic).begin(), kMagic.size(), out.data());
    StoreLittle<std::uint32_t>(out.data() + 8, kVersion);
    StoreLittle<std::uint32_t>(out.data() + 12, static_cast<std::uint32_t>(sections_.size()));
    StoreLittle<std::uint64_t>(out.data() + 16, size);
    StoreLittle<std::uint64_t>(out.data() + 24, static_cast<std::uint64_t>(catalog_.info().kind));
    StoreLittle<std::uint64_t>(out.data() + 32, TableChecksum(out, sections_.size()));
    return out;
  }

  const Catalog& catalog_;
  std::vector<Section> sections_;

 public:
  /// CRC-64 of the header's first 32 bytes and the section table.
  static std::uint64_t TableChecksum(ByteSpan file, std::size_t sections) {
    const ByteSpan head = file.first(32);
    const ByteSpan table = file.subspan(kHeaderBytes, sections * kSectionEntryBytes);
    return Crc64Combine(Crc64(head), Crc64(table), table.size());
  }
};

class Decoder {
 public:
  explicit Decoder(ByteSpan bytes) : bytes_(bytes) {}

  Result<Catalog> Run() {
    RESHARD_TRY(ReadTable());
    CatalogColumns columns;
    RESHARD_TRY(ReadInfo(columns.info));
    RESHARD_TRY(ReadFiles(columns));
    Status status;
    ForEachColumn(columns, [this, &status](std::uint32_t id, auto& column) {
      if (status.ok()) {
        status = ReadColumn(id, column);
      }
    });
    RESHARD_TRY(std::move(status));
    RESHARD_TRY(CheckUnknownSections());
    return Catalog::Create(std::move(columns));
  }

 private:
  struct Entry {
    std::uint32_t id = 0;
    ByteSpan bytes;
    std::uint64_t checksum = 0;
    bool used = false;
  };

  static tl::unexpected<Error> Bad(std::string_view reason, std::string message) {
    return MakeError(ErrorCode::kCorruption, reason, std::move(message));
  }

  Status ReadTable() {
    if (!LooksLikeCatalog(bytes_)) {
      return Bad(kBadMagic, "these bytes do not begin like a reshard catalog");
    }
    if (bytes_.size() < kHeaderBytes) {
      return Bad(kTruncated, fmt::format("the catalog ends after {} bytes", bytes_.size()));
    }
    const auto size = LoadLittle<std::uint64_t>(bytes_.data() + 16);
    if (size != bytes_.size()) {
      return Bad(kTruncated, fmt::format("the catalog is {} bytes long, its header says {}",
                                         bytes_.size(), size));
    }
    const auto count = LoadLittle<std::uint32_t>(bytes_.data() + 12);
    if (count > (bytes_.size() - kHeaderBytes) / kSectionEntryBytes) {
      return Bad(kTruncated, fmt::format("the catalog is too short for {} sections", count));
    }
    if (Encoder::TableChecksum(bytes_, count) != LoadLittle<std::uint64_t>(bytes_.data() + 32)) {
      return Bad(kCatalogChecksum, "the catalog's section table is damaged");
    }
    RESHARD_TRY(CheckVersion());
    return ReadEntries(count);
  }

  /// After the table's checksum, which all versions have in this place: a damaged number is damage.
  Status CheckVersion() const {
    const auto version = LoadLittle<std::uint32_t>(bytes_.data() + 8);
    if (version > kVersion) {
      return MakeError(ErrorCode::kUnsupported, kNewerVersion,
                       fmt::format("the catalog has version {}, this program reads up to {}; use a "
                                   "newer reshard",
                                   version, kVersion));
    }
    if (version == 0) {
      return Bad(kCatalogLayout, "the catalog has version 0, which never existed");
    }
    return OkStatus();
  }

  /// Sections follow each other without gaps but padding to 8 bytes, ids increasing.
  Status ReadEntries(std::uint32_t count) {
    std::uint64_t at = kHeaderBytes + std::uint64_t{count} * kSectionEntryBytes;
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::byte* p = bytes_.data() + kHeaderBytes + i * kSectionEntryBytes;
      Entry entry;
      entry.id = LoadLittle<std::uint32_t>(p);
      entry.checksum = LoadLittle<std::uint64_t>(p + 24);
      const auto offset = LoadLittle<std::uint64_t>(p + 8);
      const auto size = LoadLittle<std::uint64_t>(p + 16);
      const bool ordered = entries_.empty() || entries_.back().id < entry.id;
      if (offset != at || size > bytes_.size() - at || !ordered ||
          LoadLittle<std::uint32_t>(p + 4) != 0) {
        return Bad(kCatalogLayout, fmt::format("section {} of the catalog is misplaced", entry.id));
      }
      entry.bytes = bytes_.subspan(at, size);
      at += size;
      for (; at % 8 != 0; ++at) {
        if (at >= bytes_.size() || bytes_[at] != std::byte{0}) {
          return Bad(kCatalogLayout, fmt::format("section {} has no zero padding", entry.id));
        }
      }
      entries_.push_back(entry);
    }
    if (at != bytes_.size()) {
      return Bad(kCatalogLayout, "bytes after the catalog's last section");
    }
    return OkStatus();
  }

  /// Optional sections are skipped, but their bytes are checked: damage is damage.
  Status CheckUnknownSections() const {
    for (const Entry& entry : entries_) {
      if (entry.used) {
        continue;
      }
      if ((entry.id & kOptionalSection) == 0) {
        return MakeError(
            ErrorCode::kUnsupported, kNewerVersion,
            fmt::format("the catalog has a section {} that this version does not know; "
                        "use a newer reshard",
                        entry.id));
      }
      if (Crc64(entry.bytes) != entry.checksum) {
        return Bad(kCatalogChecksum, fmt::format("section {} of the catalog is damaged", entry.id));
      }
    }
    return OkStatus();
  }

  Result<ByteSpan> Take(std::uint32_t id) {
    const auto entry = std::lower_bound(entries_.begin(), entries_.end(), id,
                                        [](const Entry& e, std::uint32_t i) { return e.id < i; });
    if (entry == entries_.end() || entry->id != id) {
      return Bad(kCatalogLayout, fmt::format("the catalog lacks section {}", id));
    }
    if (Crc64(entry->bytes) != entry->checksum) {
      return Bad(kCatalogChecksum, fmt::format("section {} of the catalog is damaged", id));
    }
    entry->used = true;
    return entry->bytes;
  }

  template <typename Column>
  Status ReadColumn(std::uint32_t id, Column& column) {
    using T = typename Column::value_type;
    RESHARD_TRY_ASSIGN(const ByteSpan bytes, Take(id));
    if (bytes.size() % sizeof(T) != 0) {
      return Bad(kCatalogLayout, fmt::format("section {} is no whole number of entries", id));
    }
    if (reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(T) == 0) {
      const T* values = reinterpret_cast<const T*>(bytes.data());
      column.assign(values, values + bytes.size() / sizeof(T));
      return OkStatus();
    }
    column.resize(bytes.size() / sizeof(T));
    if (!bytes.empty()) {
      std::memcpy(column.data(), bytes.data(), bytes.size());
    }
    return OkStatus();
  }

  Status ReadInfo(CatalogInfo& info) {
    RESHARD_TRY_ASSIGN(const ByteSpan bytes, Take(kInfo));
    const auto kind = LoadLittle<std::uint64_t>(bytes_.data() + 24);
    const bool index = kind == static_cast<std::uint64_t>(CatalogKind::kIndex);
    const std::size_t numbers = (index ? kIndexNumbers : kInfoNumbers) * 8;
    if (bytes.size() < numbers || bytes.size() > numbers + 32 || kind < 1 ||
        kind > static_cast<std::uint64_t>(CatalogKind::kFragment)) {
      return Bad(kCatalogLayout, "the catalog's info section is malformed");
    }
    info.kind = static_cast<CatalogKind>(kind);
    info.unique_id = LoadLittle<std::uint64_t>(bytes.data());
    info.attempt = LoadLittle<std::uint64_t>(bytes.data() + 8);
    info.world_size = LoadLittle<std::uint64_t>(bytes.data() + 16);
    info.coordinator_rank = LoadLittle<std::uint64_t>(bytes.data() + 24);
    if (index) {
      info.metadata_size = LoadLittle<std::uint64_t>(bytes.data() + 32);
      info.metadata_checksum = LoadLittle<std::uint64_t>(bytes.data() + 40);
    }
    info.format = std::string(AsText(bytes.subspan(numbers)));
    return OkStatus();
  }

  Status ReadFiles(CatalogColumns& columns) {
    FileColumns files;
    RESHARD_TRY(ReadColumn(kFileNames, files.names));
    RESHARD_TRY(ReadColumn(kFileNameEnds, files.ends));
    RESHARD_TRY(ReadColumn(kFileFields, files.fields));
    const std::uint64_t last = files.ends.empty() ? 0 : files.ends.back();
    if (files.fields.size() != files.ends.size() * kFileNumbers || last != files.names.size() ||
        !std::is_sorted(files.ends.begin(), files.ends.end())) {
      return Bad(kCatalogLayout, "the catalog's file table is malformed");
    }
    for (std::size_t i = 0; i < files.ends.size(); ++i) {
      const std::uint64_t begin = i == 0 ? 0 : files.ends[i - 1];
      const std::uint64_t* field = files.fields.data() + i * kFileNumbers;
      const std::uint64_t encoding = field[5] >> kEncodingShift;
      if (encoding > kLastEncoding || (field[5] & 0xff) > kHasBlocksFlag) {
        return Bad(kCatalogLayout, "the catalog's file table is malformed");
      }
      columns.files.push_back({files.names.substr(begin, files.ends[i] - begin), field[0], field[1],
                               field[2], field[3], static_cast<std::int64_t>(field[4]),
                               (field[5] & kHasBlocksFlag) != 0,
                               static_cast<FileEncoding>(encoding)});
    }
    return OkStatus();
  }

  ByteSpan bytes_;
  std::vector<Entry> entries_;
};

}  // namespace

Bytes EncodeCatalog(const Catalog& catalog) { return Encoder(catalog).Run(); }

Result<Catalog> DecodeCatalog(ByteSpan bytes) { return Decoder(bytes).Run(); }

bool LooksLikeCatalog(ByteSpan bytes) {
  return bytes.size() >= kMagic.size() && AsText(bytes.first(kMagic.size())) == kMagic;
}

}  // namespace reshard::native
