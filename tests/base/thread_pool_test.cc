#include "reshard/base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>

namespace reshard {
namespace {

TEST(ThreadPoolTest, RunsEveryTaskOfAGroup) {
  ThreadPool pool(3);
  TaskGroup group(pool);
  std::atomic<int> sum = 0;
  for (int i = 1; i <= 100; ++i) {
    group.Submit([&sum, i] {
      sum += i;
      return OkStatus();
    });
  }
  EXPECT_TRUE(group.Wait().ok());
  EXPECT_EQ(sum, 5050);
}

TEST(ThreadPoolTest, GroupReturnsTheErrorOfTheEarliestTaskAndSkipsTheRest) {
  ThreadPool pool(1);
  TaskGroup group(pool);
  std::atomic<int> ran = 0;
  for (int i = 0; i < 10; ++i) {
    group.Submit([&ran, i]() -> Status {
      ++ran;
      if (i == 3) {
        return MakeError(ErrorCode::kIo, "WRITE", "disk");
      }
      return OkStatus();
    });
  }
  EXPECT_EQ(group.Wait().error().reason, "WRITE");
  EXPECT_EQ(ran, 4);
}

}  // namespace
}  // namespace reshard
