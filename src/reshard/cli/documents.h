#pragma once

// Help, man pages and shell completion, made from the commands' texts and option tables.

#include <memory>
#include <string>
#include <vector>

#include "reshard/cli/command.h"

namespace reshard::cli {

/// A command together with the parser that its options were added to.
struct BoundCommand {
  std::unique_ptr<Command> command;
  std::unique_ptr<CLI::App> app;
};

using CommandTable = std::vector<BoundCommand>;

/// `reshard help`.
std::string ProgramHelp(const CommandTable& commands);

/// `reshard COMMAND --help`.
std::string CommandHelp(const BoundCommand& bound);

/// "N": how the value of an option is called, without what CLI11 adds about its checks.
std::string ValueName(const CLI::Option& option);

/// "usage: reshard ls [OPTIONS] PATH [PATTERN...]".
std::string UsageLine(const BoundCommand& command);

/// reshard.1, in roff (man macros).
std::string ProgramManPage(const CommandTable& commands);

/// reshard-COMMAND.1.
std::string CommandManPage(const BoundCommand& bound);

/// A script for bash.
std::string BashCompletion(const CommandTable& commands);

}  // namespace reshard::cli
