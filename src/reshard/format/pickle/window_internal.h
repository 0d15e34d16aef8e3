#pragma once

// A cursor that reads a ByteSource forwards through a small buffer. The buffer grows while reading
// goes on without gaps and shrinks after a jump, so that structure is read in large pieces and
// payloads are passed over for the price of one small read.

#include <algorithm>
#include <cstdint>

#include "reshard/base/byte_source.h"
#include "reshard/base/bytes.h"
#include "reshard/base/result.h"

namespace reshard::pickle {

/// Reads [begin, end) of a source. Not thread-safe.
class Window {
 public:
  /// Most bytes that Fill can be asked for.
  static constexpr std::uint64_t kLargest = std::uint64_t{256} * 1024;

  Window(ByteSource& source, std::uint64_t begin, std::uint64_t end)
      : source_(source), end_(end), base_(begin) {}

  /// Offset of the next byte in the source.
  std::uint64_t offset() const { return base_ + at_; }

  /// Bytes from here to the end.
  std::uint64_t remaining() const { return end_ - offset(); }

  /// Bytes taken so far, those passed over left out.
  std::uint64_t taken() const { return taken_; }

  bool Has(std::uint64_t size) const { return size <= valid_ - at_; }

  /// Makes the next `size` (<= remaining(), <= kLargest) bytes available. Errors: of the source.
  Status Fill(std::uint64_t size) { return Has(size) ? OkStatus() : Refill(size); }

  /// The next `size` bytes, which Fill made available; valid until the next Fill.
  const std::byte* Take(std::uint64_t size) {
    const std::byte* p = buffer_.data() + at_;
    at_ += size;
    taken_ += size;
    return p;
  }

  /// What lies ahead in the buffer.
  ByteSpan ahead() const { return ByteSpan(buffer_).subspan(at_, valid_ - at_); }

  /// Passes over `size` (<= remaining()) bytes.
  void Skip(std::uint64_t size);

 private:
  static constexpr std::uint64_t kFirst = 4096;
  static constexpr std::uint64_t kAfterJump = 512;
  static constexpr std::uint64_t kShortJump = std::uint64_t{16} * 1024;

  Status Refill(std::uint64_t size);

  ByteSource& source_;
  const std::uint64_t end_;
  std::uint64_t base_;       // source offset of buffer_[0]
  std::uint64_t at_ = 0;     // next byte in buffer_
  std::uint64_t valid_ = 0;  // bytes in buffer_
  std::uint64_t next_read_ = kFirst;
  std::uint64_t taken_ = 0;
  Bytes buffer_;
};

}  // namespace reshard::pickle
