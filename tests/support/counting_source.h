#pragma once

// A source in memory that counts what is read of it.

#include <atomic>

#include "reshard/base/byte_source.h"

namespace reshard::testing {

class CountingSource final : public ByteSource {
 public:
  explicit CountingSource(ByteSpan bytes) : memory_(bytes) {}

  std::uint64_t size() const override { return memory_.size(); }

  Status ReadAt(std::uint64_t offset, MutableByteSpan out) override {
    bytes_read_ += out.size();
    ++reads_;
    return memory_.ReadAt(offset, out);
  }

  std::uint64_t bytes_read() const { return bytes_read_; }

  std::uint64_t reads() const { return reads_; }

 private:
  MemorySource memory_;
  std::atomic<std::uint64_t> bytes_read_ = 0;
  std::atomic<std::uint64_t> reads_ = 0;
};

}  // namespace reshard::testing
