#pragma once

// Large reusable buffers for direct I/O: 2 MiB aligned, huge pages advised, touched once.

#include <cstddef>
#include <memory>
#include <span>

#include "reshard/base/bytes.h"
#include "reshard/base/result.h"

namespace reshard {

/// Page-aligned memory of a fixed size. Movable.
class StagingBuffer {
 public:
  StagingBuffer() = default;

  /// Errors: kUnavailable NO_MEMORY.
  static Result<StagingBuffer> Allocate(std::size_t size);

  std::byte* data() const { return data_.get(); }

  std::size_t size() const { return size_; }

  MutableByteSpan span() const { return {data_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };

  std::unique_ptr<std::byte, Free> data_;
  std::size_t size_ = 0;
};

}  // namespace reshard
