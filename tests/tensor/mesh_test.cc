#include "reshard/tensor/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/support/status_matchers.h"

namespace reshard {
namespace {

using ::testing::ElementsAre;
using testing::FailsWith;
using ::testing::HasSubstr;

ProcessMesh Mesh(std::string_view text) { return ProcessMesh::Parse(text).value(); }

// The box of `rank`; the test fails where there is none.
Box BoxOf(const Shape& shape, const ProcessMesh& mesh, const std::vector<Placement>& placements,
          int rank, DType dtype = DType::kFloat32) {
  auto result = LocalBox(shape, dtype, mesh, placements, rank);
  EXPECT_OK(result);
  if (!result.has_value() || !result->has_value()) {
    ADD_FAILURE() << "no box for rank " << rank;
    return {};
  }
  EXPECT_OK(CheckBox(**result, shape, dtype));
  return **result;
}

TEST(ProcessMeshTest, ParsesNamesAndExtents) {
  const ProcessMesh mesh = Mesh("dp=2,tp=3");
  EXPECT_EQ(mesh.shape(), (Shape{2, 3}));
  EXPECT_THAT(mesh.axis_names(), ElementsAre("dp", "tp"));
  EXPECT_THAT(mesh.ranks(), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(mesh.AxisSize("tp"), 3U);
  EXPECT_EQ(mesh.AxisSize("pp"), 1U);
}

TEST(ProcessMeshTest, ParseNamesTheBadPart) {
  for (const char* text : {"", "dp", "dp=", "=2", "dp=0", "dp=-1", "dp=2,", ",dp=2", "dp=2x",
                           "dp=2,dp=2", "dp=2 ,tp=2", "dp=99999999999999999999"}) {
    EXPECT_THAT(ProcessMesh::Parse(text), FailsWith("BAD_MESH")) << text;
  }
  EXPECT_THAT(ProcessMesh::Parse("dp=2,tp=x").error().message, HasSubstr("'tp=x'"));
}

TEST(ProcessMeshTest, RefusesWhatIsNoMesh) {
  EXPECT_THAT(ProcessMesh::Create({2, 0}), FailsWith("BAD_MESH"));
  EXPECT_THAT(ProcessMesh::Create({2}, {}, {0, 1, 2}), FailsWith("BAD_MESH"));
  EXPECT_THAT(ProcessMesh::Create({2}, {}, {1, 1}), FailsWith("BAD_MESH"));
  EXPECT_THAT(ProcessMesh::Create({2}, {}, {0, -1}), FailsWith("BAD_MESH"));
  EXPECT_THAT(ProcessMesh::Create({2}, {"a", "b"}), FailsWith("BAD_MESH"));
  EXPECT_THAT(ProcessMesh::Create({2, 2}, {"a", ""}), FailsWith("BAD_MESH"));
  EXPECT_THAT(ProcessMesh::Create({1ULL << 40, 1ULL << 40}), FailsWith("BAD_MESH"));
  EXPECT_THAT(ProcessMesh::Create({kMaxMeshRanks + 1}), FailsWith("BAD_MESH"));
}

TEST(ProcessMeshTest, CoordinatesFollowTheListOfRanks) {
  ASSERT_OK_AND_ASSIGN(const ProcessMesh mesh, ProcessMesh::Create({2, 2}, {}, {7, 3, 5, 0}));
  EXPECT_THAT(mesh.axis_names(), ElementsAre("d0", "d1"));
  EXPECT_EQ(mesh.Coordinates(7), (Index{0, 0}));
  EXPECT_EQ(mesh.Coordinates(3), (Index{0, 1}));
  EXPECT_EQ(mesh.Coordinates(5), (Index{1, 0}));
  EXPECT_EQ(mesh.Coordinates(0), (Index{1, 1}));
  EXPECT_EQ(mesh.Coordinates(1), std::nullopt);
  EXPECT_EQ(mesh.Coordinates(-1), std::nullopt);
}

TEST(ProcessMeshTest, MeshOfNoAxesIsOneRank) {
  ASSERT_OK_AND_ASSIGN(const ProcessMesh mesh, ProcessMesh::Create({}));
  EXPECT_EQ(mesh.Coordinates(0), Index{});
  EXPECT_EQ(BoxOf({4}, mesh, {}, 0), (Box{{0}, {4}}));
}

TEST(CutEvenlyTest, LastPiecesGetWhatIsLeft) {
  EXPECT_EQ(CutEvenly(5, 4, 0), (AxisPart{0, 2}));
  EXPECT_EQ(CutEvenly(5, 4, 1), (AxisPart{2, 2}));
  EXPECT_EQ(CutEvenly(5, 4, 2), (AxisPart{4, 1}));
  EXPECT_EQ(CutEvenly(5, 4, 3), (AxisPart{5, 0}));
  EXPECT_EQ(CutEvenly(0, 3, 2), (AxisPart{0, 0}));
}

TEST(CutEvenlyTest, PiecesTileTheWhole) {
  for (std::uint64_t count = 0; count < 40; ++count) {
    for (std::uint64_t parts = 1; parts < 12; ++parts) {
      std::uint64_t next = 0;
      for (std::uint64_t part = 0; part < parts; ++part) {
        const AxisPart piece = CutEvenly(count, parts, part);
        ASSERT_EQ(piece.offset, next) << count << " over " << parts;
        next += piece.extent;
      }
      ASSERT_EQ(next, count);
    }
  }
  EXPECT_EQ(CutEvenly((1ULL << 63) - 1, 1U << 24, (1U << 24) - 1).extent, (1ULL << 39) - 1);
}

TEST(LocalBoxTest, ShardsAndReplicates) {
  const ProcessMesh mesh = Mesh("dp=2,tp=2");
  EXPECT_EQ(BoxOf({8, 6}, mesh, {Replicate{}, Shard{1}}, 3), (Box{{0, 3}, {8, 3}}));
  EXPECT_EQ(BoxOf({8, 6}, mesh, {Shard{0}, Shard{1}}, 2), (Box{{4, 0}, {4, 3}}));
  EXPECT_EQ(BoxOf({8, 6}, mesh, {Replicate{}, Replicate{}}, 1), (Box{{0, 0}, {8, 6}}));
}

TEST(LocalBoxTest, NegativeAxisCountsFromTheEnd) {
  const ProcessMesh mesh = Mesh("tp=2");
  EXPECT_EQ(BoxOf({8, 6}, mesh, {Shard{-1}}, 1), (Box{{0, 3}, {8, 3}}));
  EXPECT_EQ(BoxOf({8, 6}, mesh, {Shard{-2}}, 1), (Box{{4, 0}, {4, 6}}));
}

TEST(LocalBoxTest, SeveralMeshAxesCutOneAxisTheFirstCoarsest) {
  const ProcessMesh mesh = Mesh("a=2,b=3");
  const std::vector<Placement> placements = {Shard{0}, Shard{0}};
  // 10 over 2 is 5 + 5, each over 3 is 2 + 2 + 1.
  const std::vector<Box> want = {{{0}, {2}}, {{2}, {2}}, {{4}, {1}},
                                 {{5}, {2}}, {{7}, {2}}, {{9}, {1}}};
  for (int rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(BoxOf({10}, mesh, placements, rank), want[rank]) << rank;
  }
}

TEST(LocalBoxTest, UnevenPiecesMayBeEmptyAtTheEndOfTheAxis) {
  const ProcessMesh mesh = Mesh("tp=4");
  const std::vector<Box> want = {
      {{0, 0}, {2, 3}}, {{2, 0}, {2, 3}}, {{4, 0}, {1, 3}}, {{5, 0}, {0, 3}}};
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(BoxOf({5, 3}, mesh, {Shard{0}}, rank), want[rank]) << rank;
  }
}

TEST(LocalBoxTest, EmptyPieceOfANestedCutLiesAtTheEndOfTheAxisToo) {
  // 4 over 2 is 2 + 2; 2 over 3 is 1 + 1 + 0.
  EXPECT_EQ(BoxOf({4}, Mesh("a=2,b=3"), {Shard{0}, Shard{0}}, 2), (Box{{4}, {0}}));
  EXPECT_EQ(BoxOf({0, 2}, Mesh("a=2"), {Shard{1}}, 1), (Box{{0, 1}, {0, 1}}));
}

TEST(LocalBoxTest, RankOutsideTheMeshHoldsNothing) {
  ASSERT_OK_AND_ASSIGN(const auto box, LocalBox(Shape{4}, DType::kFloat32, Mesh("tp=2"),
                                                std::vector<Placement>{Shard{0}}, 2));
  EXPECT_EQ(box, std::nullopt);
}

TEST(LocalBoxTest, SubByteTypesAreCutInUnits) {
  const ProcessMesh mesh = Mesh("tp=2");
  // 12 elements of F6 are 3 units: 2 + 1. 6 elements of F4 are 3 units as well.
  EXPECT_EQ(BoxOf({2, 12}, mesh, {Shard{1}}, 0, DType::kFloat6E2m3), (Box{{0, 0}, {2, 8}}));
  EXPECT_EQ(BoxOf({2, 12}, mesh, {Shard{1}}, 1, DType::kFloat6E2m3), (Box{{0, 8}, {2, 4}}));
  EXPECT_EQ(BoxOf({2, 6}, mesh, {Shard{1}}, 1, DType::kFloat4E2m1), (Box{{0, 4}, {2, 2}}));
  EXPECT_EQ(BoxOf({2, 6}, mesh, {Shard{0}}, 1, DType::kFloat4E2m1), (Box{{1, 0}, {1, 6}}));
  EXPECT_EQ(BoxOf({2, 2}, mesh, {Shard{1}}, 1, DType::kFloat4E2m1), (Box{{0, 2}, {2, 0}}));
}

TEST(LocalBoxTest, EveryDTypeIsCoveredExactlyOnce) {
  const ProcessMesh mesh = Mesh("a=2,b=2,c=3");
  for (const DTypeInfo& info : AllDTypes()) {
    SCOPED_TRACE(info.name);
    const Shape shape = {5, 20};
    std::vector<int> seen(100, 0);
    for (int rank = 0; rank < 12; ++rank) {
      const Box box = BoxOf(shape, mesh, {Shard{1}, Shard{0}, Shard{-1}}, rank, info.dtype);
      for (std::uint64_t i = 0; i < box.extent[0]; ++i) {
        for (std::uint64_t j = 0; j < box.extent[1]; ++j) {
          ++seen[(box.offset[0] + i) * 20 + box.offset[1] + j];
        }
      }
    }
    EXPECT_THAT(seen, ::testing::Each(1));
  }
}

TEST(LocalBoxTest, ErrorsAreTheSameOnEveryRank) {
  const ProcessMesh mesh = Mesh("tp=2");
  for (int rank : {0, 9}) {
    const auto fails = [&](const Shape& shape, const std::vector<Placement>& placements,
                           DType dtype) { return LocalBox(shape, dtype, mesh, placements, rank); };
    EXPECT_THAT(fails({4}, {}, DType::kInt8), FailsWith("PLACEMENT_COUNT"));
    EXPECT_THAT(fails({4}, {Shard{0}, Shard{0}}, DType::kInt8), FailsWith("PLACEMENT_COUNT"));
    EXPECT_THAT(fails({4}, {Shard{1}}, DType::kInt8), FailsWith("BAD_AXIS"));
    EXPECT_THAT(fails({4}, {Shard{-2}}, DType::kInt8), FailsWith("BAD_AXIS"));
    EXPECT_THAT(fails({}, {Shard{0}}, DType::kInt8), FailsWith("BAD_AXIS"));
    EXPECT_THAT(fails({3}, {Shard{0}}, DType::kFloat4E2m1), FailsWith("NOT_BYTE_SIZED"));
  }
}

TEST(LocalBoxTest, PartialTellsWhatToDo) {
  const auto result =
      LocalBox(Shape{4}, DType::kFloat32, Mesh("dp=2"), std::vector<Placement>{Partial{}}, 0);
  ASSERT_THAT(result, FailsWith("PARTIAL_PLACEMENT"));
  EXPECT_THAT(result.error().message, HasSubstr("'dp'"));
  EXPECT_THAT(result.error().message, HasSubstr("all-reduce"));
}

// Row-major positions inside `local` of the box's elements, in row-major order.
std::vector<std::uint64_t> Positions(const Box& box, const Box& local) {
  std::vector<std::uint64_t> positions;
  Index index(box.extent.size(), 0);
  for (std::uint64_t n = NumElements(box); n > 0; --n) {
    std::uint64_t position = 0;
    for (std::size_t i = 0; i < index.size(); ++i) {
      position = position * local.extent[i] + box.offset[i] + index[i] - local.offset[i];
    }
    positions.push_back(position);
    for (std::size_t i = index.size(); i-- > 0 && ++index[i] == box.extent[i];) {
      index[i] = 0;
    }
  }
  return positions;
}

class FlattenedRangeTest : public ::testing::TestWithParam<Shape> {};

TEST_P(FlattenedRangeTest, EveryRangeIsExactInOrderAndOfFewBoxes) {
  const Shape& extent = GetParam();
  Box local{Index(extent.size()), extent};
  std::iota(local.offset.begin(), local.offset.end(), 3);
  const std::uint64_t elements = NumElements(extent);
  for (std::uint64_t begin = 0; begin <= elements; ++begin) {
    for (std::uint64_t end = begin; end <= elements; ++end) {
      SCOPED_TRACE(::testing::Message() << "[" << begin << ", " << end << ")");
      ASSERT_OK_AND_ASSIGN(const auto boxes, FlattenedRangeToBoxes(local, begin, end));
      ASSERT_LE(boxes.size(), std::max<std::size_t>(1, 2 * extent.size() - 1));
      std::uint64_t next = begin;
      for (const Box& box : boxes) {
        const auto positions = Positions(box, local);
        ASSERT_FALSE(positions.empty());
        for (std::uint64_t position : positions) {
          ASSERT_EQ(position, next++) << ToString(box);
        }
      }
      ASSERT_EQ(next, end);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, FlattenedRangeTest,
                         ::testing::Values(Shape{}, Shape{7}, Shape{1}, Shape{0}, Shape{3, 0, 2},
                                           Shape{4, 5}, Shape{1, 6}, Shape{6, 1}, Shape{2, 3, 4},
                                           Shape{3, 1, 4}, Shape{2, 3, 2, 4}, Shape{1, 1, 1, 1},
                                           Shape{2, 3, 2, 2, 3}));

TEST(FlattenedRangeToBoxesTest, KnownTrap) {
  ASSERT_OK_AND_ASSIGN(const auto boxes, FlattenedRangeToBoxes(WholeBox(Shape{2, 3, 4}), 0, 13));
  EXPECT_THAT(boxes, ElementsAre(Box{{0, 0, 0}, {1, 3, 4}}, Box{{1, 0, 0}, {1, 1, 1}}));
}

TEST(FlattenedRangeToBoxesTest, ReachesTheMostBoxes) {
  ASSERT_OK_AND_ASSIGN(const auto boxes, FlattenedRangeToBoxes(WholeBox(Shape{4, 4, 4}), 1, 63));
  EXPECT_EQ(boxes.size(), 5U);
}

TEST(FlattenedRangeToBoxesTest, RefusesRangesThatAreNone) {
  const Box local = WholeBox(Shape{2, 3});
  EXPECT_THAT(FlattenedRangeToBoxes(local, 3, 2), FailsWith("BAD_RANGE"));
  EXPECT_THAT(FlattenedRangeToBoxes(local, 0, 7), FailsWith("BAD_RANGE"));
  EXPECT_THAT(FlattenedRangeToBoxes(Box{{}, {}}, 0, 2), FailsWith("BAD_RANGE"));
}

}  // namespace
}  // namespace reshard
