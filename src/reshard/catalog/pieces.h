#pragma once

// From wanted boxes to byte ranges: which runs of which files hold the elements of a box, and where
// they go. Pure geometry; the engine moves the bytes.

#include <cstdint>
#include <functional>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/tensor/strided.h"

namespace reshard {

/// A box that somebody wants, in the stored tensor's coordinates.
struct WantedBox {
  TensorId tensor = 0;
  Box box;
};

/// The common part of a wanted box and one chunk. Its elements, in the order in which they lie in
/// the file, are the piece's *dense* bytes: [0, num_bytes).
struct Piece {
  std::uint32_t want = 0;         ///< Index of the wanted box.
  std::uint32_t file = 0;         ///< Index into Catalog::files().
  std::uint64_t file_offset = 0;  ///< Of the piece's first byte.
  Box box;                        ///< In the tensor's coordinates.
  CopyNest file_to_dense;  ///< Runs in the file, increasing; source offsets from file_offset.
  std::vector<std::int64_t>
      file_strides;  ///< Bytes per axis (last in units), outermost in file first.
  ChunkOrder order = ChunkOrder::kRowMajor;  ///< Of the chunk, and so of the dense bytes.

  /// Whether dense order is the box's row-major order.
  bool row_major() const { return order == ChunkOrder::kRowMajor || box.extent.size() < 2; }

  std::uint64_t num_bytes() const { return file_to_dense.num_bytes(); }

  std::uint64_t span() const { return file_to_dense.src_span(); }

  std::uint64_t file_end() const { return file_offset + span(); }
};

/// Finds the pieces of each wanted box, sorted by (file, file_offset). Every element is covered
/// exactly once. Errors: kCorruption OVERLAP, COVERAGE (the stored chunks overlap, or leave a hole,
/// inside a wanted box; names tensor and box). Cost: chunks of the wanted tensors, or log of them
/// per box when many boxes of one tensor are wanted.
Result<std::vector<Piece>> FindPieces(const Catalog& catalog, std::span<const WantedBox> wanted);

/// A nest and where in the destination its first byte goes.
struct PlacedNest {
  CopyNest nest;
  std::int64_t offset = 0;  ///< Bytes from the destination's first element.
};

/// What MakePlacedNest takes the source offsets from.
enum class PieceSource {
  kFile,   ///< The file, from Piece::file_offset on.
  kDense,  ///< The piece's dense bytes.
};

/// The nest that moves a piece to a strided destination which holds `target_box` of the tensor with
/// `stride_bytes` per axis of the tensor (last axis in units). Runs come in increasing source
/// order.
PlacedNest MakePlacedNest(const Piece& piece, PieceSource source, DType dtype,
                          const Box& target_box, std::span<const std::int64_t> stride_bytes);

/// How many bytes of the nest lie before source offset `offset` (a nest with increasing runs).
std::uint64_t NestBytesBefore(const CopyNest& nest, std::uint64_t offset);

/// Calls `visit` with file ranges that contain all runs of the piece, in increasing order; runs
/// with gaps of at most `gap` bytes come as one range.
void ForEachFileRange(const Piece& piece, std::uint64_t gap,
                      const std::function<void(ByteRange)>& visit);

}  // namespace reshard
