#pragma once

#include <memory>

#include "reshard/cli/command.h"

namespace reshard::cli {

/// `reshard export`.
std::unique_ptr<Command> NewExportCommand();

}  // namespace reshard::cli
