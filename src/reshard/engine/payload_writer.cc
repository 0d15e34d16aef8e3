#include "reshard/engine/payload_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>

#include "reshard/base/mutex.h"
#include "reshard/base/thread_pool.h"
#include "reshard/catalog/catalog.h"
#include "reshard/codec/crc64.h"
#include "reshard/engine/chunk_digest.h"
#include "reshard/engine/message.h"
#include "reshard/storage/staging_buffer.h"
#include "reshard/tensor/mesh.h"
#include "reshard/tensor/strided.h"

namespace reshard {
namespace {

/// A segment ready to be gathered.
struct Prepared {
  const PayloadSegment* segment = nullptr;
  std::uint64_t begin = 0;  // in the payload
  std::uint64_t end = 0;
  CopyNest nest;  // memory -> dense, of a chunk in memory
  const std::byte* base = nullptr;
  std::optional<ChunkDigest> digest;  // of a chunk
  std::size_t part = 0;               // which digest part it adds to

  bool has_source() const { return segment->shard != nullptr && segment->shard->source; }
};

/// From where and how the elements of a chunk in memory are copied.
void PrepareNest(const PayloadSegment& segment, Prepared& out) {
  const TensorView& view = segment.shard->view;
  const Box units = ToUnits(segment.box, view.dtype);
  const Box shard = ToUnits(segment.shard->box, view.dtype);
  const std::vector<std::int64_t> strides = StrideBytes(view);
  const std::uint32_t unit = Info(view.dtype).unit_bytes;
  out.base = view.data;
  for (std::size_t a = 0; a < strides.size(); ++a) {
    out.base += static_cast<std::int64_t>(units.offset[a] - shard.offset[a]) * strides[a];
  }
  out.nest = MakeCopyNest(units.extent, unit, strides, DenseStrideBytes(units.extent, unit));
}

/// Asks a source for the units [begin, end) of a box's row-major order.
Status ReadUnits(const PayloadSegment& segment, std::uint64_t begin, std::uint64_t end,
                 std::byte* out) {
  const Box units = ToUnits(segment.box, segment.dtype);
  const DTypeInfo& info = Info(segment.dtype);
  RESHARD_TRY_ASSIGN(std::vector<Box> boxes, FlattenedRangeToBoxes(units, begin, end));
  for (Box& box : boxes) {
    const std::uint64_t bytes = NumElements(box) * info.unit_bytes;
    if (!box.extent.empty()) {
      box.offset.back() *= info.unit_elements;
      box.extent.back() *= info.unit_elements;
    }
    Status status = CallGuarded(
        "the callback", [&] { return segment.shard->source(box, MutableByteSpan(out, bytes)); });
    if (!status.ok()) {
      return tl::unexpected<Error>(
          status.error().WithContext(fmt::format("source of tensor '{}'", segment.key)));
    }
    out += bytes;
  }
  return OkStatus();
}

/// Fills `out` with the bytes `window` of a chunk that a source gives. Windows cut elements where a
/// format aligns nothing.
Status ReadSource(const PayloadSegment& segment, ByteRange window, std::byte* out) {
  const std::uint64_t unit = Info(segment.dtype).unit_bytes;
  std::uint64_t at = window.offset;
  std::array<std::byte, 16> edge;
  while (at < window.end()) {
    const std::uint64_t skip = at % unit;
    if (skip == 0 && window.end() - at >= unit) {
      const std::uint64_t last = window.end() / unit;
      RESHARD_TRY(ReadUnits(segment, at / unit, last, out));
      out += last * unit - at;
      at = last * unit;
      continue;
    }
    RESHARD_TRY(ReadUnits(segment, at / unit, at / unit + 1, edge.data()));
    const std::uint64_t size = std::min(unit - skip, window.end() - at);
    out = std::copy_n(edge.begin() + skip, size, out);
    at += size;
  }
  return OkStatus();
}

/// Lets some threads write at once. Writers that all wait for the disk would get their buffers back
/// together and leave the disk idle while they fill them: half of them keep it busy.
class WriteGate {
 public:
  explicit WriteGate(std::size_t threads) : free_(threads > 2 ? (threads + 1) / 2 : threads) {}

  void Enter() {
    MutexLock lock(mutex_);
    while (free_ == 0) {
      left_.wait(mutex_);
    }
    --free_;
  }

  void Leave() {
    MutexLock lock(mutex_);
    ++free_;
    left_.notify_one();
  }

 private:
  Mutex mutex_;
  CondVar left_;
  std::size_t free_ RESHARD_GUARDED_BY(mutex_);
};

class PayloadWriter {
 public:
  PayloadWriter(WritableObject& out, std::uint64_t payload_offset,
                const std::vector<PayloadSegment>& segments, const PayloadOptions& options)
      : out_(out), payload_offset_(payload_offset), options_(options), gate_(options.threads) {
    segments_.reserve(segments.size());
    std::size_t chunks = 0;
    for (const PayloadSegment& segment : segments) {
      Prepared& prepared = segments_.emplace_back();
      prepared.segment = &segment;
      prepared.begin = bytes_;
      bytes_ += segment.num_bytes();
      prepared.end = bytes_;
      if (segment.shard != nullptr) {
        prepared.digest.emplace(segment.box, segment.shape, segment.dtype);
        prepared.part = chunks++;
        if (!prepared.has_source()) {
          PrepareNest(segment, prepared);
        }
      }
    }
    blocks_.resize((bytes_ + kBlockBytes - 1) / kBlockBytes);
    parts_ = std::vector<std::atomic<std::uint64_t>>(chunks);
  }

