#pragma once

// Writes the payload of one data file: gathers the chunks from the caller's memory into large
// aligned buffers, checksums them on the way, several writes in flight.

#include <cstdint>
#include <functional>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/catalog/value.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// A chunk and where its elements are in memory.
struct ChunkSource {
  const TensorShard* shard = nullptr;    ///< The shard that contains `box`.
  std::span<const std::uint64_t> shape;  ///< Global shape of the tensor.
  Box box;
  std::uint64_t payload_offset = 0;
};

/// Checksums of what was written.
struct PayloadChecksums {
  std::vector<std::uint64_t> blocks;        ///< CRC-64 per block of the payload.
  std::vector<std::uint64_t> digest_parts;  ///< Per chunk: see WriteReport.
};

/// How to write.
struct PayloadOptions {
  std::size_t threads = 3;                          ///< Buffers in flight.
  std::size_t buffer_bytes = std::size_t{8} << 20;  ///< A multiple of kBlockBytes.
  std::function<Status(std::uint64_t)> progress;    ///< Called with bytes done since the last call,
                                                    ///< from any thread; an error stops the write.
};

/// Writes `chunks` (in payload order, without gaps) to `out` from file offset `payload_offset` on.
/// The last write is padded with zeros to kDirectAlignment. Errors: those of WriteAt, NO_MEMORY.
Result<PayloadChecksums> WritePayload(WritableObject& out, std::uint64_t payload_offset,
                                      const std::vector<ChunkSource>& chunks,
                                      const PayloadOptions& options);

}  // namespace reshard
