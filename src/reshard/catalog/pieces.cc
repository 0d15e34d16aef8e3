#include "reshard/catalog/pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <tuple>

#include "reshard/catalog/tiling.h"

namespace reshard {
namespace {

Index Permute(const Index& values, std::span<const std::size_t> order) {
  Index out(order.size());
  std::transform(order.begin(), order.end(), out.begin(), [&](std::size_t a) { return values[a]; });
  return out;
}

Piece MakePiece(std::uint32_t want, const Chunk& chunk, DType dtype, Box common) {
  Piece piece;
  piece.want = want;
  piece.file = chunk.file;
  piece.box = std::move(common);
  piece.order = chunk.order;
  piece.file_offset = chunk.byte_offset;
  if (chunk.box == BoxView(piece.box)) {  // the usual case, and a frequent one
    piece.file_to_dense.run_bytes = NumBytes(piece.box, dtype);
    return piece;
  }
  const std::uint32_t unit = Info(dtype).unit_bytes;
  const std::vector<std::size_t> order = AxesInFile(chunk.order, piece.box.extent.size());
  const Box stored = ToUnits(chunk.box, dtype);
  const Box units = ToUnits(piece.box, dtype);
  const Index stored_extent = Permute(stored.extent, order);
  const Index extent = Permute(units.extent, order);
  const std::vector<std::int64_t> file_strides = DenseStrideBytes(stored_extent, unit);
  piece.file_to_dense = MakeCopyNest(extent, unit, file_strides, DenseStrideBytes(extent, unit));
  piece.file_strides = file_strides;
  for (std::size_t i = 0; i < order.size(); ++i) {
    piece.file_offset += (units.offset[order[i]] - stored.offset[order[i]]) *
                         static_cast<std::uint64_t>(file_strides[i]);
  }
  return piece;
}

/// Looks up the chunks of one tensor that meet a box.
class ChunkFinder {
 public:
  ChunkFinder(const Catalog& catalog, TensorId tensor, std::size_t boxes)
      : catalog_(catalog), tensor_(tensor) {
    constexpr std::size_t kWorthAnIndex = 4;
    if (boxes >= kWorthAnIndex) {
      std::vector<BoxView> views;
      for (std::size_t i = 0; i < catalog.num_chunks(tensor); ++i) {
        views.push_back(catalog.chunk(tensor, i).box);
      }
      if (!views.empty()) {
        index_ = std::make_unique<BoxIndex>(std::move(views));
      }
    }
  }

  template <typename Visit>
  void ForEachMeeting(BoxView wanted, const Visit& visit) const {
    if (index_ != nullptr) {
      index_->ForEachMeeting(wanted, visit);
      return;
    }
    const std::size_t axes = wanted.axes();
    const std::uint64_t* box =
        catalog_.chunk_boxes(tensor_).data();  // a scan of thousands of chunks
    for (std::size_t i = 0; i < catalog_.num_chunks(tensor_); ++i, box += 2 * axes) {
      if (Overlaps(BoxView({box, axes}, {box + axes, axes}), wanted)) {
        visit(i);
      }
    }
  }

 private:
  const Catalog& catalog_;
  TensorId tensor_;
  std::unique_ptr<BoxIndex> index_;
};

Status CheckCovered(const Catalog& catalog, const WantedBox& want, std::span<const Piece> pieces) {
  if (pieces.size() == 1 && pieces[0].box == want.box) {
    return OkStatus();
  }
  std::vector<BoxView> boxes;
  boxes.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    boxes.emplace_back(piece.box);
  }
  if (TilesExactly(want.box, boxes)) {
    return OkStatus();
  }
  const TilingFault fault = FindTilingFault(boxes);
  return MakeError(ErrorCode::kCorruption, fault.overlap ? "OVERLAP" : "COVERAGE",
                   fmt::format("tensor '{}': the stored chunks {} inside {}; run `reshard verify`",
                               catalog.key(want.tensor), fault.overlap ? "overlap" : "leave a hole",
                               ToString(want.box)));
}

/// Sorts by (file, file_offset); the keys are sorted apart, since pieces are large.
std::vector<Piece> SortedByPlace(std::vector<Piece> pieces) {
  std::vector<std::tuple<std::uint32_t, std::uint64_t, std::size_t>> keys;
  keys.reserve(pieces.size());
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    keys.emplace_back(pieces[i].file, pieces[i].file_offset, i);
  }
  if (std::is_sorted(keys.begin(), keys.end())) {
    return pieces;
  }
  std::sort(keys.begin(), keys.end());
  std::vector<Piece> sorted;
  sorted.reserve(pieces.size());
  for (const auto& [file, offset, i] : keys) {
    sorted.push_back(std::move(pieces[i]));
  }
  return sorted;
}

}  // namespace

