#include "reshard/storage/memory_storage.h"

#include "tests/storage/conformance.h"
#include "tests/support/status_matchers.h"

namespace reshard::testing {
namespace {

StorageFixture MakeMemory() { return {nullptr, NewMemoryStorage()}; }

INSTANTIATE_TEST_SUITE_P(Memory, StorageConformanceTest, ::testing::Values(&MakeMemory));

TEST(MemoryStorageTest, TwoStoresDiffer) {
  const auto a = NewMemoryStorage("node0");
  const auto b = NewMemoryStorage("node1");
  EXPECT_EQ(a->description(), "node0");
  EXPECT_NE(a->Identity(), b->Identity());
}

}  // namespace
}  // namespace reshard::testing
