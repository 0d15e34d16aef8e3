#include "reshard/base/check.h"

#include <fmt/format.h>

#include <cstdlib>

namespace reshard {

void CheckFailed(std::string_view file, int line, std::string_view condition) {
  fmt::print(stderr, "reshard: internal check failed at {}:{}: {}\n", file, line, condition);
  std::abort();
}

}  // namespace reshard