Result<std::vector<Piece>> FindPieces(const Catalog& catalog, std::span<const WantedBox> wanted) {
  std::vector<std::uint32_t> by_tensor(wanted.size());
  std::iota(by_tensor.begin(), by_tensor.end(), 0);
  std::stable_sort(by_tensor.begin(), by_tensor.end(), [&](std::uint32_t a, std::uint32_t b) {
    return wanted[a].tensor < wanted[b].tensor;
  });
  std::vector<Piece> pieces;
  for (std::size_t begin = 0; begin < by_tensor.size();) {
    const TensorId tensor = wanted[by_tensor[begin]].tensor;
    std::size_t end = begin;
    while (end < by_tensor.size() && wanted[by_tensor[end]].tensor == tensor) {
      ++end;
    }
    const ChunkFinder finder(catalog, tensor, end - begin);
    const DType dtype = catalog.dtype(tensor);
    for (; begin < end; ++begin) {
      const WantedBox& want = wanted[by_tensor[begin]];
      const std::size_t first = pieces.size();
      finder.ForEachMeeting(want.box, [&](std::size_t i) {
        const Chunk chunk = catalog.chunk(tensor, i);
        if (Contains(want.box, chunk.box)) {
          pieces.push_back(MakePiece(by_tensor[begin], chunk, dtype, chunk.box.ToBox()));
        } else if (std::optional<Box> common = Intersect(chunk.box, want.box)) {
          pieces.push_back(MakePiece(by_tensor[begin], chunk, dtype, std::move(*common)));
        }
      });
      RESHARD_TRY(CheckCovered(catalog, want, std::span(pieces).subspan(first)));
    }
  }
  return SortedByPlace(std::move(pieces));
}

PlacedNest MakePlacedNest(const Piece& piece, PieceSource source, DType dtype,
                          const Box& target_box, std::span<const std::int64_t> stride_bytes) {
  const std::uint32_t unit = Info(dtype).unit_bytes;
  const Box units = ToUnits(piece.box, dtype);
  const Box target = ToUnits(target_box, dtype);
  const std::vector<std::size_t> order = AxesInFile(piece.order, units.extent.size());
  const Index extent = Permute(units.extent, order);
  PlacedNest out;
  std::vector<std::int64_t> strides;
  for (const std::size_t a : order) {
    strides.push_back(stride_bytes[a]);
    out.offset += static_cast<std::int64_t>(units.offset[a] - target.offset[a]) * stride_bytes[a];
  }
  out.nest = MakeCopyNest(extent, unit,
                          source == PieceSource::kFile && !piece.file_strides.empty()
                              ? piece.file_strides
                              : DenseStrideBytes(extent, unit),
                          strides);
  return out;
}

std::uint64_t NestBytesBefore(const CopyNest& nest, std::uint64_t offset) {
  std::uint64_t runs = nest.num_runs();
  std::uint64_t before = 0;
  for (const NestLoop& loop : nest.loops) {
    runs /= loop.count;  // runs inside one turn of this loop
    const auto stride = static_cast<std::uint64_t>(loop.src_stride);
    const std::uint64_t turns = std::min(loop.count, offset / stride);
    before += turns * runs * nest.run_bytes;
    if (turns == loop.count) {
      return before;
    }
    offset -= turns * stride;
  }
  return before + std::min(offset, nest.run_bytes);
}

void ForEachFileRange(const Piece& piece, std::uint64_t gap,
                      const std::function<void(ByteRange)>& visit) {
  const CopyNest& nest = piece.file_to_dense;
  if (nest.num_bytes() == 0) {
    return;
  }
  // Inner loops whose gaps are small enough melt into one range.
  std::size_t depth = nest.loops.size();
  std::uint64_t length = nest.run_bytes;
  while (depth > 0) {
    const NestLoop& loop = nest.loops[depth - 1];
    if (static_cast<std::uint64_t>(loop.src_stride) > length + gap) {
      break;
    }
    length += (loop.count - 1) * static_cast<std::uint64_t>(loop.src_stride);
    --depth;
  }
  std::vector<std::uint64_t> turn(depth, 0);
  for (;;) {
    std::uint64_t at = piece.file_offset;
    for (std::size_t i = 0; i < depth; ++i) {
      at += turn[i] * static_cast<std::uint64_t>(nest.loops[i].src_stride);
    }
    visit({at, length});
    std::size_t i = depth;
    while (i > 0 && ++turn[i - 1] == nest.loops[i - 1].count) {
      turn[--i] = 0;
    }
    if (i == 0) {
      return;
    }
  }
}

}  // namespace reshard
