#include "reshard/format/native/data_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "reshard/codec/crc64.h"
#include "reshard/format/native/catalog_codec.h"
#include "tests/support/safetensors_reader.h"
#include "tests/support/small_catalog.h"
#include "tests/support/status_matchers.h"

namespace reshard::native {
namespace {

using ::reshard::testing::FailsWith;
using ::reshard::testing::ReadSafetensors;
using ::reshard::testing::SafetensorsEntry;
using ::reshard::testing::SafetensorsFile;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Piece {
  std::string key;
  DType dtype = DType::kUint8;
  Shape shape;
  Box box;
};

Piece Whole(std::string key, DType dtype, Shape shape) {
  return {std::move(key), dtype, shape, WholeBox(shape)};
}

Bytes Fragment() {
  CatalogColumns columns = testing::SmallCatalog().columns();
  columns.info.kind = CatalogKind::kFragment;
  return EncodeCatalog(Catalog::Create(std::move(columns)).value());
}

/// Entries over `pieces`, laid out one behind the other. `pieces` must outlive them.
std::vector<HeaderEntry> Entries(const std::vector<Piece>& pieces, std::uint64_t& payload_bytes) {
  std::vector<HeaderEntry> entries;
  payload_bytes = 0;
  for (const Piece& piece : pieces) {
    entries.push_back({piece.key, piece.dtype, piece.shape, piece.box, payload_bytes});
    payload_bytes += NumBytes(piece.box, piece.dtype);
  }
  return entries;
}

struct Written {
  Head head;
  Bytes header;
  SafetensorsFile file;  ///< What an independent reader makes of it.
};

Written Write(const std::vector<Piece>& pieces, const Bytes& fragment = Fragment()) {
  Written out;
  std::uint64_t payload_bytes = 0;
  const std::vector<HeaderEntry> entries = Entries(pieces, payload_bytes);
  out.head = {.unique_id = 7, .attempt = 1, .rank = 3};
  out.head.payload_offset = HeaderSize(entries, fragment.size()).value();
  out.head.file_size = out.head.payload_offset + payload_bytes;
  out.header = EncodeHeader(entries, out.head, fragment);
  out.file = ReadSafetensors(out.header, out.head.file_size);
  EXPECT_EQ(out.file.error, "");
  EXPECT_EQ(out.file.tensors.size(), pieces.size());
  return out;
}

TEST(DataFileTest, IsASafetensorsFile) {
  const Written w = Write({Whole("model.w", DType::kFloat32, {2, 3}),
                           {"part", DType::kInt16, {4, 6}, {{2, 0}, {2, 3}}},
                           Whole("scalar", DType::kUint8, {})});
  EXPECT_EQ(w.file.payload_offset, w.head.payload_offset);
  EXPECT_EQ(w.file.payload_offset % 4096, 0U);
  EXPECT_EQ(w.header.size(), w.head.payload_offset);
  ASSERT_TRUE(w.file.tensors.contains("part@2,0"));
  const SafetensorsEntry& part = w.file.tensors.at("part@2,0");
  EXPECT_EQ(part.dtype, "I16");
  EXPECT_THAT(part.shape, ElementsAre(2, 3));
  EXPECT_EQ(part.begin, 24U);
  EXPECT_EQ(part.end, 36U);
  EXPECT_THAT(w.file.tensors.at("scalar").shape, ElementsAre());
  EXPECT_EQ(w.file.metadata.size(), 2U);
  EXPECT_TRUE(w.file.metadata.at("reshard.head").starts_with("v1 id=00000000000000000007 "));
}

TEST(DataFileTest, AFileWithoutTensorsIsValid) {
  const Written w = Write({});
  EXPECT_EQ(w.head.file_size, w.head.payload_offset);
}

TEST(DataFileTest, EveryDTypeHasItsTagAndSize) {
  for (const DTypeInfo& info : AllDTypes()) {
    const Shape shape = {3, 2 * std::uint64_t{info.unit_elements}};
    const Written w = Write({Whole("t", info.dtype, shape), Whole("first", info.dtype, shape)});
    const SafetensorsEntry& entry = w.file.tensors.at("t");
    EXPECT_EQ(entry.dtype, info.safetensors);
    EXPECT_EQ(entry.end - entry.begin, NumBytes(shape, info.dtype));
    std::vector<std::uint64_t> expected = shape;
    if (info.dtype == DType::kComplex32 || info.dtype == DType::kComplex128) {
      expected.push_back(2);
    }
    EXPECT_EQ(entry.shape, expected) << info.name;
  }
  EXPECT_THAT(Write({Whole("c", DType::kComplex128, {})}).file.tensors.at("c").shape,
              ElementsAre(2));
}

TEST(DataFileTest, ChunkNamesSayKeyAndOffsets) {
  const Shape shape = {4, 6};
  EXPECT_EQ(ChunkName("w", shape, WholeBox(shape)), "w");
  EXPECT_EQ(ChunkName("w", shape, Box{{2, 0}, {2, 6}}), "w@2,0");
  EXPECT_EQ(ChunkName("w", {}, Box{}), "w");
  EXPECT_EQ(ChunkName("a@b%c", shape, WholeBox(shape)), "a%40b%25c");
  EXPECT_EQ(ChunkName("q\"\\ ä€", shape, WholeBox(shape)), "q\"\\ ä€");
  EXPECT_EQ(ChunkName("\n\x7f", shape, WholeBox(shape)), "%0A%7F");
  EXPECT_EQ(ChunkName("__metadata__", shape, WholeBox(shape)), "%5F_metadata__");
  EXPECT_EQ(ChunkName("__metadata__", shape, Box{{0, 1}, {4, 1}}), "%5F_metadata__@0,1");
  EXPECT_EQ(ChunkName("\xff\xc3", shape, WholeBox(shape)), "%FF%C3");
  EXPECT_EQ(ChunkName("\xed\xa0\x80", shape, WholeBox(shape)), "%ED%A0%80");  // a surrogate
  EXPECT_EQ(ChunkName("\xc0\xaf", shape, WholeBox(shape)), "%C0%AF");         // overlong
}

TEST(DataFileTest, OddKeysMakeValidFiles) {
  std::vector<Piece> pieces;
  for (const std::string& key :
       {std::string("__metadata__"), std::string("a@0"), std::string("a%40"), std::string("\"\\/"),
        std::string("\b\f\n\r\t\x01\x1f\x7f"), std::string("\xff\xfe bad"), std::string("ä€𝄞"),
        std::string("\xf0\x9f\x92"), std::string("nul\0nul", 7), std::string(5000, 'x'),
        std::string(5000, '\x01'), std::string("\\u0061"), std::string("%5F_metadata__")}) {
    pieces.push_back(Whole(key, DType::kUint8, {2, 2}));
    pieces.push_back({key, DType::kUint8, {9, 9}, {{1, 2}, {1, 1}}});
  }
  Write(pieces);  // the reader refuses equal, invalid and over-long names
}

TEST(DataFileTest, LongNamesAreCutOnCharactersAndStayUnique) {
  std::vector<Piece> pieces;
  for (int shift = 0; shift < 4; ++shift) {  // the cut falls on each byte of a character
    std::string key(static_cast<std::size_t>(shift), 'x');
    while (key.size() < 5000) {
      key += "𝄞";
    }
    pieces.push_back(Whole(key, DType::kUint8, {1}));
    pieces.push_back(Whole(key + "other end", DType::kUint8, {1}));
  }
  // 64 axes make a long name of a key that is short enough by itself.
  Piece wide = {std::string(3500, 'w'), DType::kUint8, Shape(64, 1), {}};
  wide.shape[0] = 1ULL << 40;
  wide.box = {Index(64, 0), Index(64, 1)};
  for (int i = 0; i < 3; ++i) {
    wide.box.offset[0] = (1ULL << 39) + static_cast<std::uint64_t>(i);
    wide.key += std::string(300, 'y');
    pieces.push_back(wide);
  }
  const Written w = Write(pieces);
  for (const auto& [name, entry] : w.file.tensors) {
    EXPECT_LE(name.size(), 4096U);
  }
  EXPECT_TRUE(w.file.tensors.contains("𝄞𝄞𝄞𝄞𝄞𝄞𝄞𝄞𝄞𝄞𝄞𝄞𝄞𝄞𝄞𝄞%~0"));
  // What a short key could look like never collides with a cut name.
  EXPECT_EQ(ChunkName("x%~0", Shape{1}, Box{{0}, {1}}), "x%25~0");
}

TEST(DataFileTest, NamesAreUniqueForAllShortKeys) {
  // All strings of up to 3 of these bytes, whole and in part.
  const std::string alphabet = "a@%25,0\x01\xc3\xa4_";
  std::vector<std::string> keys = {""};
  std::set<std::string> names;
  std::size_t count = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    for (const Box& box : {Box{{0}, {5}}, Box{{0}, {1}}, Box{{2}, {1}}}) {
      names.insert(ChunkName(keys[i], Shape{5}, box));
      ++count;
    }
    if (keys[i].size() < 3) {
      for (const char c : alphabet) {
        keys.push_back(keys[i] + c);
      }
    }
  }
  EXPECT_EQ(names.size(), count);
  EXPECT_GT(count, 3000U);
}

TEST(DataFileTest, RefusesHeadersThatReadersWouldRefuse) {
  const std::vector<Piece> pieces = {Whole("a", DType::kUint8, {1}),
                                     Whole("b", DType::kUint8, {1})};
  std::uint64_t payload_bytes = 0;
  const auto entries = Entries(pieces, payload_bytes);
  const auto size = HeaderSize(entries, 49'000'000);
  ASSERT_OK(size);
  EXPECT_LE(*size - 8, kMaxHeaderBytes);
  const auto large = HeaderSize(entries, 50'000'000);
  ASSERT_THAT(large, FailsWith(kHeaderTooLarge));
  EXPECT_EQ(large.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(large.error().message, HasSubstr("2 tensors"));
  EXPECT_THAT(large.error().message, HasSubstr("more ranks"));
}

TEST(DataFileTest, HeadAndFragmentDecode) {
  const Written w = Write({Whole("w", DType::kFloat32, {2, 3})});
  ASSERT_OK_AND_ASSIGN(const Head head, DecodeHead(ByteSpan(w.header).first(kHeadBytes)));
  EXPECT_EQ(head.unique_id, 7U);
  EXPECT_EQ(head.attempt, 1U);
  EXPECT_EQ(head.rank, 3U);
  EXPECT_EQ(head.file_size, w.head.file_size);
  EXPECT_EQ(head.payload_offset, w.head.payload_offset);
  EXPECT_EQ(head.rest_checksum, Crc64(ByteSpan(w.header).subspan(kHeadBytes)));
  ASSERT_OK_AND_ASSIGN(const Catalog fragment, DecodeFragment(w.header));
  EXPECT_EQ(EncodeCatalog(fragment), Fragment());
}

TEST(DataFileTest, LargestNumbersFitTheHead) {
  const std::uint64_t big = ~0ULL;
  std::uint64_t unused = 0;
  const auto size = HeaderSize(Entries({}, unused), 0);
  ASSERT_OK(size);
  const Head head = {big, big, big, big, *size, 0};
  const Bytes header = EncodeHeader({}, head, {});
  ASSERT_OK_AND_ASSIGN(const Head back, DecodeHead(header));
  EXPECT_EQ(back.unique_id, big);
  EXPECT_EQ(back.file_size, big);
}

TEST(DataFileTest, FlippedBitsAreDetected) {
  const Written w = Write({Whole("w", DType::kFloat32, {2, 3})});
  const std::uint64_t head_checksum = Crc64(ByteSpan(w.header).first(kHeadBytes));
  const std::size_t fragment_end = w.header.size() - 4096;
  for (std::size_t bit = 0; bit < w.header.size() * 8; bit += bit < 6000 * 8 ? 1 : 5) {
    Bytes bytes = w.header;
    bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    const auto head = DecodeHead(bytes);
    const auto fragment = DecodeFragment(bytes);
    if (bit / 8 >= kHeadBytes) {
      ASSERT_THAT(fragment, FailsWith(kBadHead)) << "bit " << bit;
      continue;
    }
    // The head's own checksum stands in the catalog; alone, no other head passes for this one.
    ASSERT_NE(Crc64(ByteSpan(bytes).first(kHeadBytes)), head_checksum);
    if (head.ok() && *head == w.head) {
      ASSERT_TRUE(!fragment.ok() || bit / 8 > fragment_end) << "bit " << bit;
    }
  }
}

TEST(DataFileTest, EveryCutIsAnError) {
  const Written w = Write({});
  for (std::size_t size = 0; size < w.header.size(); size += size < 4000 ? 13 : 1) {
    EXPECT_THAT(DecodeFragment(ByteSpan(w.header).first(size)), FailsWith(kBadHead)) << size;
    if (size < kHeadBytes) {
      EXPECT_THAT(DecodeHead(ByteSpan(w.header).first(size)), FailsWith(kBadHead));
    }
  }
}

/// Replaces text in the header and makes its checksum right again.
Bytes Replaced(const Written& w, std::string_view from, std::string_view to) {
  Bytes bytes = w.header;
  const std::size_t at = AsText(bytes).find(from);
  EXPECT_NE(at, std::string_view::npos);
  std::copy(AsBytes(to).begin(), AsBytes(to).end(),
            bytes.begin() + static_cast<std::ptrdiff_t>(at));
  const std::string rest = fmt::format("{:016x}", Crc64(ByteSpan(bytes).subspan(kHeadBytes)));
  const std::size_t field = AsText(bytes).find("rest=");
  if (field != std::string_view::npos) {
    std::copy(AsBytes(rest).begin(), AsBytes(rest).end(),
              bytes.begin() + static_cast<std::ptrdiff_t>(field + 5));
  }
  return bytes;
}

TEST(DataFileTest, RefusesMalformedHeads) {
  const Written w = Write({});
  const std::string payload = fmt::format("payload={:020d}", w.head.payload_offset);
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"v1 id=", "v2 id="},
           {"id=0", "id=9"},  // beyond 64 bits
           {"rank=0", "rank=-"},
           {"rank=0", "rank=+"},
           {payload, fmt::format("payload={:020d}", 0)},
           {payload, fmt::format("payload={:020d}", w.head.payload_offset + 4096)},
           {payload, fmt::format("payload={:020d}", w.head.payload_offset + 1)},
           {"size=0", "size= "},
           {"reshard.head", "reshard.HEAD"},
       }) {
    EXPECT_THAT(DecodeHead(Replaced(w, from, to)), FailsWith(kBadHead)) << from << " " << to;
  }
  Bytes small_file = Replaced(w, fmt::format("size={:020d}", w.head.file_size),
                              fmt::format("size={:020d}", w.head.payload_offset - 1));
  EXPECT_THAT(DecodeHead(small_file), FailsWith(kBadHead));
  Bytes other_length = w.header;
  other_length[0] ^= std::byte{1};
  EXPECT_THAT(DecodeHead(other_length), FailsWith(kBadHead));
}

