#include "reshard/engine/chunk_digest.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/support/random_boxes.h"

namespace reshard {
namespace {

using ::reshard::testing::ForEachElement;
using ::reshard::testing::RandomTiling;

Bytes RandomBytes(std::uint64_t size, std::mt19937_64& random) {
  Bytes out(size);
  std::generate(out.begin(), out.end(), [&] { return static_cast<std::byte>(random()); });
  return out;
}

/// The bytes of a box, dense and row-major, taken from those of its tensor.
Bytes Cut(const Bytes& tensor, BoxView box, const Shape& shape, DType dtype) {
  const std::uint64_t unit = Info(dtype).unit_bytes;
  Bytes out;
  ForEachElement(ToUnits(box, dtype), ToUnits(shape, dtype), [&](std::uint64_t e) {
    const auto at = tensor.begin() + static_cast<std::ptrdiff_t>(e * unit);
    out.insert(out.end(), at, at + static_cast<std::ptrdiff_t>(unit));
  });
  return out;
}

/// The part of a whole box, put together from windows of random sizes.
std::uint64_t PartByWindows(const ChunkDigest& digest, const Bytes& box, std::mt19937_64& random) {
  std::uint64_t part = 0;
  for (std::uint64_t at = 0; at < box.size();) {
    const std::uint64_t size = std::min<std::uint64_t>(random() % 40, box.size() - at);
    const std::uint64_t window = digest.Part({at, size}, box.data() + at);
    if (digest.contiguous()) {
      EXPECT_EQ(digest.PartFromLinear({at, size}, Crc64Linear({box.data() + at, size})), window);
    }
    part ^= window;
    at += size;
  }
  return part;
}

TEST(ChunkDigestTest, PartsOfAnyCutAndWindowsMakeTheTensorsDigest) {
  for (std::uint64_t seed = 1; seed <= 1500; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    const DType dtype = AllDTypes()[random() % AllDTypes().size()].dtype;
    const std::uint64_t unit = Info(dtype).unit_elements;
    Shape shape(unit > 1 ? 1 + random() % 4 : random() % 5);
    std::generate(shape.begin(), shape.end(), [&] { return 1 + random() % 6; });
    if (!shape.empty()) {
      shape.back() *= unit;
    }
    const Bytes tensor = RandomBytes(NumBytes(shape, dtype), random);
    std::uint64_t linear = 0;
    for (const Box& box : RandomTiling(WholeBox(shape), 4, unit, random)) {
      const ChunkDigest digest(box, shape, dtype);
      const Bytes bytes = Cut(tensor, box, shape, dtype);
      const std::uint64_t whole = digest.Part({0, bytes.size()}, bytes.data());
      ASSERT_EQ(PartByWindows(digest, bytes, random), whole) << ToString(box);
      linear ^= whole;
    }
    ASSERT_EQ(linear ^ Crc64Constant(tensor.size()), Crc64(tensor)) << ToString(shape);
  }
}

TEST(ChunkDigestTest, KnowsContiguousBoxes) {
  const Shape shape = {4, 3, 5};
  const auto contiguous = [&](Box box) {
    return ChunkDigest(box, shape, DType::kFloat32).contiguous();
  };
  EXPECT_TRUE(contiguous(WholeBox(shape)));
  EXPECT_TRUE(contiguous({{1, 0, 0}, {2, 3, 5}}));
  EXPECT_TRUE(contiguous({{2, 1, 0}, {1, 2, 5}}));
  EXPECT_TRUE(contiguous({{2, 1, 3}, {1, 1, 2}}));
  EXPECT_FALSE(contiguous({{0, 1, 0}, {2, 2, 5}}));
  EXPECT_FALSE(contiguous({{0, 0, 0}, {4, 3, 4}}));
  EXPECT_FALSE(contiguous({{0, 1, 2}, {2, 1, 1}}));
  EXPECT_TRUE(ChunkDigest(Box{}, Shape{}, DType::kInt8).contiguous());
}

TEST(ChunkDigestTest, EmptyBoxesAndWindowsContributeNothing) {
  const ChunkDigest empty(Box{{1, 2}, {0, 3}}, Shape{4, 5}, DType::kInt16);
  EXPECT_EQ(empty.Part({0, 0}, nullptr), 0U);
  const ChunkDigest some(Box{{1, 2}, {2, 3}}, Shape{4, 5}, DType::kInt16);
  EXPECT_EQ(some.Part({4, 0}, nullptr), 0U);
}

TEST(ChunkDigestTest, FollowsTheWorkedExampleOfTheDocument) {
  // docs/format/checksums.md: uint16 (2, 3), elements 1 to 6, cut between columns 1 and 2.
  const Shape shape = {2, 3};
  const std::uint16_t left[] = {1, 2, 4, 5};
  const std::uint16_t right[] = {3, 6};
  const auto bytes = [](const auto& v) { return reinterpret_cast<const std::byte*>(&v[0]); };
  const ChunkDigest a(Box{{0, 0}, {2, 2}}, shape, DType::kUint16);
  const ChunkDigest b(Box{{0, 2}, {2, 1}}, shape, DType::kUint16);
  EXPECT_EQ(a.Part({0, 8}, bytes(left)), 0x3562943b9f328220U);
  EXPECT_EQ(b.Part({0, 4}, bytes(right)), 0x95b4ab9d826bc7eeU);
}

}  // namespace
}  // namespace reshard
