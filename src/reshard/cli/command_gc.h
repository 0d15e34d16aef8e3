#pragma once

#include <memory>

#include "reshard/cli/command.h"

namespace reshard::cli {

/// `reshard gc`.
std::unique_ptr<Command> NewGcCommand();

}  // namespace reshard::cli
