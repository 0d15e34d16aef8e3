#include "reshard/format/torch/zstd_records.h"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>

#include "reshard/base/mutex.h"
#include "reshard/format/pickle/machine.h"

namespace reshard::torch {
namespace {

constexpr std::uint64_t kInputBytes = std::uint64_t{64} * 1024;
constexpr std::uint64_t kSkipBytes = std::uint64_t{64} * 1024;
constexpr std::size_t kMostIdle = 4;

struct FreeStream {
  void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
};

tl::unexpected<Error> Bad(std::uint64_t offset, std::string_view what) {
  return MakeError(ErrorCode::kCorruption, kBadZstd,
                   fmt::format("byte {}: the compressed records do not decode: {}", offset, what));
}

}  // namespace

/// Decodes from the start of a frame on.
class ZstdRecords::Decoder {
 public:
  Decoder(ByteSource& file, std::uint64_t begin) : file_(file), at_(begin) {
    stream_.reset(ZSTD_createDStream());
  }

  Status Start() {
    if (stream_ == nullptr || ZSTD_isError(ZSTD_initDStream(stream_.get())) != 0 ||
        ZSTD_isError(ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax,
                                            kMaxZstdWindow)) != 0) {
      return MakeError(ErrorCode::kUnavailable, kBadZstd, "no memory for a zstd decoder");
    }
    return OkStatus();
  }

  /// Decodes at most `out.size()` bytes; stops at the end of a frame. Returns how many.
  Result<std::size_t> Next(MutableByteSpan out) {
    ended_ = false;
    std::size_t total = 0;
    while (total < out.size() && !ended_) {
      if (used_ == input_.size() && at_ < file_.size()) {
        input_.resize(std::min(kInputBytes, file_.size() - at_));
        RESHARD_TRY(file_.ReadAt(at_, input_));
        at_ += input_.size();
        used_ = 0;
      }
      ZSTD_inBuffer in{input_.data(), input_.size(), used_};
      ZSTD_outBuffer to{out.data() + total, out.size() - total, 0};
      const std::size_t left = ZSTD_decompressStream(stream_.get(), &to, &in);
      if (ZSTD_isError(left) != 0) {
        return Bad(offset(), ZSTD_getErrorName(left));
      }
      if (left != 0 && to.pos == 0 && in.pos == used_ && at_ == file_.size()) {
        return Bad(offset(), "a frame is cut off");
      }
      used_ = in.pos;
      total += to.pos;
      ended_ = left == 0;
    }
    decoded_ += total;
    return total;
  }

  bool ended() const { return ended_; }

  /// Of the next byte in the file that is not used yet.
  std::uint64_t offset() const { return at_ - (input_.size() - used_); }

  std::size_t frame = 0;      ///< Where the pool's user has it.
  std::uint64_t within() const { return decoded_; }

 private:
  ByteSource& file_;
  std::uint64_t at_;  // in the file: what comes after input_
  Bytes input_;
  std::size_t used_ = 0;
  std::uint64_t decoded_ = 0;
  bool ended_ = false;
  std::unique_ptr<ZSTD_DStream, FreeStream> stream_;
};

/// Decoders that wait where a read ended.
struct ZstdRecords::Pool {
  Mutex mutex;
  std::vector<std::unique_ptr<Decoder>> idle RESHARD_GUARDED_BY(mutex);
};

ZstdRecords::ZstdRecords(ByteSource& file) : file_(file), pool_(std::make_unique<Pool>()) {}

ZstdRecords::~ZstdRecords() = default;

Result<std::unique_ptr<ZstdRecords>> ZstdRecords::Open(ByteSource& file, std::uint64_t most) {
  std::unique_ptr<ZstdRecords> out(new ZstdRecords(file));
  Decoder decoder(file, 0);
  RESHARD_TRY(decoder.Start());
  Bytes buffer(kSkipBytes);
  ZstdFrame frame;
  while (decoder.offset() < file.size()) {
    RESHARD_TRY_ASSIGN(const std::size_t size, decoder.Next(buffer));
    frame.decoded.size += size;
    if (frame.decoded.end() > most) {
      return MakeError(ErrorCode::kCorruption, pickle::kLimit,
                       fmt::format("byte {}: the compressed records decode to more than the {} "
                                   "bytes that the metadata explains",
                                   decoder.offset(), most));
    }
    if (decoder.ended()) {
      frame.stored.size = decoder.offset() - frame.stored.offset;
      out->frames_.push_back(frame);
      frame = {{frame.stored.end(), 0}, {frame.decoded.end(), 0}};
    }
  }
  if (frame.stored.offset != file.size()) {
    return Bad(frame.stored.offset, "the last frame is cut off");
  }
  out->size_ = frame.decoded.offset;
  return out;
}

std::unique_ptr<ZstdRecords::Decoder> ZstdRecords::TakeDecoder(std::size_t frame,
                                                               std::uint64_t within) {
  const MutexLock lock(pool_->mutex);
  std::vector<std::unique_ptr<Decoder>>& idle = pool_->idle;
  auto best = idle.end();
  for (auto at = idle.begin(); at != idle.end(); ++at) {
    const bool usable = (*at)->frame == frame && (*at)->within() <= within;
    if (usable && (best == idle.end() || (*at)->within() > (*best)->within())) {
      best = at;
    }
  }
  std::unique_ptr<Decoder> out;
  if (best != idle.end()) {
    out = std::move(*best);
    idle.erase(best);
  }
  return out;
}

Status ZstdRecords::ReadAt(std::uint64_t offset, MutableByteSpan out) {
  if (offset > size_ || out.size() > size_ - offset) {
    return MakeError(
        ErrorCode::kCorruption, "FILE_TRUNCATED",
        fmt::format("the decoded records end at byte {}, before {}", size_, offset + out.size()));
  }
  Bytes skipped;
  while (!out.empty()) {
    const auto at = std::partition_point(
        frames_.begin(), frames_.end(),
        [offset](const ZstdFrame& f) { return f.decoded.end() <= offset; });
    const auto frame = static_cast<std::size_t>(at - frames_.begin());
    const std::uint64_t within = offset - at->decoded.offset;
    const std::uint64_t wanted = std::min<std::uint64_t>(out.size(), at->decoded.size - within);
    std::unique_ptr<Decoder> decoder = TakeDecoder(frame, within);
    if (decoder == nullptr) {
      decoder = std::make_unique<Decoder>(file_, at->stored.offset);
      decoder->frame = frame;
      RESHARD_TRY(decoder->Start());
    }
    while (decoder->within() < within) {
      skipped.resize(std::min(kSkipBytes, within - decoder->within()));
      RESHARD_TRY_ASSIGN(const std::size_t size, decoder->Next(skipped));
      if (size == 0) {
        return Bad(decoder->offset(), "a frame is shorter than before");
      }
    }
    RESHARD_TRY_ASSIGN(const std::size_t size, decoder->Next(out.first(wanted)));
    if (size != wanted) {
      return Bad(decoder->offset(), "a frame is shorter than before");
    }
    offset += wanted;
    out = out.subspan(wanted);
    if (!decoder->ended() && decoder->within() < at->decoded.size) {
      const MutexLock lock(pool_->mutex);
      if (pool_->idle.size() >= kMostIdle) {
        pool_->idle.erase(pool_->idle.begin());
      }
      pool_->idle.push_back(std::move(decoder));
    }
  }
  return OkStatus();
}

}  // namespace reshard::torch
