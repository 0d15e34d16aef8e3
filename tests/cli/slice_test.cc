#include "reshard/cli/slice.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "reshard/cli/npy.h"
#include "tests/support/status_matchers.h"

namespace reshard::cli {
namespace {

std::vector<AxisSlice> Parse(std::string_view text, const Shape& shape) {
  Result<std::vector<AxisSlice>> slice = ParseSlice(text, shape);
  EXPECT_TRUE(slice.ok()) << text;
  return slice.ok() ? *slice : std::vector<AxisSlice>();
}

TEST(SliceTest, ReadsWhatNumPyReads) {
  const Shape shape = {10, 20};
  const AxisSlice rows = {0, 1, 10, false};
  const AxisSlice columns = {0, 1, 20, false};
  EXPECT_EQ(Parse("...", shape), (std::vector<AxisSlice>{rows, columns}));
  EXPECT_EQ(Parse("5", shape), (std::vector<AxisSlice>{{5, 1, 1, true}, columns}));
  EXPECT_EQ(Parse("-1,", shape), (std::vector<AxisSlice>{{9, 1, 1, true}, columns}));
  EXPECT_EQ(Parse("..., 3", shape), (std::vector<AxisSlice>{rows, {3, 1, 1, true}}));
  EXPECT_EQ(Parse("1, ..., 3", shape), (std::vector<AxisSlice>{{1, 1, 1, true}, {3, 1, 1, true}}));
  EXPECT_EQ(Parse("0:4, ::2", shape),
            (std::vector<AxisSlice>{{0, 1, 4, false}, {0, 2, 10, false}}));
  EXPECT_EQ(Parse("::-3, -5:", shape),
            (std::vector<AxisSlice>{{9, -3, 4, false}, {15, 1, 5, false}}));
  EXPECT_EQ(Parse("8:100, 7:3", shape),
            (std::vector<AxisSlice>{{8, 1, 2, false}, {0, 1, 0, false}}));
  EXPECT_EQ(Parse("::99999999999999999999", shape)[0], (AxisSlice{0, 1, 1, false}));
  EXPECT_EQ(Parse("...", {}), std::vector<AxisSlice>());
}

TEST(SliceTest, RefusesWhatNumPyRefuses) {
  const Shape shape = {10, 20};
  for (const char* text : {"", "10", "-11", "99999999999999999999", "1,2,3", "...,...", "a",
                           "1:2:3:4", "::0", "1.5", "--1", ",1", "None", ":-:", "1,,2"}) {
    const auto slice = ParseSlice(text, shape);
    ASSERT_FALSE(slice.ok()) << text;
    EXPECT_EQ(slice.error().reason, "BAD_SLICE") << text;
  }
}

/// Reassembles a slice from its parts and compares with picking it in one go.
void CheckParts(std::string_view text, const Shape& shape, std::uint64_t most_bytes) {
  std::vector<std::uint32_t> all(NumElements(shape));
  std::iota(all.begin(), all.end(), 0U);
  const std::vector<AxisSlice> slice = Parse(text, shape);
  const auto pick = [&](const std::vector<AxisSlice>& part) {
    const Box box = CoverOf(part);
    std::vector<std::uint32_t> cover;
    for (std::uint64_t i = 0; i < NumElements(box.extent); ++i) {
      const std::uint64_t row = box.offset[0] + i / box.extent[1];
      cover.push_back(all[row * shape[1] + box.offset[1] + i % box.extent[1]]);
    }
    std::vector<std::uint32_t> out(NumElements(ShapeOf(part)));
    PickFromCover(part, 4, reinterpret_cast<const std::byte*>(cover.data()),
                  reinterpret_cast<std::byte*>(out.data()));
    return out;
  };
  std::vector<std::uint32_t> joined;
  ASSERT_OK(ForEachPart(slice, 4, most_bytes, [&](const std::vector<AxisSlice>& part) {
    EXPECT_LE(NumElements(CoverOf(part).extent) * 4, std::max<std::uint64_t>(most_bytes, 4));
    const std::vector<std::uint32_t> own = pick(part);
    joined.insert(joined.end(), own.begin(), own.end());
    return OkStatus();
  }));
  const bool empty = NumElements(ShapeOf(slice)) == 0;
  EXPECT_EQ(joined, empty ? std::vector<std::uint32_t>() : pick(slice)) << text << most_bytes;
}

TEST(SliceTest, PartsFollowEachOtherWithinTheBound) {
  for (const char* text :
       {"...", "::-1, ::-1", "3", ":, 4", "::3, 1:15:4", "5:2, :", "2:9:2, ::-7"}) {
    for (const std::uint64_t most : {1, 4, 50, 80, 200, 100000}) {
      CheckParts(text, {10, 20}, most);
    }
  }
}

TEST(SliceTest, FarIndicesComeOneByOne) {
  std::uint64_t parts = 0;
  const auto slice = Parse("::1000", {3001, 1024});
  ASSERT_OK(ForEachPart(slice, 4, std::uint64_t{1} << 40, [&](const std::vector<AxisSlice>& part) {
    EXPECT_EQ(CoverOf(part).extent, (Shape{1, 1024}));
    EXPECT_EQ(CoverOf(part).offset[0], 1000 * parts++);
    return OkStatus();
  }));
  EXPECT_EQ(parts, 4U);
}

TEST(NpyTest, WritesTheDocumentedHeader) {
  const std::string header = NpyHeader("<f4", Shape{3, 4});
  EXPECT_EQ(header.size(), 128U);
  EXPECT_EQ(header.substr(0, 10), std::string("\x93NUMPY\x01\x00\x76\x00", 10));
  EXPECT_EQ(header.substr(10, 59), "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }");
  EXPECT_EQ(header.find_first_not_of(' ', 69), 127U);
  EXPECT_EQ(header.back(), '\n');
  EXPECT_NE(NpyHeader("<f4", Shape{}).find("'shape': (), }"), std::string::npos);
  EXPECT_NE(NpyHeader("<f4", Shape{3}).find("'shape': (3,), }"), std::string::npos);
}

TEST(NpyTest, ALongHeaderIsVersionTwo) {
  const std::string header = NpyHeader("<f4", Shape(40000, 1));
  EXPECT_EQ(header.substr(6, 2), std::string("\x02\x00", 2));
  EXPECT_EQ(header.size() % 64, 0U);
  std::uint32_t length = 0;
  std::memcpy(&length, header.data() + 8, 4);
  EXPECT_EQ(length, header.size() - 12);
}

TEST(NpyTest, HasEveryDTypeOfWholeBytes) {
  for (const DTypeInfo& info : AllDTypes()) {
    const Result<std::string> descr = NpyDescr(info.dtype);
    EXPECT_EQ(descr.ok(), info.bits % 8 == 0) << info.name;
    if (descr.ok()) {
      EXPECT_EQ(descr->substr(2), std::to_string(info.bits / 8)) << info.name;
    } else {
      EXPECT_EQ(descr.error().reason, "SUB_BYTE");
    }
  }
  EXPECT_EQ(NpyDescr(DType::kBfloat16).value(), "<V2");
  EXPECT_EQ(NpyDescr(DType::kFloat8E4m3fn).value(), "|V1");
  EXPECT_EQ(NpyView(DType::kFloat8E5m2), "view(ml_dtypes.float8_e5m2)");
  EXPECT_EQ(NpyView(DType::kFloat32), "");
}

}  // namespace
}  // namespace reshard::cli
