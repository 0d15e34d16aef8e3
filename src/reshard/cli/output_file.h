#pragma once

// A file that a command makes: there in full, or not at all.

#include <cstdint>
#include <string>
#include <string_view>

#include "reshard/base/bytes.h"
#include "reshard/base/result.h"

namespace reshard::cli {

/// A file under a temporary name in its folder until Commit. Destroying it before removes it.
/// Devices and pipes are written in place. Not thread-safe.
class OutputFile {
 public:
  /// `replace`: a regular file of that name is replaced. Errors: kAlreadyExists OUTPUT_EXISTS; kIo
  /// CREATE.
  static Result<OutputFile> Create(const std::string& path, bool replace);

  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) = delete;
  ~OutputFile();

  /// Appends. Errors: kIo NO_SPACE, WRITE.
  Status Write(ByteSpan bytes);

  /// Makes the file durable and gives it its name. Errors: kAlreadyExists OUTPUT_EXISTS (made by
  /// another program meanwhile); kIo SYNC, PUBLISH.
  Status Commit();

 private:
  OutputFile(std::string path, std::string temporary, int descriptor, bool replace);

  std::string path_;
  std::string temporary_;  // empty: written in place
  int descriptor_ = -1;
  bool replace_ = false;
};

/// A file name made of any text: other characters than letters, digits, '.', '_' and '-' become
/// '_', and so does a leading '.' or '-'; at most 200 bytes.
std::string SafeFileName(std::string_view text);

}  // namespace reshard::cli
