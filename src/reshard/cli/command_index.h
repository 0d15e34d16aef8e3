#pragma once

#include <memory>

#include "reshard/cli/command.h"

namespace reshard::cli {

/// `reshard index`.
std::unique_ptr<Command> NewIndexCommand();

}  // namespace reshard::cli
