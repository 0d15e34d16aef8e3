#include <gtest/gtest.h>

#include "reshard/engine/load.h"
#include "reshard/engine/save.h"
#include "reshard/storage/memory_storage.h"
#include "tests/support/ranks.h"
#include "tests/support/status_matchers.h"

namespace reshard::testing {
namespace {

TEST(SaveLoadTest, ObjectsComeBackUnderTheirPaths) {
  const std::unique_ptr<Storage> storage = NewMemoryStorage();
  const std::unique_ptr<ProcessGroup> group = SingleProcessGroup();
  StateDict state;
  state["step"] = 5;
  state["lr"] = 0.25;
  state["name"] = "adam";
  state["empty"] = Value::Map();
  state["groups"][MapKey(std::int64_t{0})] = Value::List{1, Value(), true};
  ASSERT_OK(Save(state, *storage, *group));
  StateDict target;
  target["step"] = 1;
  target["lr"] = 0.0;
  target["name"] = "";
  target["empty"] = Value::Map();
  target["groups"][MapKey(std::int64_t{0})] = Value::List();
  ASSERT_OK(Load(target, *storage, *group));
  EXPECT_EQ(target, state);
}

}  // namespace
}  // namespace reshard::testing
