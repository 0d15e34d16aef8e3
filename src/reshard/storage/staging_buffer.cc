#include "reshard/storage/staging_buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace reshard {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

void StagingBuffer::Free::operator()(std::byte* p) const { std::free(p); }

Result<StagingBuffer> StagingBuffer::Allocate(std::size_t size) {
  StagingBuffer out;
  if (size == 0) {
    return out;
  }
  // Touching more than there is would end the process, not this call.
  const auto machine = static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) *
                       static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* memory = nullptr;
  if (size > machine || ::posix_memalign(&memory, kHugePage, size) != 0) {
    return MakeError(ErrorCode::kUnavailable, "NO_MEMORY",
                     fmt::format("cannot allocate a staging buffer of {} bytes; lower the memory "
                                 "budget or free memory",
                                 size));
  }
  // Advice: without huge pages the buffer is slower, not wrong.
  ::madvise(memory, size, MADV_HUGEPAGE);
  std::memset(memory, 0, size);
  out.data_.reset(static_cast<std::byte*>(memory));
  out.size_ = size;
  return out;
}

}  // namespace reshard
