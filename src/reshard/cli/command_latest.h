#pragma once

#include <memory>

#include "reshard/cli/command.h"

namespace reshard::cli {

/// `reshard latest`.
std::unique_ptr<Command> NewLatestCommand();

}  // namespace reshard::cli
