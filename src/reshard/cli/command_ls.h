#pragma once

#include <memory>

#include "reshard/cli/command.h"

namespace reshard::cli {

/// `reshard ls`.
std::unique_ptr<Command> NewLsCommand();

}  // namespace reshard::cli
