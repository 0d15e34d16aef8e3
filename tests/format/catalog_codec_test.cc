#include "reshard/format/native/catalog_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "reshard/codec/crc64.h"
#include "tests/support/allocation_meter.h"
#include "tests/support/catalog_bytes.h"
#include "tests/support/small_catalog.h"
#include "tests/support/status_matchers.h"

namespace reshard::native {
namespace {

using ::reshard::testing::AddSection;
using ::reshard::testing::FailsWith;
using ::reshard::testing::FixChecksums;
using ::reshard::testing::SectionEntry;
using ::reshard::testing::SmallCatalog;
using ::testing::AnyOf;
using ::testing::HasSubstr;

Bytes SmallBytes() { return EncodeCatalog(SmallCatalog()); }

void ExpectEqual(const CatalogColumns& a, const CatalogColumns& b) {
  EXPECT_EQ(a.info, b.info);
  ASSERT_EQ(a.files.size(), b.files.size());
  for (std::size_t i = 0; i < a.files.size(); ++i) {
    EXPECT_EQ(a.files[i].name, b.files[i].name);
    EXPECT_EQ(a.files[i].rank, b.files[i].rank);
    EXPECT_EQ(a.files[i].size, b.files[i].size);
    EXPECT_EQ(a.files[i].payload_offset, b.files[i].payload_offset);
    EXPECT_EQ(a.files[i].head_checksum, b.files[i].head_checksum);
    EXPECT_EQ(a.files[i].mtime_ns, b.files[i].mtime_ns);
    EXPECT_EQ(a.files[i].has_blocks, b.files[i].has_blocks);
  }
  EXPECT_EQ(a.block_checksums, b.block_checksums);
  EXPECT_EQ(a.keys, b.keys);
  EXPECT_EQ(a.key_ends, b.key_ends);
  EXPECT_EQ(a.paths, b.paths);
  EXPECT_EQ(a.path_ends, b.path_ends);
  EXPECT_EQ(a.dtypes, b.dtypes);
  EXPECT_EQ(a.axes, b.axes);
  EXPECT_EQ(a.has_digest, b.has_digest);
  EXPECT_EQ(a.digests, b.digests);
  EXPECT_EQ(a.shapes, b.shapes);
  EXPECT_EQ(a.chunk_ends, b.chunk_ends);
  EXPECT_EQ(a.alias_of, b.alias_of);
  EXPECT_EQ(a.chunk_files, b.chunk_files);
  EXPECT_EQ(a.chunk_offsets, b.chunk_offsets);
  EXPECT_EQ(a.chunk_orders, b.chunk_orders);
  EXPECT_EQ(a.chunk_boxes, b.chunk_boxes);
  EXPECT_EQ(a.object_keys, b.object_keys);
  EXPECT_EQ(a.object_key_ends, b.object_key_ends);
  EXPECT_EQ(a.object_paths, b.object_paths);
  EXPECT_EQ(a.object_path_ends, b.object_path_ends);
  EXPECT_EQ(a.object_ranks, b.object_ranks);
  EXPECT_EQ(a.object_values, b.object_values);
  EXPECT_EQ(a.object_value_ends, b.object_value_ends);
}

TEST(CatalogCodecTest, RoundTripsEveryColumn) {
  const Catalog catalog = SmallCatalog();
  ASSERT_OK_AND_ASSIGN(const Catalog back, DecodeCatalog(EncodeCatalog(catalog)));
  ExpectEqual(back.columns(), catalog.columns());
  EXPECT_EQ(EncodeCatalog(back), EncodeCatalog(catalog));
}

TEST(CatalogCodecTest, RoundTripsAnEmptyCatalogAndAnIndex) {
  ASSERT_OK_AND_ASSIGN(const Catalog empty, CatalogBuilder({}).Build());
  ASSERT_OK_AND_ASSIGN(const Catalog back, DecodeCatalog(EncodeCatalog(empty)));
  ExpectEqual(back.columns(), empty.columns());

  CatalogBuilder builder({.kind = CatalogKind::kIndex, .format = "paddle"});
  builder.AddFile({"0_0.distcp", 0, 10, 0, 0, -5, false}, {});
  ASSERT_OK_AND_ASSIGN(const Catalog index, std::move(builder).Build());
  ASSERT_OK_AND_ASSIGN(const Catalog same, DecodeCatalog(EncodeCatalog(index)));
  ExpectEqual(same.columns(), index.columns());
}

TEST(CatalogCodecTest, SizeDependsOnNoChecksumOrDigest) {
  CatalogColumns columns = SmallCatalog().columns();
  columns.block_checksums.assign(columns.block_checksums.size(), 0);
  columns.digests.assign(columns.digests.size(), ~0ULL);
  columns.files[0].head_checksum = 0;
  ASSERT_OK_AND_ASSIGN(const Catalog other, Catalog::Create(std::move(columns)));
  EXPECT_EQ(EncodeCatalog(other).size(), SmallBytes().size());
}

TEST(CatalogCodecTest, EveryFlippedBitIsAnError) {
  const Bytes good = SmallBytes();
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    Bytes bytes = good;
    bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    const auto catalog = DecodeCatalog(bytes);
    ASSERT_FALSE(catalog.ok()) << "bit " << bit;
    EXPECT_THAT(catalog.error().reason,
                AnyOf(kBadMagic, kTruncated, kCatalogChecksum, kCatalogLayout));
    EXPECT_EQ(catalog.error().code, ErrorCode::kCorruption);
  }
}

TEST(CatalogCodecTest, EveryCutIsAnError) {
  const Bytes good = SmallBytes();
  for (std::size_t size = 0; size < good.size(); ++size) {
    const auto catalog = DecodeCatalog(ByteSpan(good).first(size));
    EXPECT_THAT(catalog, FailsWith(size < 8 ? kBadMagic : kTruncated)) << size;
  }
  Bytes longer = good;
  longer.push_back(std::byte{0});
  EXPECT_THAT(DecodeCatalog(longer), FailsWith(kTruncated));
}

TEST(CatalogCodecTest, FlippedBitsUnderRightChecksumsNeverCrash) {
  // A hostile writer computes checksums too: what decodes has passed Catalog::Create.
  const Bytes good = SmallBytes();
  int decoded = 0;
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    Bytes bytes = good;
    bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    FixChecksums(bytes);
    const auto catalog = DecodeCatalog(bytes);
    if (catalog.ok()) {
      ++decoded;
      EXPECT_EQ(EncodeCatalog(*catalog), bytes) << "bit " << bit;
    }
  }
  EXPECT_GT(decoded, 100);  // digests, ids and the like are free
}

