#pragma once

// Random access to the bytes of one input whose size is known: a file, or memory. Decoders of
// foreign formats read through it, so that they can pass over payloads without touching them.

#include <algorithm>
#include <cstdint>

#include "reshard/base/bytes.h"
#include "reshard/base/result.h"

namespace reshard {

/// Thread-safety: all methods from any thread.
class ByteSource {
 public:
  virtual ~ByteSource() = default;

  /// Bytes in it, fixed.
  virtual std::uint64_t size() const = 0;

  /// Fills `out` from `offset`. Errors: kIo READ; kCorruption FILE_TRUNCATED when the source ends
  /// before.
  virtual Status ReadAt(std::uint64_t offset, MutableByteSpan out) = 0;
};

/// Bytes in memory, which must outlive it.
class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(ByteSpan bytes) : bytes_(bytes) {}

  std::uint64_t size() const override { return bytes_.size(); }

  Status ReadAt(std::uint64_t offset, MutableByteSpan out) override {
    if (offset > bytes_.size() || out.size() > bytes_.size() - offset) {
      return MakeError(ErrorCode::kCorruption, "FILE_TRUNCATED", "the bytes end early");
    }
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
    return OkStatus();
  }

 private:
  ByteSpan bytes_;
};

}  // namespace reshard
