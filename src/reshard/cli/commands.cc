#include "reshard/cli/command.h"
#include "reshard/cli/command_convert.h"
#include "reshard/cli/command_diff.h"
#include "reshard/cli/command_export.h"
#include "reshard/cli/command_gc.h"
#include "reshard/cli/command_index.h"
#include "reshard/cli/command_info.h"
#include "reshard/cli/command_latest.h"
#include "reshard/cli/command_ls.h"
#include "reshard/cli/command_verify.h"

namespace reshard::cli {

std::vector<std::unique_ptr<Command>> AllCommands() {
  std::vector<std::unique_ptr<Command>> commands;
  commands.push_back(NewInfoCommand());
  commands.push_back(NewLsCommand());
  commands.push_back(NewVerifyCommand());
  commands.push_back(NewDiffCommand());
  commands.push_back(NewExportCommand());
  commands.push_back(NewConvertCommand());
  commands.push_back(NewLatestCommand());
  commands.push_back(NewIndexCommand());
  commands.push_back(NewGcCommand());
  return commands;
}

}  // namespace reshard::cli
