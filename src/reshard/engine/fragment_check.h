#pragma once

// Does a data file's own copy of its entries agree with the catalog?

#include <cstdint>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"

namespace reshard {

/// A chunk as the catalog places it in a file.
struct PlacedChunk {
  std::uint64_t offset = 0;  ///< First byte in the file.
  std::uint64_t end = 0;
  TensorId tensor = 0;
  std::uint32_t index = 0;  ///< Of the tensor's chunks.
};

/// The chunks of each file, by offset; aliases count once, empty chunks are left out.
std::vector<std::vector<PlacedChunk>> ChunksByFile(const Catalog& catalog);

/// Compares the header of file number `file` (payload_offset bytes) with the catalog: head fields,
/// the header's checksum, file entry, block checksums, and exactly the same chunks (`chunks`) at
/// the same places. Errors: kCorruption BAD_HEAD, FRAGMENT_MISMATCH and those of DecodeFragment,
/// naming the file.
Status CheckFragment(const Catalog& catalog, std::uint32_t file,
                     const std::vector<PlacedChunk>& chunks, ByteSpan header);

}  // namespace reshard
