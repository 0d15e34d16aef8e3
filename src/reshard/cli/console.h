#pragma once

// Where a command prints: results on stdout, messages on stderr.

#include <cstddef>
#include <string_view>

#include "reshard/base/error.h"
#include "reshard/base/result.h"

namespace reshard::cli {

/// The standard streams of the process. Not thread-safe.
class Console {
 public:
  /// Looks at what the streams are.
  Console();

  /// Whether the command was asked for --json: then a failure is printed as JSON too.
  void set_json(bool json) { json_ = json; }

  /// Writes to stdout.
  void Out(std::string_view text);

  /// Writes "reshard: TEXT" and a line end to stderr.
  void Message(std::string_view text);

  /// Says what went wrong and, in the last line, what to do: the last line of the error's message
  /// when it has several, otherwise advice by its code. With --json, {"error":...} also goes to
  /// stdout, unless the results went there already.
  void Failure(const Error& error);

  /// Columns of the terminal that stdout is, 0 when it is none.
  std::size_t out_columns() const { return out_columns_; }

  /// Whether stderr is a terminal, for progress bars.
  bool err_is_terminal() const { return err_is_terminal_; }

  /// Flushes stdout. Errors: kIo STDOUT (a full disk, a closed descriptor).
  Status Finish();

 private:
  std::size_t out_columns_ = 0;
  bool err_is_terminal_ = false;
  bool json_ = false;
  bool printed_ = false;
  bool failed_ = false;
};

/// What to do about an error that does not say so itself.
std::string_view Advice(const Error& error);

}  // namespace reshard::cli
