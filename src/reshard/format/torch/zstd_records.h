#pragma once

// Data files of DCP whose records went through the transform `stream.zstd/1`: zstd frames back to
// back, each record one or more of them. Decoded, such a file is its frames' contents one after the
// other. RFC 8878; docs/format/torch_dcp.md section 4.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "reshard/base/byte_source.h"
#include "reshard/base/result.h"

namespace reshard::torch {

/// Reason of this decoder.
inline constexpr std::string_view kBadZstd = "BAD_ZSTD";

/// Largest window of a frame that is decoded, as a power of two.
inline constexpr int kMaxZstdWindow = 27;

/// A frame: its bytes in the file, and in the decoded file.
struct ZstdFrame {
  ByteRange stored;
  ByteRange decoded;
};

/// A file of frames as a source of the decoded bytes.
/// Thread-safety: all methods from any thread. Memory: a few decoders, each with a frame's window.
/// Cost: Open decodes all of it once; reading on from where an earlier read ended decodes what is
/// read, any other read its frame from the start.
class ZstdRecords final : public ByteSource {
 public:
  /// `most`: bytes that the decoded file may have. `file` must outlive it.
  /// Errors: kCorruption BAD_ZSTD (with the byte offset), LIMIT when there are more; kIo.
  static Result<std::unique_ptr<ZstdRecords>> Open(ByteSource& file, std::uint64_t most);

  ~ZstdRecords() override;

  std::uint64_t size() const override { return size_; }

  std::span<const ZstdFrame> frames() const { return frames_; }

  Status ReadAt(std::uint64_t offset, MutableByteSpan out) override;

 private:
  class Decoder;
  struct Pool;

  explicit ZstdRecords(ByteSource& file);

  std::unique_ptr<Decoder> TakeDecoder(std::size_t frame, std::uint64_t within);

  ByteSource& file_;
  std::vector<ZstdFrame> frames_;
  std::uint64_t size_ = 0;
  std::unique_ptr<Pool> pool_;
};

}  // namespace reshard::torch
