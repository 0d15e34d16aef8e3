#include <algorithm>
#include <atomic>
#include <memory>

#include "reshard/engine/message.h"
#include "reshard/engine/mover.h"
#include "reshard/storage/staging_buffer.h"

namespace reshard {
namespace {

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
ByteRange DenseWindow(const Piece& piece, ByteRange window) {
  const std::uint64_t begin = NestBytesBefore(piece.file_to_dense, window.offset);
  return {begin, NestBytesBefore(piece.file_to_dense, window.end()) - begin};
}

class ExchangeMover {
 public:
  ExchangeMover(const MoveContext& context, ProcessGroup& group, const ExchangeView& view,
                std::span<const BoxTarget> targets, Status& local)
      : context_(context),
        group_(group),
        view_(view),
        targets_(targets),
        local_(local),
        ranks_(static_cast<std::size_t>(group.size())),
        me_(static_cast<std::size_t>(group.rank())) {}

  Status Run(std::uint64_t& received) {
    if (Status found = FindAllPieces(); !found.ok()) {
      local_ = std::move(found);  // on every rank: a function of catalog and wishes
      return OkStatus();
    }
    AssignUnits();
    PlaceOwn();
    const std::size_t rounds = CountRounds();
    // Tasks refer to their round while it is read, so rounds stay where they are.
    std::unique_ptr<Round> now = rounds > 0 ? Read(0) : nullptr;
    for (std::size_t r = 0; r < rounds; ++r) {
      FinishReading(*now);
      std::unique_ptr<Round> next = r + 1 < rounds ? Read(r + 1) : nullptr;
      Status moved = SendAndPlace(r, *now, received);
      if (!moved.ok()) {
        if (next != nullptr) {
          FinishReading(*next);
        }
        KeepForGood(std::move(now->send));
        return moved;
      }
      spare_ = std::move(now->send);
      now = std::move(next);
    }
    return OkStatus();
  }

 private:
  struct Round {
    std::vector<Unit> units;
    std::vector<Bytes> send;  // per rank; may be longer than the message
    std::vector<std::uint64_t> send_bytes;
    std::vector<std::unique_ptr<DeliveryList>> lists;  // per unit
    std::unique_ptr<TaskGroup> reading;
    std::atomic<std::size_t> next = 0;
  };

  /// Buffers are kept from round to round: fresh memory costs as much as the copying.
  static void Grow(Bytes& buffer, std::uint64_t size) {
    if (buffer.size() < size) {
      buffer.resize(size);
    }
  }

  Status FindAllPieces() {
    for (const auto& wanted : view_.wanted) {
      RESHARD_TRY_ASSIGN(std::vector<Piece> pieces, FindPieces(context_.catalog, wanted));
      pieces_.emplace_back(std::move(pieces));
    }
    return OkStatus();
  }

  /// Every block that somebody wants, once, in units given to the least loaded rank that sees the
  /// file.
  void AssignUnits() {
    unit_bytes_ = std::clamp<std::uint64_t>(view_.round_bytes / kBlockBytes, 1, 16) * kBlockBytes;
    units_.resize(ranks_);
    std::vector<std::uint64_t> load(ranks_, 0);
    for (std::uint32_t file = 0; file < context_.catalog.files().size(); ++file) {
      for (const Unit& unit : UnitsOf(file)) {
        std::size_t best = ranks_;
        for (std::size_t rank = 0; rank < ranks_; ++rank) {
          if (view_.sees[rank][file] && (best == ranks_ || load[rank] < load[best])) {
            best = rank;
          }
        }
        if (best < ranks_) {  // nobody: reported before the load began
          load[best] += unit.range.size;
          units_[best].push_back(unit);
        }
      }
    }
  }

  std::vector<Unit> UnitsOf(std::uint32_t file) const {
    const FileEntry& entry = context_.catalog.files()[file];
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
                         units.back().range.size + range.size <= unit_bytes_;
      if (joins) {
        units.back().range.size += range.size;
      } else {
        units.push_back({file, range});
      }
    }
    return units;
  }

  /// Nests that take this rank's pieces from files and from messages to its memory.
  void PlaceOwn() {
    for (const Piece& piece : pieces_[me_].all()) {
      const WantedBox& want = view_.wanted[me_][piece.want];
      const DType dtype = context_.catalog.dtype(want.tensor);
      const auto& strides = targets_[piece.want].stride_bytes;
      from_file_.push_back(MakePlacedNest(piece, PieceSource::kFile, dtype, want.box, strides));
      from_dense_.push_back(MakePlacedNest(piece, PieceSource::kDense, dtype, want.box, strides));
    }
  }

  std::uint64_t UnitsPerRound() const {
    const std::uint64_t share = view_.round_bytes / ranks_;
    return std::max<std::uint64_t>(1, share / unit_bytes_);
  }

  std::size_t CountRounds() const {
    std::size_t most = 0;
    for (const auto& units : units_) {
      most = std::max(most, units.size());
    }
    return (most + UnitsPerRound() - 1) / UnitsPerRound();
  }

  std::span<const Unit> UnitsInRound(std::size_t rank, std::size_t round) const {
    const std::size_t begin = std::min(units_[rank].size(), round * UnitsPerRound());
    const std::size_t end = std::min(units_[rank].size(), begin + UnitsPerRound());
    return std::span(units_[rank]).subspan(begin, end - begin);
  }

