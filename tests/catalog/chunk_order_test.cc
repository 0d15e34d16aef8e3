// Orders of axes in a file: every permutation is a number of its own, and pieces of permuted chunks
// take the elements from where they lie.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "reshard/catalog/catalog.h"
#include "reshard/catalog/pieces.h"
#include "tests/support/status_matchers.h"

namespace reshard {
namespace {

using ::testing::ElementsAre;

TEST(ChunkOrderTest, EveryOrderOfAxesIsANumberOfItsOwn) {
  for (std::size_t axes = 0; axes <= kMostPermutedAxes; ++axes) {
    std::vector<std::size_t> order(axes);
    std::iota(order.begin(), order.end(), 0);
    std::set<ChunkOrder> seen;
    do {
      const std::optional<ChunkOrder> number = OrderOf(order);
      ASSERT_TRUE(number.has_value());
      EXPECT_TRUE(IsValidOrder(*number, axes));
      EXPECT_EQ(AxesInFile(*number, axes), order);
      EXPECT_TRUE(seen.insert(*number).second);
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST(ChunkOrderTest, KnowsTheTwoCommonOnesForAnyNumberOfAxes) {
  EXPECT_EQ(OrderOf(std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6}), ChunkOrder::kRowMajor);
  EXPECT_EQ(OrderOf(std::vector<std::size_t>{6, 5, 4, 3, 2, 1, 0}), ChunkOrder::kColumnMajor);
  EXPECT_EQ(OrderOf(std::vector<std::size_t>{1, 0, 2, 3, 4, 5, 6}), std::nullopt);
  EXPECT_EQ(OrderOf(std::vector<std::size_t>{0, 0, 1}), std::nullopt);
  EXPECT_EQ(OrderOf(std::vector<std::size_t>{0, 2}), std::nullopt);
}

TEST(ChunkOrderTest, RefusesRanksBeyondTheLastOrder) {
  EXPECT_TRUE(IsValidOrder(static_cast<ChunkOrder>(2 + 5), 3));
  EXPECT_FALSE(IsValidOrder(static_cast<ChunkOrder>(2 + 6), 3));
  EXPECT_FALSE(IsValidOrder(static_cast<ChunkOrder>(2), 6));
}

/// A (2, 3, 4) tensor of bytes whose axes lie in the file in the order 0, 2, 1.
Catalog PermutedCatalog() {
  CatalogInfo info;
  info.kind = CatalogKind::kIndex;
  CatalogBuilder builder(info);
  FileEntry file;
  file.name = "f";
  file.size = 24;
  file.has_blocks = false;
  const std::uint32_t number = builder.AddFile(file, {});
  const Shape shape = {2, 3, 4};
  builder.AddTensor("t", {std::string("t")}, DType::kUint8, shape, std::nullopt);
  builder.AddChunk(WholeBox(shape), number, 0, *OrderOf(std::vector<std::size_t>{0, 2, 1}));
  Result<Catalog> made = std::move(builder).Build();
  EXPECT_OK(made);
  return std::move(*made);
}

TEST(ChunkOrderTest, PiecesOfPermutedChunksGoWhereTheyBelong) {
  const Catalog catalog = PermutedCatalog();
  std::vector<std::uint8_t> file(24);
  for (std::uint8_t i = 0; i < 2; ++i) {
    for (std::uint8_t j = 0; j < 3; ++j) {
      for (std::uint8_t k = 0; k < 4; ++k) {
        file[i * 12U + k * 3U + j] = static_cast<std::uint8_t>(100 * i + 10 * j + k);
      }
    }
  }
  const Box box = {{1, 0, 1}, {1, 2, 3}};
  const WantedBox wanted[] = {{0, box}};
  ASSERT_OK_AND_ASSIGN(const std::vector<Piece> pieces, FindPieces(catalog, wanted));
  ASSERT_EQ(pieces.size(), 1U);
  EXPECT_FALSE(pieces[0].row_major());
  EXPECT_EQ(pieces[0].file_offset, 12U + 3U);
  std::vector<std::uint8_t> out(6);
  const PlacedNest placed = MakePlacedNest(pieces[0], PieceSource::kFile, DType::kUint8, box,
                                           std::vector<std::int64_t>{6, 3, 1});
  RunCopy(placed.nest, reinterpret_cast<const std::byte*>(file.data()) + pieces[0].file_offset,
          reinterpret_cast<std::byte*>(out.data()) + placed.offset);
  EXPECT_THAT(out, ElementsAre(101, 102, 103, 111, 112, 113));
}

}  // namespace
}  // namespace reshard
