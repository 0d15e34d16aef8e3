#include <csignal>

#include "reshard/cli/console.h"
#include "reshard/cli/program.h"

int main(int argc, char** argv) {
  // `reshard ls ... | head` ends quietly, also where the parent ignores the signal.
  std::signal(SIGPIPE, SIG_DFL);
  reshard::cli::Console console;
  return static_cast<int>(reshard::cli::RunProgram(argc, argv, console));
}
