#pragma once

// Counts what `new` is asked for, so that a test of hostile input can say "no large allocation".
// Linking allocation_meter.cc replaces the global operators; memory still comes from malloc, so
// sanitizers see it.

#include <cstddef>

namespace reshard::testing {

/// Watches the allocations of this thread from its construction on.
class AllocationMeter {
 public:
  AllocationMeter();

  /// Bytes asked for since, freed or not.
  std::size_t total() const;

 private:
  std::size_t before_;
};

}  // namespace reshard::testing
