#pragma once

// What the program answers to the shell: the one table from error codes to exit statuses.

#include "reshard/base/error.h"

namespace reshard::cli {

/// The exit status.
enum class ExitCode : int {
  kYes = 0,     ///< Done, or the answer is yes.
  kNo = 1,      ///< The answer is no: damaged, differs, none found.
  kFailed = 2,  ///< Could not find out, failed, or used wrongly.
};

/// The status of a command that ended with an error of this code. Whoever named a directory that is
/// not there used the command wrongly: OpenCheckpoint turns that into kInvalidArgument.
constexpr ExitCode ExitCodeOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kCorruption:
    case ErrorCode::kNotFound:
      return ExitCode::kNo;
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kAlreadyExists:
    case ErrorCode::kIo:
    case ErrorCode::kUnavailable:
    case ErrorCode::kUnsupported:
    case ErrorCode::kCancelled:
    case ErrorCode::kPeerFailed:
    case ErrorCode::kIndeterminate:
    case ErrorCode::kInternal:
      break;
  }
  return ExitCode::kFailed;
}

}  // namespace reshard::cli
