#include "reshard/cli/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "reshard/cli/documents.h"
#include "reshard/cli/text.h"

namespace reshard::cli {
namespace {

using Arguments = std::vector<std::string>;

tl::unexpected<Error> UsageError(std::string what, std::string_view what_to_do) {
  return MakeError(ErrorCode::kInvalidArgument, "USAGE",
                   fmt::format("{}\n{}", std::move(what), what_to_do));
}

CommandTable BindCommands() {
  CommandTable table;
  for (std::unique_ptr<Command>& command : AllCommands()) {
    auto app = std::make_unique<CLI::App>(command->text().summary);
    app->set_help_flag("-h,--help", "Show this help");
    command->AddOptions(*app);
    table.push_back({std::move(command), std::move(app)});
  }
  return table;
}

BoundCommand* Find(CommandTable& table, std::string_view name) {
  for (BoundCommand& bound : table) {
    if (bound.command->text().name == name) {
      return &bound;
    }
  }
  return nullptr;
}

tl::unexpected<Error> UnknownCommand(const CommandTable& table, const std::string& name) {
  std::vector<std::string> names = {"help"};
  for (const BoundCommand& bound : table) {
    names.push_back(bound.command->text().name);
  }
  std::error_code error;
  const std::optional<std::string> near = Nearest(name, names);
  return UsageError(fmt::format("'{}' is no command of reshard", Printable(name)),
                    near ? fmt::format("did you mean `reshard {}`?", *near)
                    : std::filesystem::exists(name, error)
                        ? fmt::format("did you mean `reshard info {}`?", Printable(name))
                        : "`reshard help` lists the commands");
}

/// What CLI11 says, with the option that was meant.
tl::unexpected<Error> BadOptions(const BoundCommand& bound, const Arguments& arguments,
                                 const std::string& what) {
  std::vector<std::string> known;
  for (const CLI::Option* option : bound.app->get_options()) {
    for (const std::string& name : option->get_lnames()) {
      known.push_back("--" + name);
    }
  }
  for (const std::string& argument : arguments) {
    const std::string name = argument.substr(0, argument.find('='));
    const bool unknown = name.starts_with("--") && name.size() > 2 &&
                         bound.app->get_option_no_throw(name) == nullptr;
    if (const auto near = Nearest(name, known); unknown && near) {
      return UsageError(
          fmt::format("reshard {} has no option {}", bound.command->text().name, Printable(name)),
          fmt::format("did you mean {}?", *near));
    }
  }
  std::string line = Printable(what);
  for (const CLI::Option* option : bound.app->get_options()) {
    const std::string type = option->get_type_name();
    const std::size_t at =
        type.find(':') == std::string::npos ? std::string::npos : line.find(type);
    if (at != std::string::npos) {
      line.replace(at, type.size(), ValueName(*option));
    }
  }
  return UsageError(
      fmt::format("{}: {}", bound.command->text().name, line),
      fmt::format("{}; see `reshard {} --help`", UsageLine(bound), bound.command->text().name));
}

Result<ExitCode> RunCommand(BoundCommand& bound, const Arguments& arguments, Console& console) {
  try {
    bound.app->parse(Arguments(arguments.rbegin(), arguments.rend()));  // CLI11 takes them reversed
  } catch (const CLI::CallForHelp&) {
    console.Out(CommandHelp(bound));
    return ExitCode::kYes;
  } catch (const CLI::ParseError& error) {
    return BadOptions(bound, arguments, error.what());
  }
  return bound.command->Run(console);
}

Status WriteText(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) {
    return MakeError(ErrorCode::kIo, "WRITE", fmt::format("{}: cannot write it", path.string()));
  }
  return OkStatus();
}

/// Hidden, for the build: man pages into a directory.
Status GenerateMan(const CommandTable& table, const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  RESHARD_TRY(WriteText(directory / "reshard.1", ProgramManPage(table)));
  for (const BoundCommand& bound : table) {
    RESHARD_TRY(WriteText(directory / fmt::format("reshard-{}.1", bound.command->text().name),
                          CommandManPage(bound)));
  }
  return OkStatus();
}

Status GenerateCompletion(const CommandTable& table, const std::filesystem::path& file) {
  std::error_code error;
  std::filesystem::create_directories(file.parent_path(), error);
  return WriteText(file, BashCompletion(table));
}

/// What is no command: --version, and what the build calls. Nothing when it is another word.
Result<std::optional<ExitCode>> RunWithoutCommand(const CommandTable& table,
                                                  const std::string& first,
                                                  const Arguments& arguments, Console& console) {
  if (first == "--version") {
    console.Out(fmt::format("reshard {}\n", RESHARD_VERSION));
    return std::optional(ExitCode::kYes);
  }
  if (first == "--generate-man" && arguments.size() == 1) {
    RESHARD_TRY(GenerateMan(table, arguments[0]));
    return std::optional(ExitCode::kYes);
  }
  if (first == "--generate-completion" && arguments.size() == 1) {
    RESHARD_TRY(GenerateCompletion(table, arguments[0]));
    return std::optional(ExitCode::kYes);
  }
  return std::optional<ExitCode>();
}

Result<ExitCode> Dispatch(Arguments arguments, Console& console) {
  CommandTable table = BindCommands();
  if (arguments.empty()) {
    return UsageError("no command was given", "`reshard help` lists the commands");
  }
  const std::string first = arguments.front();
  arguments.erase(arguments.begin());
  RESHARD_TRY_ASSIGN(const std::optional<ExitCode> done,
                     RunWithoutCommand(table, first, arguments, console));
  if (done) {
    return *done;
  }
  const bool help = first == "help" || first == "--help" || first == "-h";
  if (help && arguments.empty()) {
    console.Out(ProgramHelp(table));
    return ExitCode::kYes;
  }
  const std::string name = help ? arguments.front() : first;
  BoundCommand* bound = Find(table, name);
  if (bound == nullptr) {
    return UnknownCommand(table, name);
  }
  return RunCommand(*bound, help ? Arguments{"--help"} : arguments, console);
}

}  // namespace

ExitCode RunProgram(int argc, const char* const* argv, Console& console) {
  Arguments arguments(argv + std::min(argc, 1), argv + argc);
  console.set_json(std::find(arguments.begin(), arguments.end(), "--json") != arguments.end());
  Result<ExitCode> code = Dispatch(std::move(arguments), console);
  if (!code.ok()) {
    console.Failure(code.error());
    code = ExitCodeOf(code.error().code);
  }
  if (const Status status = console.Finish(); !status.ok()) {
    console.Failure(status.error());
    return ExitCode::kFailed;
  }
  return *code;
}

}  // namespace reshard::cli
