#pragma once

#include <memory>

#include "reshard/cli/command.h"

namespace reshard::cli {

/// `reshard verify`.
std::unique_ptr<Command> NewVerifyCommand();

}  // namespace reshard::cli
