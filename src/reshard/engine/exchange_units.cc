#include "reshard/engine/exchange_units.h"

namespace reshard {

ByteRange DenseWindow(const Piece& piece, ByteRange window) {
  const std::uint64_t begin = NestBytesBefore(piece.file_to_dense, window.offset);
  return {begin, NestBytesBefore(piece.file_to_dense, window.end()) - begin};
}

Result<ExchangeUnits> ExchangeUnits::Assign(const Catalog& catalog, const ExchangeView& view,
                                            std::uint64_t unit_bytes) {
  ExchangeUnits out;
  for (const auto& wanted : view.wanted) {
    RESHARD_TRY_ASSIGN(std::vector<Piece> pieces, FindPieces(catalog, wanted));
    out.pieces_.emplace_back(std::move(pieces));
  }
  const std::size_t ranks = out.num_ranks();
  out.units_.resize(ranks);
  std::vector<std::uint64_t> load(ranks, 0);
  for (std::uint32_t file = 0; file < catalog.files().size(); ++file) {
    for (const Unit& unit : out.UnitsOf(catalog, file, unit_bytes)) {
      std::size_t best = ranks;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        if (view.sees[rank][file] && (best == ranks || load[rank] < load[best])) {
          best = rank;
        }
      }
      if (best < ranks) {  // nobody: reported before the load began
        load[best] += unit.range.size;
        out.units_[best].push_back(unit);
      }
    }
  }
  return out;
}

std::vector<Unit> ExchangeUnits::UnitsOf(const Catalog& catalog, std::uint32_t file,
                                         std::uint64_t unit_bytes) const {
  const FileEntry& entry = catalog.files()[file];
  std::vector<bool> blocks(entry.num_blocks(), false);
  for (const RankPieces& rank : pieces_) {
    for (const Piece& piece : rank.all()) {
      if (piece.file == file) {
        ForEachFileRange(piece, kBlockBytes, [&](ByteRange range) {
          const std::uint64_t first = (range.offset - entry.payload_offset) / kBlockBytes;
          const std::uint64_t last = (range.end() - 1 - entry.payload_offset) / kBlockBytes;
          std::fill(blocks.begin() + static_cast<std::ptrdiff_t>(first),
                    blocks.begin() + static_cast<std::ptrdiff_t>(last) + 1, true);
        });
      }
    }
  }
  std::vector<Unit> units;
  for (std::uint64_t block = 0; block < blocks.size(); ++block) {
    if (!blocks[block]) {
      continue;
    }
    const ByteRange range = entry.Block(block);
    const bool joins = !units.empty() && units.back().range.end() == range.offset &&
                       units.back().range.size + range.size <= unit_bytes;
    if (joins) {
      units.back().range.size += range.size;
    } else {
      units.push_back({file, range});
    }
  }
  return units;
}

}  // namespace reshard
