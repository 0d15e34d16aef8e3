#pragma once

#include <memory>

#include "reshard/cli/command.h"

namespace reshard::cli {

/// `reshard info`.
std::unique_ptr<Command> NewInfoCommand();

}  // namespace reshard::cli
