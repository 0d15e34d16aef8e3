#pragma once

#include <memory>

#include "reshard/cli/command.h"

namespace reshard::cli {

/// `reshard diff`.
std::unique_ptr<Command> NewDiffCommand();

}  // namespace reshard::cli