  /// Starts to read this rank's units of a round; own pieces go straight to their memory.
  std::unique_ptr<Round> Read(std::size_t round) {
    auto owned = std::make_unique<Round>();
    Round& out = *owned;
    const std::span<const Unit> units = UnitsInRound(me_, round);
    out.units.assign(units.begin(), units.end());
    out.send = std::move(spare_);
    out.send.resize(ranks_);
    PlaceSends(out);
    out.reading = std::make_unique<TaskGroup>(context_.pool);
    for (const Unit& unit : out.units) {
      if (local_.ok()) {
        local_ = context_.reader.Open(unit.file);
      }
    }
    const std::size_t threads = std::min(context_.pool.size(), out.units.size());
    for (std::size_t t = 0; local_.ok() && t < threads; ++t) {
      out.reading->Submit([this, &out] { return ReadUnits(out); });
    }
    return owned;
  }

  /// Sizes the messages and says where each unit's bytes go.
  void PlaceSends(Round& out) {
    std::vector<std::uint64_t> size(ranks_, 0);
    for (const Unit& unit : out.units) {
      for (std::size_t rank = 0; rank < ranks_; ++rank) {
        if (rank != me_) {
          pieces_[rank].ForEachIn(unit, [&](std::size_t, const Piece& piece, ByteRange window) {
            size[rank] += DenseWindow(piece, window).size;
          });
        }
      }
    }
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      Grow(out.send[rank], size[rank]);
    }
    out.send_bytes = std::move(size);
    std::vector<std::uint64_t> at(ranks_, 0);
    for (const Unit& unit : out.units) {
      auto list = std::make_unique<DeliveryList>();
      for (std::size_t rank = 0; rank < ranks_; ++rank) {
        pieces_[rank].ForEachIn(unit, [&](std::size_t i, const Piece& piece, ByteRange window) {
          Delivery delivery;
          delivery.tensor = view_.wanted[rank][piece.want].tensor;
          delivery.file_offset = piece.file_offset;
          delivery.file_end = piece.file_end();
          if (rank == me_) {
            delivery.nest = &from_file_[i].nest;
            delivery.destination = targets_[piece.want].base + from_file_[i].offset;
          } else {
            const ByteRange dense = DenseWindow(piece, window);
            delivery.nest = &piece.file_to_dense;
            // The nest counts dense bytes from the piece's start.
            delivery.destination = out.send[rank].data() + at[rank] - dense.offset;
            at[rank] += dense.size;
          }
          list->Add(delivery);
        });
      }
      list->Sort();
      out.lists.push_back(std::move(list));
    }
  }

  Status ReadUnits(Round& out) {
    RESHARD_TRY_ASSIGN(const StagingBuffer staging,
                       StagingBuffer::Allocate(BlockReader::kStagingBytes));
    for (std::size_t i = out.next++; i < out.units.size(); i = out.next++) {
      const Unit& unit = out.units[i];
      RESHARD_TRY(context_.reader.ReadRange(unit.file, unit.range, *out.lists[i], staging.span()));
      RESHARD_TRY(context_.advance(unit.range.size));
    }
    return OkStatus();
  }

  void FinishReading(Round& round) {
    Status status = round.reading->Wait();
    if (local_.ok()) {
      local_ = std::move(status);
    }
  }

  Status SendAndPlace(std::size_t r, const Round& round, std::uint64_t& received) {
    std::vector<std::uint64_t> sizes(ranks_, 0);
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      if (rank == me_) {
        continue;
      }
      for (const Unit& unit : UnitsInRound(rank, r)) {
        pieces_[me_].ForEachIn(unit, [&](std::size_t, const Piece& piece, ByteRange window) {
          sizes[rank] += DenseWindow(piece, window).size;
        });
      }
    }
    received_.resize(ranks_);
    std::vector<ByteSpan> send(ranks_);
    std::vector<MutableByteSpan> receive(ranks_);
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      Grow(received_[rank], sizes[rank]);
      receive[rank] = MutableByteSpan(received_[rank]).first(sizes[rank]);
      send[rank] = ByteSpan(round.send[rank]).first(round.send_bytes[rank]);
      received += sizes[rank];
    }
    const auto place = [this, r](int from, ByteSpan message) {
      if (local_.ok()) {  // else there may be no memory behind the targets, and nobody looks at it
        Place(UnitsInRound(static_cast<std::size_t>(from), r), message);
      }
    };
    Status moved = group_.AllToAllTake(send, receive, place);
    if (!moved.ok()) {
      KeepForGood(std::move(received_));
    }
    return moved;
  }

  /// Takes what another rank read of its units to this rank's memory.
  void Place(std::span<const Unit> units, ByteSpan message) const {
    const std::byte* at = message.data();
    for (const Unit& unit : units) {
      pieces_[me_].ForEachIn(unit, [&](std::size_t i, const Piece& piece, ByteRange window) {
        const ByteRange dense = DenseWindow(piece, window);
        RunCopyWindow(from_dense_[i].nest, dense, at,
                      targets_[piece.want].base + from_dense_[i].offset);
        at += dense.size;
      });
    }
  }

  const MoveContext& context_;
  ProcessGroup& group_;
  const ExchangeView& view_;
  std::span<const BoxTarget> targets_;
  Status& local_;
  std::size_t ranks_;
  std::size_t me_;
  std::uint64_t unit_bytes_ = 0;
  std::vector<RankPieces> pieces_;        // per rank
  std::vector<std::vector<Unit>> units_;  // per rank
  std::vector<PlacedNest> from_file_;     // per own piece
  std::vector<PlacedNest> from_dense_;
  std::vector<Bytes> spare_;     // send buffers of the round before
  std::vector<Bytes> received_;  // per rank; may be longer than the message
};

}  // namespace

Status MoveByExchange(const MoveContext& context, ProcessGroup& group, const ExchangeView& view,
                      std::span<const BoxTarget> targets, Status& local, std::uint64_t& received) {
  return ExchangeMover(context, group, view, targets, local).Run(received);
}

}  // namespace reshard
