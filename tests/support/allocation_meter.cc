#include "tests/support/allocation_meter.h"

#include <cstdlib>
#include <new>

namespace {

thread_local std::size_t total_bytes = 0;

void* Allocate(std::size_t size) {
  total_bytes += size;
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

void* operator new(std::size_t size) { return Allocate(size); }

void* operator new[](std::size_t size) { return Allocate(size); }

void operator delete(void* memory) noexcept { std::free(memory); }

void operator delete[](void* memory) noexcept { std::free(memory); }

void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace reshard::testing {

AllocationMeter::AllocationMeter() : before_(total_bytes) {}

std::size_t AllocationMeter::total() const { return total_bytes - before_; }

}  // namespace reshard::testing
