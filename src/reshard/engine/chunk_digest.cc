#include "reshard/engine/chunk_digest.h"

#include <algorithm>

namespace reshard {

ChunkDigest::ChunkDigest(BoxView box, std::span<const std::uint64_t> shape, DType dtype) {
  const Box units = ToUnits(box, dtype);
  const Shape extents = ToUnits(shape, dtype);
  run_bytes_ = Info(dtype).unit_bytes;
  std::uint64_t data_stride = run_bytes_;
  std::uint64_t string_stride = run_bytes_;
  std::uint64_t inner_end = run_bytes_;  // string bytes that the inner axes cover without a gap
  for (std::size_t a = extents.size(); a-- > 0;) {
    const std::uint64_t count = units.extent[a];
    string_begin_ += units.offset[a] * string_stride;
    if (count != 1) {
      if (loops_.empty() && string_stride == inner_end) {
        run_bytes_ *= count;
        inner_end = run_bytes_;
      } else if (!loops_.empty() &&
                 loops_.back().string_stride * loops_.back().count == string_stride) {
        loops_.back().count *= count;
      } else {
        loops_.push_back({count, static_cast<std::int64_t>(data_stride), string_stride});
      }
    }
    data_stride *= count;
    string_stride *= extents[a];
  }
  string_bytes_ = NumBytes(shape, dtype);
  std::uint64_t span = run_bytes_;
  std::vector<std::uint64_t> spans = {span};
  for (const Crc64Loop& loop : loops_) {
    span += (loop.count - 1) * loop.string_stride;
    spans.push_back(span);
  }
  loops_ = {loops_.rbegin(), loops_.rend()};
  span_ = {spans.rbegin(), spans.rend()};
}

std::uint64_t ChunkDigest::PartFromLinear(ByteRange window, std::uint64_t linear) const {
  return Crc64Shift(linear, string_bytes_ - string_begin_ - window.end());
}

std::uint64_t ChunkDigest::Part(ByteRange window, const std::byte* data) const {
  if (window.size == 0) {
    return 0;
  }
  return Walk(0, window.offset, window.end(), data, string_begin_);
}

std::uint64_t ChunkDigest::Walk(std::size_t level, std::uint64_t begin, std::uint64_t end,
                                const std::byte* data, std::uint64_t string_base) const {
  if (level == loops_.size()) {
    const std::uint64_t linear = Crc64Linear({data, end - begin});
    return Crc64Shift(linear, string_bytes_ - string_base - end);
  }
  const Crc64Loop& loop = loops_[level];
  const auto inner = static_cast<std::uint64_t>(loop.data_stride);
  std::uint64_t i = begin / inner;
  std::uint64_t part = 0;
  if (begin % inner != 0 || end < (i + 1) * inner) {  // a turn of the loop that is cut
    const std::uint64_t stop = std::min(end, (i + 1) * inner);
    part ^= Walk(level + 1, begin - i * inner, stop - i * inner, data,
                 string_base + i * loop.string_stride);
    data += stop - begin;
    begin = stop;
    ++i;
  }
  const std::uint64_t last = end / inner;
  if (last > i) {  // whole turns
    std::vector<Crc64Loop> loops(loops_.begin() + static_cast<std::ptrdiff_t>(level), loops_.end());
    loops[0].count = last - i;
    const std::uint64_t string_end =
        string_base + (last - 1) * loop.string_stride + span_[level + 1];
    part ^= Crc64Shift(Crc64Runs(data, run_bytes_, loops), string_bytes_ - string_end);
    data += (last - i) * inner;
    begin = last * inner;
  }
  if (begin < end) {
    part ^= Walk(level + 1, begin - last * inner, end - last * inner, data,
                 string_base + last * loop.string_stride);
  }
  return part;
}

}  // namespace reshard
