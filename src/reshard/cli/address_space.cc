#include "reshard/cli/address_space.h"

#include <malloc.h>
#include <pthread.h>

#include <cstddef>

namespace reshard::cli {
namespace {

/// The usual 8 MiB are for programs that recurse without bound.
constexpr std::size_t kStackBytes = std::size_t{512} << 10;

}  // namespace

void SaveAddressSpace() {
#ifdef __GLIBC__
  // Each further arena takes 64 MiB of addresses; commands allocate little but large buffers.
  ::mallopt(M_ARENA_MAX, 1);  // NOLINT(concurrency-mt-unsafe): before any thread is made
  pthread_attr_t attributes;
  if (::pthread_attr_init(&attributes) == 0) {
    if (::pthread_attr_setstacksize(&attributes, kStackBytes) == 0) {
      static_cast<void>(::pthread_setattr_default_np(&attributes));
    }
    ::pthread_attr_destroy(&attributes);
  }
#endif
}

}  // namespace reshard::cli
