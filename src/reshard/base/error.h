#pragma once

// The one error type of the library. Errors are values: they cross threads and ranks, and the
// signature of a function says that it can fail. docs/errors.md lists every code and reason.
//
// Thread-safety: plain values.

#include <cstdint>
#include <string>
#include <string_view>

namespace reshard {

/// What kind of failure it is; callers branch on this. Numbers travel between ranks and are never
/// reused.
enum class ErrorCode : std::uint8_t {
  kInvalidArgument = 1,  ///< The caller's input is wrong; retrying cannot help.
  kNotFound = 2,         ///< A checkpoint, file or tensor that was asked for is not there.
  kAlreadyExists = 3,    ///< The id is committed already, or another writer won.
  kCorruption = 4,       ///< Stored bytes are not what was written.
  kIo = 5,               ///< The operating system or the store failed; see retryable.
  kUnavailable = 6,      ///< A resource is busy or not reachable for now.
  kUnsupported = 7,      ///< Valid input that this version cannot handle.
  kCancelled = 8,        ///< The caller stopped the operation.
  kPeerFailed = 9,       ///< Another rank died, stopped or left.
  kIndeterminate = 10,   ///< A commit may or may not be durable; read the directory to find out.
  kInternal = 11,        ///< A bug of this library.
};

/// Returns the code's name as written in documents, for example "corruption".
std::string_view ErrorCodeName(ErrorCode code);

/// One failure: what kind, a stable reason for programs, a sentence for people.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string reason;   ///< Stable upper-case word such as "DUPLICATE_NAME"; see docs/errors.md.
  std::string message;  ///< Names file, tensor, byte range, rank; expected and actual; what to do.
  bool retryable = false;  ///< The same call may succeed later.
  bool data_loss = false;  ///< Stored bytes are gone or wrong.

  /// "corruption [BLOCK_CHECKSUM]: message".
  std::string ToString() const;

  /// Returns the same error with "context: " before its message. Layers add their noun once.
  Error WithContext(std::string_view context) const;
};

}  // namespace reshard
