#pragma once

// The program: which command, its options, its exit status.

#include "reshard/cli/console.h"
#include "reshard/cli/exit_code.h"

namespace reshard::cli {

/// Runs the command line `argv[1..argc)`.
ExitCode RunProgram(int argc, const char* const* argv, Console& console);

}  // namespace reshard::cli
