#pragma once

// A vector of plain values for parsers of untrusted input, whose memory is bounded by their input's
// size: growing it moves large blocks by the page table instead of copying them, so that the old
// and the new one never take memory together, and what was not used yet takes none.

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace reshard {

/// Like std::vector as far as it goes; not copied. Pointers are invalid after it grew.
/// Thread-safety: as of std::vector.
template <typename T>
class GrowingArray {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  GrowingArray() = default;

  GrowingArray(GrowingArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}

  GrowingArray& operator=(GrowingArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }

  GrowingArray(const GrowingArray&) = delete;
  GrowingArray& operator=(const GrowingArray&) = delete;

  ~GrowingArray() { std::free(data_); }

  std::size_t size() const { return size_; }

  bool empty() const { return size_ == 0; }

  T* data() { return data_; }

  const T* data() const { return data_; }

  T& operator[](std::size_t i) { return data_[i]; }

  const T& operator[](std::size_t i) const { return data_[i]; }

  T* begin() { return data_; }

  T* end() { return data_ + size_; }

  const T* begin() const { return data_; }

  const T* end() const { return data_ + size_; }

  T& back() { return data_[size_ - 1]; }

  const T& back() const { return data_[size_ - 1]; }

  void push_back(T value) {
    if (size_ == capacity_) {
      Grow(size_ + 1);
    }
    data_[size_++] = value;
  }

  void pop_back() { --size_; }

  /// To at most size() elements.
  void Shorten(std::size_t size) { size_ = size; }

  /// `values` must not be a part of it.
  void Append(std::span<const T> values) {
    if (values.size() > capacity_ - size_) {
      Grow(size_ + values.size());
    }
    std::copy(values.begin(), values.end(), data_ + size_);
    size_ += values.size();
  }

 private:
  void Grow(std::size_t least) {
    const std::size_t capacity = std::max({least, 2 * capacity_, std::size_t{16}});
    void* data = std::realloc(data_, capacity * sizeof(T));
    if (data == nullptr) {
      throw std::bad_alloc();
    }
    data_ = static_cast<T*>(data);
    capacity_ = capacity;
  }

  T* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace reshard
