#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "crc64_reference.h"
#include "reshard/codec/crc64.h"

namespace reshard {
namespace {

constexpr std::byte kGuard{0xee};
constexpr std::size_t kMargin = 64;

class Crc64CopyTest : public ::testing::Test {
 protected:
  // Copies with every kernel and checks sum, copied bytes and the bytes around them.
  void Check(std::size_t dst_offset, std::size_t src_offset, std::size_t size) {
    const std::byte* src = source_.data() + src_offset;
    const std::uint64_t expected = Crc64Linear({src, size}, 99);
    for (const Crc64Kernel& kernel : Crc64Kernels()) {
      const std::size_t used = dst_offset + size + kMargin;
      std::fill_n(target_.begin(), used, kGuard);
      std::byte* dst = target_.data() + dst_offset;
      ASSERT_EQ(kernel.linear_copy(dst, src, size, 99), expected)
          << kernel.name << " dst " << dst_offset << " src " << src_offset << " size " << size;
      const auto is_guard = [](std::byte b) { return b == kGuard; };
      ASSERT_TRUE(std::equal(src, src + size, dst)) << kernel.name << " size " << size;
      ASSERT_TRUE(std::all_of(target_.data(), dst, is_guard)) << kernel.name << " size " << size;
      ASSERT_TRUE(std::all_of(dst + size, target_.data() + used, is_guard))
          << kernel.name << " dst " << dst_offset << " size " << size;
    }
  }

  static constexpr std::size_t kLargest = 200000;
  Bytes source_ = RandomBytes(kLargest + 64, 11);
  Bytes target_ = Bytes(kLargest + 64 + kMargin + 64);
};

TEST_F(Crc64CopyTest, CopiesAllShortLengthsAtMixedOffsets) {
  for (std::size_t size = 0; size <= 600; ++size) {
    for (std::size_t i = 0; i < 8; ++i) {
      ASSERT_NO_FATAL_FAILURE(Check((size + 9 * i) % 64, (3 * size + 21 * i) % 64, size));
    }
  }
}

TEST_F(Crc64CopyTest, CopiesAtEveryPairOfMisalignments) {
  for (std::size_t dst_offset = 0; dst_offset < 32; ++dst_offset) {
    for (std::size_t src_offset = 0; src_offset < 32; ++src_offset) {
      ASSERT_NO_FATAL_FAILURE(Check(dst_offset, src_offset, 333));
    }
  }
}

TEST_F(Crc64CopyTest, StreamsAtEveryMisalignment) {
  for (std::size_t offset = 0; offset < 64; ++offset) {
    ASSERT_NO_FATAL_FAILURE(Check(offset, 0, 65536 + offset % 7));
    ASSERT_NO_FATAL_FAILURE(Check(offset, (offset * 5 + 1) % 64, 65536 + 37 * offset));
  }
}

TEST_F(Crc64CopyTest, CopiesOnBothSidesOfTheStreamingThreshold) {
  for (std::size_t size : {65535, 65536, 65537, 65536 + 31, 65536 + 255, 131072, 200000}) {
    ASSERT_NO_FATAL_FAILURE(Check(0, 0, size));
    ASSERT_NO_FATAL_FAILURE(Check(1, 2, size));
    ASSERT_NO_FATAL_FAILURE(Check(63, 31, size));
  }
}

TEST_F(Crc64CopyTest, PublicFunctionContinuesAState) {
  Bytes out(1000);
  const std::uint64_t first = Crc64LinearCopy(out.data(), source_.data(), 400, ~0ULL);
  const std::uint64_t all = Crc64LinearCopy(out.data() + 400, source_.data() + 400, 600, first);
  EXPECT_EQ(~all, ReferenceCrc({source_.data(), 1000}));
  EXPECT_TRUE(std::equal(out.begin(), out.end(), source_.begin()));
}

}  // namespace
}  // namespace reshard
