#include "reshard/storage/staging_buffer.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "tests/support/status_matchers.h"

namespace reshard::testing {
namespace {

TEST(StagingBufferTest, IsAlignedZeroedAndMovable) {
  ASSERT_OK_AND_ASSIGN(StagingBuffer buffer, StagingBuffer::Allocate(3 << 20));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % (2 << 20), 0u);
  EXPECT_EQ(buffer.span().size(), 3u << 20);
  EXPECT_EQ(buffer.span().back(), std::byte{0});
  const StagingBuffer moved = std::move(buffer);
  EXPECT_EQ(moved.size(), 3u << 20);
}

TEST(StagingBufferTest, EmptyAndImpossibleSizes) {
  ASSERT_OK_AND_ASSIGN(StagingBuffer empty, StagingBuffer::Allocate(0));
  EXPECT_EQ(empty.size(), 0u);
  EXPECT_THAT(StagingBuffer::Allocate(SIZE_MAX - 1), FailsWith("NO_MEMORY"));
  EXPECT_THAT(StagingBuffer::Allocate(SIZE_MAX / 2), FailsWith("NO_MEMORY"));
}

}  // namespace
}  // namespace reshard::testing
