#include "reshard/cli/console.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "reshard/cli/json.h"
#include "reshard/cli/text.h"

namespace reshard::cli {

Console::Console() : err_is_terminal_(::isatty(STDERR_FILENO) == 1) {
  struct winsize size = {};
  if (::isatty(STDOUT_FILENO) == 1) {
    out_columns_ =
        ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
  }
}

void Console::Out(std::string_view text) {
  printed_ = true;
  failed_ = std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || failed_;
}

void Console::Message(std::string_view text) {
  std::fflush(stdout);
  const std::string line = fmt::format("reshard: {}\n", text);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void Console::Failure(const Error& error) {
  if (json_ && !printed_) {
    Out(Line({{"error", ToJson(error)}}));
  }
  const std::string_view text = error.message;
  const std::size_t cut = text.rfind('\n');
  Message("error: " + Printable(text.substr(0, cut)));
  Message(cut == std::string_view::npos ? std::string(Advice(error))
                                        : Printable(text.substr(cut + 1)));
}

Status Console::Finish() {
  errno = 0;
  failed_ = std::fflush(stdout) != 0 || failed_;
  if (failed_) {
    return MakeError(ErrorCode::kIo, "STDOUT",
                     fmt::format("cannot write the results to stdout: {}\nsend them to a file on a "
                                 "disk with free space",
                                 errno == 0 ? "write failed" : ::strerrordesc_np(errno)));
  }
  return OkStatus();
}

std::string_view Advice(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
      return "see `reshard help` for what is accepted";
    case ErrorCode::kNotFound:
      return "`reshard latest DIR` finds the newest complete checkpoint in DIR or below";
    case ErrorCode::kCorruption:
      return "`reshard verify` lists every fault; load an older snapshot or restore from a copy";
    case ErrorCode::kIo:
      return error.retryable ? "try again in a moment"
                             : "mend the cause, check the permissions, and run it again";
    case ErrorCode::kUnavailable:
      return "try again when other jobs have ended, or with fewer --threads";
    case ErrorCode::kUnsupported:
      return "see whether a newer version of reshard can";
    case ErrorCode::kAlreadyExists:
    case ErrorCode::kCancelled:
    case ErrorCode::kPeerFailed:
    case ErrorCode::kIndeterminate:
      return "run it again";
    case ErrorCode::kInternal:
      break;
  }
  return "this is a bug of reshard: please report it with the command that you ran";
}

}  // namespace reshard::cli
