#include "reshard/cli/interrupt.h"

#include <csignal>

namespace reshard::cli {
namespace {

// Signal handlers have no other way.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
volatile std::sig_atomic_t interrupted = 0;

void Note(int /*signal*/) { interrupted = 1; }

}  // namespace

InterruptGuard::InterruptGuard() {
  interrupted = 0;
  struct sigaction action = {};
  action.sa_handler = Note;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

InterruptGuard::~InterruptGuard() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

Status InterruptGuard::Check() {
  if (interrupted != 0) {
    return MakeError(ErrorCode::kCancelled, "INTERRUPTED",
                     "interrupted\nnothing was left behind; run it again");
  }
  return OkStatus();
}

}  // namespace reshard::cli
