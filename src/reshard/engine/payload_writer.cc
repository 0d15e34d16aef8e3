#include "reshard/engine/payload_writer.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "reshard/base/check.h"
#include "reshard/base/thread_pool.h"
#include "reshard/catalog/catalog.h"
#include "reshard/codec/crc64.h"
#include "reshard/engine/chunk_digest.h"
#include "reshard/storage/staging_buffer.h"
#include "reshard/tensor/strided.h"

namespace reshard {
namespace {

/// A chunk ready to be gathered.
struct PreparedChunk {
  CopyNest nest;  // memory -> dense
  const std::byte* base = nullptr;
  ChunkDigest digest;
  std::uint64_t begin = 0;  // in the payload
  std::uint64_t end = 0;
};

PreparedChunk Prepare(const ChunkSource& source) {
  const TensorView& view = source.shard->view;
  const Box units = ToUnits(source.box, view.dtype);
  const Box shard = ToUnits(source.shard->box, view.dtype);
  const std::vector<std::int64_t> strides = StrideBytes(view);
  const std::uint32_t unit = Info(view.dtype).unit_bytes;
  const std::byte* base = view.data;
  for (std::size_t a = 0; a < strides.size(); ++a) {
    base += static_cast<std::int64_t>(units.offset[a] - shard.offset[a]) * strides[a];
  }
  const std::uint64_t bytes = NumBytes(source.box, view.dtype);
  return {MakeCopyNest(units.extent, unit, strides, DenseStrideBytes(units.extent, unit)), base,
          ChunkDigest(source.box, source.shape, view.dtype), source.payload_offset,
          source.payload_offset + bytes};
}

class PayloadWriter {
 public:
  PayloadWriter(WritableObject& out, std::uint64_t payload_offset,
                const std::vector<ChunkSource>& chunks, const PayloadOptions& options)
      : out_(out), payload_offset_(payload_offset), options_(options), parts_(chunks.size()) {
    chunks_.reserve(chunks.size());
    for (const ChunkSource& chunk : chunks) {
      RESHARD_CHECK(chunk.payload_offset == bytes_);
      chunks_.push_back(Prepare(chunk));
      bytes_ = chunks_.back().end;
    }
    blocks_.resize((bytes_ + kBlockBytes - 1) / kBlockBytes);
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
    for (std::uint64_t block = begin; block < end; block += kBlockBytes) {
      FillBlock(block, std::min(end, block + kBlockBytes), buffer.data() + (block - begin));
    }
    const std::uint64_t size = end - begin;
    const std::uint64_t padded =
        (size + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
    std::fill(buffer.begin() + static_cast<std::ptrdiff_t>(size),
              buffer.begin() + static_cast<std::ptrdiff_t>(padded), std::byte{0});
    RESHARD_TRY(out_.WriteAt(payload_offset_ + begin, buffer.first(padded)));
    return options_.progress ? options_.progress(size) : OkStatus();
  }

  void FillBlock(std::uint64_t begin, std::uint64_t end, std::byte* data) {
    auto chunk =
        std::upper_bound(chunks_.begin(), chunks_.end(), begin,
                         [](std::uint64_t at, const PreparedChunk& c) { return at < c.end; });
    std::uint64_t linear = 0;
    for (std::uint64_t at = begin; at < end; ++chunk) {
      const ByteRange window = {at - chunk->begin, std::min(end, chunk->end) - at};
      std::byte* piece = data + (at - begin);
      RunGatherWindow(chunk->nest, window, chunk->base, piece);
      const std::uint64_t own = Crc64Linear({piece, window.size});
      linear = window.size == end - begin ? own : Crc64Shift(linear, window.size) ^ own;
      const std::uint64_t part = chunk->digest.contiguous()
                                     ? chunk->digest.PartFromLinear(window, own)
                                     : chunk->digest.Part(window, piece);
      parts_[static_cast<std::size_t>(chunk - chunks_.begin())] ^= part;
      at += window.size;
    }
    blocks_[begin / kBlockBytes] = linear ^ Crc64Constant(end - begin);
  }

  WritableObject& out_;
  std::uint64_t payload_offset_;
  const PayloadOptions& options_;
  std::vector<PreparedChunk> chunks_;
  std::uint64_t bytes_ = 0;
  std::vector<std::uint64_t> blocks_;  // each written by one thread
  std::vector<std::atomic<std::uint64_t>> parts_;
  std::atomic<bool> failed_ = false;
};

}  // namespace

Result<PayloadChecksums> WritePayload(WritableObject& out, std::uint64_t payload_offset,
                                      const std::vector<ChunkSource>& chunks,
                                      const PayloadOptions& options) {
  return PayloadWriter(out, payload_offset, chunks, options).Run();
}

}  // namespace reshard
