#pragma once

// Writes the payload of one data file: gathers the chunks from the caller's memory (or from what
// gives them) into large aligned buffers, checksums them on the way, several writes in flight.
// Formats that put bytes between tensors pass these as literals.

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/catalog/value.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// A stretch of the payload: a chunk and where its elements are, or literal bytes.
struct PayloadSegment {
  std::string_view key;                  ///< Of the tensor, for messages.
  const TensorShard* shard = nullptr;    ///< The shard that contains `box`; null: literal.
  DType dtype = DType::kUint8;           ///< Of the tensor.
  std::span<const std::uint64_t> shape;  ///< Global shape of the tensor.
  Box box;
  ByteSpan literal;  ///< Without a shard: these bytes, which must outlive the write.

  std::uint64_t num_bytes() const {
    return shard == nullptr ? literal.size() : NumBytes(box, dtype);
  }
};

/// Checksums of what was written.
struct PayloadChecksums {
  std::vector<std::uint64_t> blocks;        ///< CRC-64 per block of the payload.
  std::vector<std::uint64_t> digest_parts;  ///< Per chunk (not per literal): see WriteReport.
};

/// How to write.
struct PayloadOptions {
  std::size_t threads = 3;                          ///< Buffers in flight.
  std::size_t buffer_bytes = std::size_t{8} << 20;  ///< A multiple of kBlockBytes.
  std::function<Status(std::uint64_t)> progress;    ///< Called with bytes done since the last call,
                                                    ///< from any thread; an error stops the write.
};

/// Writes `segments`, one after the other, to `out` from file offset `payload_offset` on; blocks
/// count from there. The last write is padded with zeros to kDirectAlignment. A source's chunk is
/// asked for in boxes, at most 2 * axes + 1 for each buffer.
/// Errors: those of WriteAt, NO_MEMORY; those of sources, with the key; kCancelled CALLBACK when
/// one throws.
Result<PayloadChecksums> WritePayload(WritableObject& out, std::uint64_t payload_offset,
                                      const std::vector<PayloadSegment>& segments,
                                      const PayloadOptions& options);

}  // namespace reshard