TEST(CatalogCodecTest, SaysWhichSectionIsDamaged) {
  Bytes bytes = SmallBytes();
  const auto offset = LoadLittle<std::uint64_t>(SectionEntry(bytes, 10) + 8);
  bytes[offset] ^= std::byte{1};
  const auto catalog = DecodeCatalog(bytes);
  ASSERT_THAT(catalog, FailsWith(kCatalogChecksum));
  EXPECT_EQ(catalog.error().code, ErrorCode::kCorruption);
  EXPECT_THAT(catalog.error().message, HasSubstr("section 10"));
}

struct Change {
  std::string name;
  std::string_view reason;
  std::function<void(Bytes&)> apply;
};

template <typename T>
void Store(Bytes& bytes, std::size_t at, T value) {
  StoreLittle<T>(bytes.data() + at, value);
}

TEST(CatalogCodecTest, RefusesMalformedLayoutsWithTheirReason) {
  const std::vector<Change> changes = {
      {"magic", kBadMagic, [](Bytes& b) { b[0] = std::byte{'R'}; }},
      {"version 0", kCatalogLayout, [](Bytes& b) { Store<std::uint32_t>(b, 8, 0); }},
      {"version 2", kNewerVersion, [](Bytes& b) { Store<std::uint32_t>(b, 8, 2); }},
      {"too many sections", kTruncated, [](Bytes& b) { Store<std::uint32_t>(b, 12, ~0U); }},
      {"size", kTruncated, [](Bytes& b) { Store<std::uint64_t>(b, 16, ~0ULL); }},
      {"kind 0", kCatalogLayout, [](Bytes& b) { Store<std::uint64_t>(b, 24, 0); }},
      {"kind 4", kCatalogLayout, [](Bytes& b) { Store<std::uint64_t>(b, 24, 4); }},
      {"id twice", kCatalogLayout, [](Bytes& b) { Store<std::uint32_t>(b, 40 + 32, 1); }},
      {"id missing", kCatalogLayout, [](Bytes& b) { Store<std::uint32_t>(b, 40 + 32 * 4, 6); }},
      {"id unknown", kNewerVersion, [](Bytes& b) { AddSection(b, 1000, Bytes(3)); }},
      {"reserved", kCatalogLayout, [](Bytes& b) { Store<std::uint32_t>(b, 44, 1); }},
      {"offset", kCatalogLayout, [](Bytes& b) { b[48] ^= std::byte{8}; }},
      {"section size", kCatalogLayout, [](Bytes& b) { Store<std::uint64_t>(b, 56, ~0ULL); }},
      {"padding", kCatalogLayout,
       [](Bytes& b) {
         const std::byte* entry = SectionEntry(b, 10);
         b[LoadLittle<std::uint64_t>(entry + 8) + LoadLittle<std::uint64_t>(entry + 16)] =
             std::byte{1};
       }},
      {"ends of odd size", kCatalogLayout,
       [](Bytes& b) {
         std::byte* entry = b.data() + (SectionEntry(b, 46) - b.data());
         StoreLittle<std::uint64_t>(entry + 16, LoadLittle<std::uint64_t>(entry + 16) - 1);
       }},
      {"file ends", kCatalogLayout,
       [](Bytes& b) { b[LoadLittle<std::uint64_t>(SectionEntry(b, 3) + 8)] = std::byte{0xff}; }},
  };
  for (const Change& change : changes) {
    Bytes bytes = SmallBytes();
    change.apply(bytes);
    FixChecksums(bytes);
    EXPECT_THAT(DecodeCatalog(bytes), FailsWith(change.reason)) << change.name;
  }
}

