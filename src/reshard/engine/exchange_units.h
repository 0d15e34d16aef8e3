#pragma once

// Who reads what in an exchange: every block that some rank wants, once.

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/catalog/pieces.h"
#include "reshard/engine/mover.h"

namespace reshard {

/// What one rank reads at once.
struct Unit {
  std::uint32_t file = 0;
  ByteRange range;
};

/// The pieces of one rank, findable by file and range.
class RankPieces {
 public:
  explicit RankPieces(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const bool fresh = i == 0 || pieces_[i].file != pieces_[i - 1].file;
      const std::uint64_t end = pieces_[i].file_end();
      max_end_.push_back(fresh ? end : std::max(end, max_end_.back()));
    }
  }

  const std::vector<Piece>& all() const { return pieces_; }

  /// Calls `visit(index, piece, window)` for each piece with bytes in the unit; window: source
  /// offsets of the piece that lie in the unit.
  template <typename Visit>
  void ForEachIn(const Unit& unit, const Visit& visit) const {
    const auto first =
        std::lower_bound(pieces_.begin(), pieces_.end(), unit.file,
                         [](const Piece& piece, std::uint32_t file) { return piece.file < file; });
    const auto last =
        std::upper_bound(first, pieces_.end(), unit.file,
                         [](std::uint32_t file, const Piece& piece) { return file < piece.file; });
    const auto ends = max_end_.begin() + (first - pieces_.begin());
    auto i = static_cast<std::size_t>(
        std::upper_bound(ends, ends + (last - first), unit.range.offset) - max_end_.begin());
    for (; i < static_cast<std::size_t>(last - pieces_.begin()); ++i) {
      const Piece& piece = pieces_[i];
      if (piece.file_offset >= unit.range.end()) {
        break;
      }
      if (piece.file_end() > unit.range.offset) {
        const std::uint64_t begin = std::max(piece.file_offset, unit.range.offset);
        const std::uint64_t end = std::min(piece.file_end(), unit.range.end());
        visit(i, piece, ByteRange{begin - piece.file_offset, end - begin});
      }
    }
  }

 private:
  std::vector<Piece> pieces_;
  std::vector<std::uint64_t> max_end_;
};

/// Dense bytes of a piece whose file bytes lie in the window.
ByteRange DenseWindow(const Piece& piece, ByteRange window);

/// The work of an exchange, the same on every rank: a function of catalog and wishes.
class ExchangeUnits {
 public:
  /// Finds each rank's pieces and gives every block that somebody wants, in units of at most
  /// `unit_bytes`, to the least loaded rank that sees its file. Errors: those of FindPieces.
  static Result<ExchangeUnits> Assign(const Catalog& catalog, const ExchangeView& view,
                                      std::uint64_t unit_bytes);

  std::size_t num_ranks() const { return pieces_.size(); }

  /// What a rank wants.
  const RankPieces& pieces(std::size_t rank) const { return pieces_[rank]; }

  /// What it reads, file by file.
  std::span<const Unit> units(std::size_t rank) const { return units_[rank]; }

 private:
  std::vector<Unit> UnitsOf(const Catalog& catalog, std::uint32_t file,
                            std::uint64_t unit_bytes) const;

  std::vector<RankPieces> pieces_;
  std::vector<std::vector<Unit>> units_;
};

}  // namespace reshard