TEST(DataFileTest, HeadsHaveOneSpelling) {
  Written w = Write({});
  Bytes bytes = w.header;
  const std::size_t field = AsText(bytes).find("rest=") + 5;
  const std::string upper = "ABCDEF0123456789";
  std::copy(AsBytes(upper).begin(), AsBytes(upper).end(),
            bytes.begin() + static_cast<std::ptrdiff_t>(field));
  EXPECT_THAT(DecodeHead(bytes), FailsWith(kBadHead));
}

TEST(DataFileTest, RefusesMalformedFragments) {
  const Written w = Write({});
  EXPECT_THAT(DecodeFragment(Replaced(w, "reshard.fragment", "reshard.Fragment")),
              FailsWith(kBadHead));
  EXPECT_THAT(DecodeFragment(Replaced(w, "\"89525348", "\"8952534G")), FailsWith(kBadHead));
  EXPECT_THAT(DecodeFragment(Replaced(w, "\"89525348", "\"895253\"8")), FailsWith(kBadMagic));
  EXPECT_THAT(DecodeFragment(Replaced(w, "\"89525348", "\"89525\"48")), FailsWith(kBadHead));
  const Written snapshot = Write({}, EncodeCatalog(testing::SmallCatalog()));
  EXPECT_THAT(DecodeFragment(snapshot.header), FailsWith(kBadHead));
}

}  // namespace
}  // namespace reshard::native
