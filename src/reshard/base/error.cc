#include "reshard/base/error.h"

#include <fmt/format.h>

namespace reshard {

std::string_view ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kNotFound:
      return "not found";
    case ErrorCode::kAlreadyExists:
      return "already exists";
    case ErrorCode::kCorruption:
      return "corruption";
    case ErrorCode::kIo:
      return "i/o error";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kPeerFailed:
      return "peer failed";
    case ErrorCode::kIndeterminate:
      return "indeterminate";
    case ErrorCode::kInternal:
      return "internal error";
  }
  return "unknown error";
}

std::string Error::ToString() const {
  return fmt::format("{} [{}]: {}", ErrorCodeName(code), reason, message);
}

Error Error::WithContext(std::string_view context) const {
  Error out = *this;
  out.message = fmt::format("{}: {}", context, message);
  return out;
}

}  // namespace reshard
