#pragma once

// What a command is: its texts, its options, and its work. Help, man pages and completion are made
// from these alone, so they cannot say anything else.

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/cli/console.h"
#include "reshard/cli/exit_code.h"

namespace reshard::cli {

/// A line to type, and what it does.
struct Example {
  std::string line;
  std::string what;
};

/// The texts of a command.
struct CommandText {
  std::string name;
  std::string summary;                  ///< Half a line, no full stop.
  std::vector<std::string> paragraphs;  ///< What it does.
  std::vector<Example> examples;
  std::string exit_0;  ///< When it exits with 0, 1, 2.
  std::string exit_1;
  std::string exit_2;
};

/// One command. The options that AddOptions binds live in the object.
class Command {
 public:
  virtual ~Command() = default;

  virtual const CommandText& text() const = 0;

  /// Declares options and positional arguments.
  virtual void AddOptions(CLI::App& app) = 0;

  /// Does the work with the parsed options. An error is printed by the caller, who exits with the
  /// status of its code.
  virtual Result<ExitCode> Run(Console& console) = 0;
};

/// All commands, in the order of the help.
std::vector<std::unique_ptr<Command>> AllCommands();

}  // namespace reshard::cli
