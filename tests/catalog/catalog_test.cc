#include "reshard/catalog/catalog.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "reshard/catalog/cbor.h"
#include "tests/support/small_catalog.h"
#include "tests/support/status_matchers.h"

namespace reshard {
namespace {

using ::reshard::testing::FailsWith;
using ::reshard::testing::SmallCatalog;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CatalogTest, ShowsWhatTheBuilderWasGiven) {
  const Catalog catalog = SmallCatalog();
  EXPECT_EQ(catalog.info().unique_id, 7U);
  ASSERT_EQ(catalog.num_tensors(), 4U);
  EXPECT_EQ(catalog.num_chunks(), 3U);
  EXPECT_EQ(catalog.key(0), "empty");
  EXPECT_EQ(catalog.key(1), "model.w");
  EXPECT_EQ(catalog.key(2), "model.w_tied");
  EXPECT_EQ(catalog.key(3), "step");
  EXPECT_EQ(catalog.dtype(1), DType::kFloat32);
  EXPECT_THAT(catalog.shape(1), ElementsAre(4, 3));
  EXPECT_EQ(catalog.num_bytes(1), 48U);
  EXPECT_EQ(catalog.digest(1), 0x1111222233334444U);
  EXPECT_EQ(catalog.digest(3), std::nullopt);
  EXPECT_EQ(ToString(catalog.path(1)), "['model']['w']");
  EXPECT_EQ(ToString(catalog.path(3)), "['step']");
}

TEST(CatalogTest, ChunksSayWhereBytesAre) {
  const Catalog catalog = SmallCatalog();
  ASSERT_EQ(catalog.num_chunks(1), 2U);
  const Chunk second = catalog.chunk(1, 1);
  EXPECT_EQ(second.box, BoxView(Box{{2, 0}, {2, 3}}));
  EXPECT_EQ(catalog.files()[second.file].name, "1_7.safetensors");
  EXPECT_EQ(second.byte_offset, 4096U);
  EXPECT_EQ(catalog.chunk_bytes(1, 1), 24U);
  EXPECT_EQ(catalog.num_chunks(0), 0U);
}

TEST(CatalogTest, AnAliasShowsTheChunksOfItsTarget) {
  const Catalog catalog = SmallCatalog();
  EXPECT_EQ(catalog.alias_of(2), 1U);
  ASSERT_EQ(catalog.num_chunks(2), 2U);
  EXPECT_EQ(catalog.chunk(2, 1).box, catalog.chunk(1, 1).box);
  EXPECT_OK(catalog.CheckCoverage(2));
}

TEST(CatalogTest, FindsTensorsAndObjectsByKey) {
  const Catalog catalog = SmallCatalog();
  for (TensorId i = 0; i < catalog.num_tensors(); ++i) {
    EXPECT_EQ(catalog.Find(catalog.key(i)), i);
  }
  for (const char* key : {"", "a", "model.v", "model.w_", "zzz"}) {
    EXPECT_EQ(catalog.Find(key), std::nullopt) << key;
  }
  EXPECT_EQ(catalog.FindObjects("lr"), (std::pair<std::size_t, std::size_t>{0, 1}));
  EXPECT_EQ(catalog.FindObjects("rng"), (std::pair<std::size_t, std::size_t>{1, 3}));
  const auto none = catalog.FindObjects("model.w");
  EXPECT_EQ(none.first, none.second);
  EXPECT_EQ(catalog.object_rank(0), -1);
  EXPECT_EQ(catalog.object_rank(2), 1);
  EXPECT_EQ(DecodeObject(catalog.object_value(2)).value(), Value(11));
  EXPECT_EQ(ToString(catalog.object_path(0)), "['lr']");
}

TEST(CatalogTest, BlocksAndTheirChecksums) {
  const Catalog catalog = SmallCatalog();
  EXPECT_EQ(catalog.files()[0].num_blocks(), 1U);
  EXPECT_EQ(catalog.BlockChecksum(0, 0), 0xaaaaU);
  EXPECT_EQ(catalog.BlockChecksum(1, 0), 0xbbbbU);
  FileEntry file{"f", 0, 4096 + 2 * kBlockBytes + 5, 4096, 0, 0, true};
  EXPECT_EQ(file.num_blocks(), 3U);
  EXPECT_EQ(file.Block(1), (ByteRange{4096 + kBlockBytes, kBlockBytes}));
  EXPECT_EQ(file.Block(2), (ByteRange{4096 + 2 * kBlockBytes, 5}));
  file.size = 4096;
  EXPECT_EQ(file.num_blocks(), 0U);
}

TEST(CatalogTest, FilesWithoutBlockChecksums) {
  CatalogBuilder builder({.kind = CatalogKind::kIndex, .format = "torch"});
  const std::uint32_t file = builder.AddFile({"__0_0.distcp", 0, 8, 0, 0, 5, false}, {});
  builder.AddTensor("t", {"t"}, DType::kInt64, Shape{}, std::nullopt);
  builder.AddChunk(Box{}, file, 0);
  ASSERT_OK_AND_ASSIGN(const Catalog catalog, std::move(builder).Build());
  EXPECT_EQ(catalog.BlockChecksum(0, 0), std::nullopt);
}

// Each broken invariant of the columns, and the reason that Create gives.
struct Broken {
  std::string name;
  std::string reason;
  std::function<void(CatalogColumns&)> change;
};

void PrintTo(const Broken& broken, std::ostream* out) { *out << broken.reason; }

std::string NameOf(const ::testing::TestParamInfo<Broken>& broken) { return broken.param.name; }

class BrokenCatalogTest : public ::testing::TestWithParam<Broken> {};

TEST_P(BrokenCatalogTest, IsRefused) {
  CatalogColumns columns = SmallCatalog().columns();
  GetParam().change(columns);
  const auto catalog = Catalog::Create(std::move(columns));
  ASSERT_THAT(catalog, FailsWith(GetParam().reason));
  EXPECT_EQ(catalog.error().code, ErrorCode::kCorruption);
}

using C = CatalogColumns;

void SetBoxes(C& c, std::vector<std::uint64_t> boxes) { c.chunk_boxes = std::move(boxes); }

INSTANTIATE_TEST_SUITE_P(
    Columns, BrokenCatalogTest,
    ::testing::Values(
        Broken{"KeyEndsFall", "CATALOG_COLUMNS",
               [](C& c) { std::swap(c.key_ends[0], c.key_ends[1]); }},
        Broken{"KeysTooLong", "CATALOG_COLUMNS", [](C& c) { c.keys += 'x'; }},
        Broken{"KeyEndsPastPool", "CATALOG_COLUMNS", [](C& c) { c.key_ends.back() = ~0ULL; }},
        Broken{"PathEnds", "CATALOG_COLUMNS", [](C& c) { c.path_ends.pop_back(); }},
        Broken{"DTypes", "CATALOG_COLUMNS", [](C& c) { c.dtypes.pop_back(); }},
        Broken{"Axes", "CATALOG_COLUMNS", [](C& c) { c.axes.pop_back(); }},
        Broken{"HasDigest", "CATALOG_COLUMNS", [](C& c) { c.has_digest.push_back(0); }},
        Broken{"Digests", "CATALOG_COLUMNS", [](C& c) { c.digests.push_back(0); }},
        Broken{"AliasOf", "CATALOG_COLUMNS", [](C& c) { c.alias_of.pop_back(); }},
        Broken{"ChunkEnds", "CATALOG_COLUMNS", [](C& c) { ++c.chunk_ends.back(); }},
        Broken{"ChunkOffsets", "CATALOG_COLUMNS", [](C& c) { c.chunk_offsets.pop_back(); }},
        Broken{"ChunkOrders", "CATALOG_COLUMNS", [](C& c) { c.chunk_orders.pop_back(); }},
        Broken{"ShapesShort", "CATALOG_COLUMNS", [](C& c) { c.shapes.pop_back(); }},
        Broken{"ShapesLong", "CATALOG_COLUMNS", [](C& c) { c.shapes.push_back(1); }},
        Broken{"BoxesShort", "CATALOG_COLUMNS", [](C& c) { c.chunk_boxes.pop_back(); }},
        Broken{"BoxesLong", "CATALOG_COLUMNS", [](C& c) { c.chunk_boxes.push_back(1); }},
        Broken{"TooManyAxes", "CATALOG_COLUMNS",
               [](C& c) {
                 c.axes[0] = 65;
                 c.shapes.insert(c.shapes.begin(), 64, 1);
               }},
        Broken{"BlocksMissing", "CATALOG_COLUMNS", [](C& c) { c.block_checksums.pop_back(); }},
        Broken{"BlocksTooMany", "CATALOG_COLUMNS", [](C& c) { c.block_checksums.push_back(1); }},
        Broken{"ObjectRanks", "CATALOG_COLUMNS", [](C& c) { c.object_ranks.pop_back(); }},
        Broken{"ObjectKeyEnds", "CATALOG_COLUMNS", [](C& c) { ++c.object_key_ends.back(); }},
        Broken{"ObjectPaths", "CATALOG_COLUMNS", [](C& c) { c.object_paths.push_back({}); }},
        Broken{"ObjectValues", "CATALOG_COLUMNS", [](C& c) { c.object_values.push_back({}); }}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    Content, BrokenCatalogTest,
    ::testing::Values(
        Broken{"KeysUnsorted", "CATALOG_KEYS", [](C& c) { c.keys[0] = 'z'; }},
        Broken{"KeyTwice", "CATALOG_KEYS",
               [](C& c) {
                 c.keys = "empty" "model.w" "model.w" "step";
                 c.key_ends = {5, 12, 19, 23};
               }},
        Broken{"KeyEmpty", "CATALOG_KEYS",
               [](C& c) {
                 c.keys.erase(0, 5);
                 c.key_ends = {0, 7, 19, 23};
               }},
        Broken{"FilesUnsorted", "CATALOG_KEYS", [](C& c) { std::swap(c.files[0], c.files[1]); }},
        Broken{"FileTwice", "CATALOG_KEYS", [](C& c) { c.files[1].name = c.files[0].name; }},
        Broken{"ObjectsUnsorted", "CATALOG_KEYS", [](C& c) { c.object_keys[0] = 'z'; }},
        Broken{"ObjectTwice", "CATALOG_KEYS", [](C& c) { c.object_ranks[2] = 0; }},
        Broken{"ObjectRank", "CATALOG_KEYS", [](C& c) { c.object_ranks[0] = -2; }},
        Broken{"Path", "BAD_OBJECT", [](C& c) { c.paths[0] = std::byte{0}; }},
        Broken{"DTypeZero", "BAD_DTYPE", [](C& c) { c.dtypes[1] = 0; }},
        Broken{"DTypeUnknown", "BAD_DTYPE", [](C& c) { c.dtypes[1] = 200; }},
        Broken{"ShapeOverflow", "SHAPE_OVERFLOW", [](C& c) { c.shapes[0] = 1ULL << 62; }},
        Broken{"ZeroHidesOverflow", "SHAPE_OVERFLOW", [](C& c) { c.shapes[1] = ~0ULL; }},
        Broken{"SubByteShape", "NOT_BYTE_SIZED",
               [](C& c) { c.dtypes[1] = static_cast<std::uint8_t>(DType::kFloat4E2m1); }},
        Broken{"SubByteEdge", "NOT_BYTE_SIZED",
               [](C& c) {
                 c.dtypes[1] = c.dtypes[2] = static_cast<std::uint8_t>(DType::kFloat4E2m1);
                 c.shapes[3] = c.shapes[5] = 4;
                 SetBoxes(c, {0, 0, 4, 3, 0, 3, 4, 1});
               }},
        Broken{"BoxOffset", "BOX_OUT_OF_SHAPE", [](C& c) { c.chunk_boxes[0] = 5; }},
        Broken{"BoxExtent", "BOX_OUT_OF_SHAPE", [](C& c) { c.chunk_boxes[3] = 4; }},
        Broken{"BoxWraps", "BOX_OUT_OF_SHAPE", [](C& c) { c.chunk_boxes[4] = ~0ULL; }},
        Broken{"FileNumber", "CHUNK_OUT_OF_FILE", [](C& c) { c.chunk_files[0] = 2; }},
        Broken{"Order", "CHUNK_OUT_OF_FILE", [](C& c) { c.chunk_orders[0] = 2 + 120; }},
        Broken{"BeforePayload", "CHUNK_OUT_OF_FILE", [](C& c) { c.chunk_offsets[0] = 4095; }},
        Broken{"PastEnd", "CHUNK_OUT_OF_FILE", [](C& c) { c.chunk_offsets[0] = 4129; }},
        Broken{"OffsetWraps", "CHUNK_OUT_OF_FILE", [](C& c) { c.chunk_offsets[0] = ~0ULL - 8; }},
        Broken{"PayloadPastEnd", "CHUNK_OUT_OF_FILE", [](C& c) { c.files[0].payload_offset = 9999; }},
        Broken{"TooFewBytes", "COVERAGE", [](C& c) { c.chunk_boxes[2] = 1; }},
        Broken{"NoChunks", "COVERAGE", [](C& c) { c.shapes[0] = 1; }},
        Broken{"TooManyBytes", "COVERAGE", [](C& c) { c.chunk_boxes[2] = 3; c.files[0].size = 5000; }},
        Broken{"AliasOutOfRange", "BAD_ALIAS", [](C& c) { c.alias_of[2] = 4; }},
        Broken{"AliasOfAlias", "BAD_ALIAS", [](C& c) { c.alias_of[0] = 2; }},
        Broken{"AliasWithChunks", "BAD_ALIAS", [](C& c) { c.alias_of[1] = 3; }},
        Broken{"AliasShape", "BAD_ALIAS", [](C& c) { c.shapes[4] = 3; }},
        Broken{"AliasAxes", "BAD_ALIAS", [](C& c) { c.axes[2] = 1; c.shapes.erase(c.shapes.begin() + 4); }},
        Broken{"AliasDType", "BAD_ALIAS",
               [](C& c) { c.dtypes[2] = static_cast<std::uint8_t>(DType::kInt32); }}),
    NameOf);

TEST(CatalogTest, SumsOfBlocksDoNotWrap) {
  // Sizes whose block counts add up to 2^64 and match the column: the sum must not wrap.
  CatalogColumns columns;
  for (int i = 0; i < (1 << 18); ++i) {
    columns.files.push_back({fmt::format("{:08d}", i), 0, ~0ULL, 0, 0, 0, true});
  }
  EXPECT_EQ(columns.files[0].num_blocks() << 18, 0U);
  EXPECT_THAT(Catalog::Create(std::move(columns)), FailsWith("CATALOG_COLUMNS"));
}

TEST(CatalogTest, AFragmentMayHoldAPartOfATensor) {
  CatalogColumns columns = SmallCatalog().columns();
  columns.info.kind = CatalogKind::kFragment;
  columns.chunk_boxes[2] = 1;
  EXPECT_OK(Catalog::Create(std::move(columns)));
}

Result<Catalog> WithBoxes(const Shape& shape, const std::vector<Box>& boxes) {
  CatalogBuilder builder({});
  const std::vector<std::uint64_t> block = {1};
  const std::uint32_t file = builder.AddFile({"0_0.safetensors", 0, 8192, 4096, 0, 0, true}, block);
  builder.AddTensor("t", {"t"}, DType::kUint8, shape, 1);
  for (const Box& box : boxes) {
    builder.AddChunk(box, file, 4096);
  }
  return std::move(builder).Build();
}

TEST(CatalogTest, CoverageNamesOverlapAndHole) {
  const auto good = WithBoxes({4, 4}, {{{0, 0}, {2, 4}}, {{2, 0}, {2, 4}}});
  ASSERT_OK(good);
  EXPECT_OK(good->CheckCoverage(0));

  const auto overlap = WithBoxes({4, 4}, {{{0, 0}, {2, 4}}, {{1, 0}, {2, 4}}});
  ASSERT_OK(overlap);  // the bytes add up
  const Status status = overlap->CheckCoverage(0);
  ASSERT_THAT(status, FailsWith("OVERLAP"));
  EXPECT_THAT(status.error().message, HasSubstr("'t'"));
  EXPECT_THAT(status.error().message, HasSubstr("[0:2, 0:4] and [1:3, 0:4]"));

  const auto hole = WithBoxes({2}, {{{0}, {2}}});
  ASSERT_OK(hole);
  CatalogColumns columns = hole->columns();
  columns.info.kind = CatalogKind::kFragment;
  columns.chunk_boxes[1] = 1;
  ASSERT_OK_AND_ASSIGN(const Catalog part, Catalog::Create(std::move(columns)));
  EXPECT_THAT(part.CheckCoverage(0), FailsWith("COVERAGE"));
}

TEST(CatalogBuilderTest, SortsTensorsWithTheirChunksAndObjects) {
  CatalogBuilder builder({});
  const std::vector<std::uint64_t> block = {1};
  const std::uint32_t file = builder.AddFile({"f", 0, 100, 0, 0, 0, true}, block);
  builder.AddTensor("z", {"z"}, DType::kUint8, Shape{2}, 26);
  builder.AddChunk(Box{{0}, {1}}, file, 10);
  builder.AddChunk(Box{{1}, {1}}, file, 11);
  builder.AddTensor("alias", {"alias"}, DType::kUint8, Shape{2}, 26, "z");
  builder.AddTensor("b", {"b"}, DType::kInt16, Shape{1, 3}, 2);
  builder.AddChunk(Box{{0, 0}, {1, 3}}, file, 20, ChunkOrder::kColumnMajor);
  builder.AddObject("p", {"p"}, 1, EncodeObject(1));
  builder.AddObject("p", {"p"}, 0, EncodeObject(0));
  builder.AddObject("a", {"a"}, -1, EncodeObject("x"));
  ASSERT_OK_AND_ASSIGN(const Catalog catalog, std::move(builder).Build());
  ASSERT_EQ(catalog.num_tensors(), 3U);
  EXPECT_EQ(catalog.key(0), "alias");
  EXPECT_EQ(catalog.alias_of(0), 2U);
  EXPECT_EQ(catalog.chunk(0, 1).byte_offset, 11U);
  EXPECT_EQ(catalog.chunk(1, 0).byte_offset, 20U);
  EXPECT_EQ(catalog.chunk(1, 0).order, ChunkOrder::kColumnMajor);
  EXPECT_EQ(catalog.chunk(2, 1).box, BoxView(Box{{1}, {1}}));
  EXPECT_EQ(catalog.digest(2), 26U);
  EXPECT_EQ(catalog.object_key(0), "a");
  EXPECT_EQ(DecodeObject(catalog.object_value(1)).value(), Value(0));
  EXPECT_EQ(DecodeObject(catalog.object_value(2)).value(), Value(1));
}

TEST(CatalogBuilderTest, RefusesDuplicateKeysAndLostAliases) {
  CatalogBuilder twice({});
  twice.AddTensor("a", {"a"}, DType::kUint8, Shape{0}, 0);
  twice.AddTensor("a", {"a"}, DType::kUint8, Shape{0}, 0);
  EXPECT_THAT(std::move(twice).Build(), FailsWith("DUPLICATE_KEY"));
  CatalogBuilder lost({});
  lost.AddTensor("a", {"a"}, DType::kUint8, Shape{0}, 0, "nowhere");
  EXPECT_THAT(std::move(lost).Build(), FailsWith("BAD_ALIAS"));
}

TEST(StoredPathTest, IsEmptyForThePlainCase) {
  EXPECT_TRUE(StoredPath("a", {"a"}).empty());
  EXPECT_TRUE(StoredPath("a.b", {"a.b"}).empty());
  EXPECT_FALSE(StoredPath("a.b", {"a", "b"}).empty());
  EXPECT_FALSE(StoredPath("1", {std::int64_t{1}}).empty());
  for (const Path& path : {Path{"a"}, Path{"a", ListIndex{0}}, Path{std::int64_t{3}}}) {
    const std::string key = FlatKey(path);
    EXPECT_EQ(DecodeStoredPath(key, StoredPath(key, path)).value(), path);
  }
}

}  // namespace
}  // namespace reshard
