#include "tests/support/allocation_meter.h"

#include <cstdlib>
#include <new>

namespace {

thread_local std::size_t total_bytes = 0;

void* TryAllocate(std::size_t size) noexcept {
  total_bytes += size;
  return std::malloc(size == 0 ? 1 : size);
}

void* Allocate(std::size_t size) {
  void* memory = TryAllocate(size);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

void* operator new(std::size_t size) { return Allocate(size); }

void* operator new[](std::size_t size) { return Allocate(size); }

void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return TryAllocate(size); }

void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return TryAllocate(size); }

void operator delete(void* memory) noexcept { std::free(memory); }

void operator delete[](void* memory) noexcept { std::free(memory); }

void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace reshard::testing {

AllocationMeter::AllocationMeter() : before_(total_bytes) {}

std::size_t AllocationMeter::total() const { return total_bytes - before_; }

}  // namespace reshard::testing