  Result<PayloadChecksums> Run() {
    const std::uint64_t windows = (bytes_ + options_.buffer_bytes - 1) / options_.buffer_bytes;
    const std::size_t threads =
        std::max<std::size_t>(1, std::min<std::uint64_t>(options_.threads, windows));
    ThreadPool pool(threads);
    TaskGroup group(pool);
    std::atomic<std::uint64_t> next = 0;
    for (std::size_t t = 0; t < threads; ++t) {
      group.Submit([this, &next, windows]() -> Status {
        RESHARD_TRY_ASSIGN(const StagingBuffer buffer, StagingBuffer::Allocate(BufferSize()));
        for (std::uint64_t w = next++; w < windows && !failed_; w = next++) {
          Status status = WriteWindow(w * options_.buffer_bytes, buffer.span());
          if (!status.ok()) {
            failed_ = true;
            return status;
          }
        }
        return OkStatus();
      });
    }
    RESHARD_TRY(group.Wait());
    PayloadChecksums sums;
    sums.blocks = std::move(blocks_);
    for (const std::atomic<std::uint64_t>& part : parts_) {
      sums.digest_parts.push_back(part);
    }
    return sums;
  }

 private:
  /// Small saves need no large buffers.
  std::size_t BufferSize() const {
    const std::uint64_t padded =
        (bytes_ + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
    return std::min<std::uint64_t>(options_.buffer_bytes, padded);
  }

  Status WriteWindow(std::uint64_t begin, MutableByteSpan buffer) {
    const std::uint64_t end = std::min<std::uint64_t>(bytes_, begin + options_.buffer_bytes);
    RESHARD_TRY(ReadSources(begin, end, buffer.data()));
    for (std::uint64_t block = begin; block < end; block += kBlockBytes) {
      FillBlock(block, std::min(end, block + kBlockBytes), buffer.data() + (block - begin));
    }
    const std::uint64_t size = end - begin;
    const std::uint64_t padded =
        (size + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
    std::fill(buffer.begin() + static_cast<std::ptrdiff_t>(size),
              buffer.begin() + static_cast<std::ptrdiff_t>(padded), std::byte{0});
    gate_.Enter();
    Status written = out_.WriteAt(payload_offset_ + begin, buffer.first(padded));
    gate_.Leave();
    RESHARD_TRY(std::move(written));
    return options_.progress ? options_.progress(size) : OkStatus();
  }

  /// The segment that holds byte `at` of the payload.
  std::vector<Prepared>::const_iterator SegmentAt(std::uint64_t at) const {
    return std::upper_bound(segments_.begin(), segments_.end(), at,
                            [](std::uint64_t x, const Prepared& s) { return x < s.end; });
  }

  /// What sources give of [begin, end), so that they are asked for as much as fits at once.
  Status ReadSources(std::uint64_t begin, std::uint64_t end, std::byte* data) {
    for (auto at = SegmentAt(begin); at != segments_.end() && at->begin < end; ++at) {
      if (at->has_source()) {
        const std::uint64_t from = std::max(begin, at->begin);
        const ByteRange window = {from - at->begin, std::min(end, at->end) - from};
        RESHARD_TRY(ReadSource(*at->segment, window, data + (from - begin)));
      }
    }
    return OkStatus();
  }

  void FillBlock(std::uint64_t begin, std::uint64_t end, std::byte* data) {
    std::uint64_t linear = 0;
    auto segment = SegmentAt(begin);
    for (std::uint64_t at = begin; at < end; ++segment) {
      const ByteRange window = {at - segment->begin, std::min(end, segment->end) - at};
      std::byte* piece = data + (at - begin);
      Gather(*segment, window, piece);
      const std::uint64_t own = Crc64Linear({piece, window.size});
      linear = window.size == end - begin ? own : Crc64Shift(linear, window.size) ^ own;
      if (segment->digest) {
        parts_[segment->part] ^= segment->digest->contiguous()
                                     ? segment->digest->PartFromLinear(window, own)
                                     : segment->digest->Part(window, piece);
      }
      at += window.size;
    }
    blocks_[begin / kBlockBytes] = linear ^ Crc64Constant(end - begin);
  }

  static void Gather(const Prepared& from, ByteRange window, std::byte* out) {
    if (from.segment->shard == nullptr) {
      std::copy_n(from.segment->literal.data() + window.offset, window.size, out);
    } else if (!from.has_source()) {
      RunGatherWindow(from.nest, window, from.base, out);
    }
  }

  WritableObject& out_;
  std::uint64_t payload_offset_;
  const PayloadOptions& options_;
  WriteGate gate_;
  std::vector<Prepared> segments_;
  std::uint64_t bytes_ = 0;
  std::vector<std::uint64_t> blocks_;  // each written by one thread
  std::vector<std::atomic<std::uint64_t>> parts_;
  std::atomic<bool> failed_ = false;
};

}  // namespace

Result<PayloadChecksums> WritePayload(WritableObject& out, std::uint64_t payload_offset,
                                      const std::vector<PayloadSegment>& segments,
                                      const PayloadOptions& options) {
  return PayloadWriter(out, payload_offset, segments, options).Run();
}

}  // namespace reshard
