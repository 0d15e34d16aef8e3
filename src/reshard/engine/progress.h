#pragma once

// How a long operation tells its caller how far it is.

#include <cstdint>
#include <functional>

#include "reshard/base/result.h"

namespace reshard {

/// How far this rank is.
struct Progress {
  std::uint64_t bytes_done = 0;
  std::uint64_t bytes_total = 0;
};

/// Called now and then, from one thread at a time but not always the same one. An error (or an
/// exception) cancels the operation on all ranks.
using ProgressCallback = std::function<Status(const Progress&)>;

}  // namespace reshard
