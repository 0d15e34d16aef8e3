#include "reshard/format/pickle/window_internal.h"

namespace reshard::pickle {

void Window::Skip(std::uint64_t size) {
  if (Has(size)) {
    at_ += size;
    return;
  }
  const std::uint64_t beyond = size - (valid_ - at_);
  if (beyond > std::min(next_read_, kShortJump)) {
    next_read_ = kAfterJump;
  }
  base_ += at_ + size;
  at_ = valid_ = 0;
}

Status Window::Refill(std::uint64_t size) {
  const std::uint64_t left = valid_ - at_;
  std::copy_n(buffer_.begin() + static_cast<std::ptrdiff_t>(at_), left, buffer_.begin());
  base_ += at_;
  at_ = 0;
  valid_ = left;
  const std::uint64_t wanted = std::min(std::max(next_read_, size - left), end_ - base_ - left);
  if (buffer_.size() < left + wanted) {
    buffer_.resize(left + wanted);
  }
  RESHARD_TRY(source_.ReadAt(base_ + left, MutableByteSpan(buffer_).subspan(left, wanted)));
  valid_ += wanted;
  next_read_ = std::min(2 * next_read_, kLargest);
  return OkStatus();
}

}  // namespace reshard::pickle