TEST(CatalogCodecTest, ANewerVersionIsUnsupportedNotCorrupt) {
  Bytes bytes = SmallBytes();
  Store<std::uint32_t>(bytes, 8, kVersion + 1);
  EXPECT_THAT(DecodeCatalog(bytes), FailsWith(kCatalogChecksum));  // a damaged version number
  FixChecksums(bytes);
  const auto catalog = DecodeCatalog(bytes);
  ASSERT_THAT(catalog, FailsWith(kNewerVersion));
  EXPECT_EQ(catalog.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(catalog.error().message, HasSubstr("version 2"));
  EXPECT_THAT(catalog.error().message, HasSubstr("newer reshard"));
}

TEST(CatalogCodecTest, OptionalSectionsAreSkippedButChecked) {
  Bytes bytes = SmallBytes();
  AddSection(bytes, kOptionalSection | 7, Bytes(11, std::byte{5}));
  ASSERT_OK_AND_ASSIGN(const Catalog catalog, DecodeCatalog(bytes));
  ExpectEqual(catalog.columns(), SmallCatalog().columns());
  bytes[bytes.size() - 16] ^= std::byte{1};
  EXPECT_THAT(DecodeCatalog(bytes), FailsWith(kCatalogChecksum));
}

TEST(CatalogCodecTest, CountsAreNoReasonToAllocate) {
  Bytes bytes(64);
  std::copy_n(AsBytes(kMagic).begin(), 8, bytes.data());
  Store<std::uint32_t>(bytes, 8, kVersion);
  Store<std::uint32_t>(bytes, 12, ~0U);
  Store<std::uint64_t>(bytes, 16, bytes.size());
  const testing::AllocationMeter meter;
  EXPECT_THAT(DecodeCatalog(bytes), FailsWith(kTruncated));
  EXPECT_LT(meter.total(), 4096U);
}

TEST(CatalogCodecTest, KnowsItsOwnBytes) {
  EXPECT_TRUE(LooksLikeCatalog(SmallBytes()));
  EXPECT_FALSE(LooksLikeCatalog(AsBytes("\x89RSH")));
  EXPECT_FALSE(LooksLikeCatalog(AsBytes("{\"a\": 1}")));
}

}  // namespace
}  // namespace reshard::native
