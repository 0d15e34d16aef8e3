#include <algorithm>
#include <atomic>
#include <memory>

#include "reshard/engine/exchange_units.h"
#include "reshard/engine/message.h"
#include "reshard/engine/mover.h"
#include "reshard/engine/shared_mover.h"
#include "reshard/storage/staging_buffer.h"

namespace reshard {
namespace {

/// By messages, in rounds.
class RoundMover {
 public:
  RoundMover(const MoveContext& context, ProcessGroup& group, const ExchangeView& view,
             const ExchangeUnits& work, std::uint64_t unit_bytes,
             std::span<const BoxTarget> targets, Status& local)
      : context_(context),
        group_(group),
        view_(view),
        work_(work),
        unit_bytes_(unit_bytes),
        targets_(targets),
        local_(local),
        ranks_(static_cast<std::size_t>(group.size())),
        me_(static_cast<std::size_t>(group.rank())) {}

  Status Run(std::uint64_t& received) {
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

  /// Nests that take this rank's pieces from files and from messages to its memory.
  void PlaceOwn() {
    for (const Piece& piece : work_.pieces(me_).all()) {
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
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      most = std::max(most, work_.units(rank).size());
    }
    return (most + UnitsPerRound() - 1) / UnitsPerRound();
  }

  std::span<const Unit> UnitsInRound(std::size_t rank, std::size_t round) const {
    const std::span<const Unit> units = work_.units(rank);
    const std::size_t begin = std::min(units.size(), round * UnitsPerRound());
    const std::size_t end = std::min(units.size(), begin + UnitsPerRound());
    return units.subspan(begin, end - begin);
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
          work_.pieces(rank).ForEachIn(unit,
                                       [&](std::size_t, const Piece& piece, ByteRange window) {
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
        work_.pieces(rank).ForEachIn(
            unit, [&](std::size_t i, const Piece& piece, ByteRange window) {
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
        work_.pieces(me_).ForEachIn(unit, [&](std::size_t, const Piece& piece, ByteRange window) {
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
    Status moved = group_.AllToAllV(send, receive);
    if (!moved.ok()) {
      KeepForGood(std::move(received_));
      return moved;
    }
    if (!local_.ok()) {  // there may be no memory behind the targets, and nobody will look at it
      return OkStatus();
    }
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      std::uint64_t at = 0;
      for (const Unit& unit : UnitsInRound(rank, r)) {
        if (rank == me_) {
          break;
        }
        work_.pieces(me_).ForEachIn(unit, [&](std::size_t i, const Piece& piece, ByteRange window) {
          const ByteRange dense = DenseWindow(piece, window);
          RunCopyWindow(from_dense_[i].nest, dense, received_[rank].data() + at,
                        targets_[piece.want].base + from_dense_[i].offset);
          at += dense.size;
        });
      }
    }
    return OkStatus();
  }

  const MoveContext& context_;
  ProcessGroup& group_;
  const ExchangeView& view_;
  const ExchangeUnits& work_;
  std::uint64_t unit_bytes_;
  std::span<const BoxTarget> targets_;
  Status& local_;
  std::size_t ranks_;
  std::size_t me_;
  std::vector<PlacedNest> from_file_;  // per own piece
  std::vector<PlacedNest> from_dense_;
  std::vector<Bytes> spare_;     // send buffers of the round before
  std::vector<Bytes> received_;  // per rank; may be longer than the message
};

}  // namespace

Status MoveByExchange(const MoveContext& context, ProcessGroup& group, const ExchangeView& view,
                      std::span<const BoxTarget> targets, Status& local, std::uint64_t& received) {
  const std::uint64_t unit_bytes =
      std::clamp<std::uint64_t>(view.round_bytes / kBlockBytes, 1, 16) * kBlockBytes;
  const Result<ExchangeUnits> work = ExchangeUnits::Assign(context.catalog, view, unit_bytes);
  if (!work.ok()) {
    local = tl::unexpected<Error>(work.error());  // on every rank
    return OkStatus();
  }
  if (group.shares_memory()) {
    return MoveShared(context, group, view, *work, targets, local, received);
  }
  return RoundMover(context, group, view, *work, unit_bytes, targets, local).Run(received);
}

}  // namespace reshard
