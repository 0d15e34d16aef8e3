#pragma once

#include <memory>

#include "reshard/cli/command.h"

namespace reshard::cli {

/// `reshard convert`.
std::unique_ptr<Command> NewConvertCommand();

}  // namespace reshard::cli
