#include "reshard/engine/shared_mover.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <shared_mutex>
#include <vector>

#include "reshard/base/check.h"
#include "reshard/storage/staging_buffer.h"

namespace reshard {
namespace {

/// Where one piece of a rank goes.
struct Place {
  CopyNest nest;  ///< From the file.
  std::byte* destination = nullptr;
};

/// A rank's memory as the other ranks see it, until it is closed.
class Board {
 public:
  using Visit = std::shared_lock<std::shared_mutex>;

  /// Per piece of the rank. `open`: there is memory behind the places.
  Board(std::vector<Place> places, bool open) : places_(std::move(places)), open_(open) {}

  /// While the visit lasts the memory may be written. Owns no lock: it is closed.
  Visit Enter() {
    Visit visit(gate_);
    if (!open_) {
      visit.unlock();
    }
    return visit;
  }

  /// Waits for the visits to end and lets nobody in any more.
  void Close() {
    open_ = false;
    const std::unique_lock lock(gate_);
  }

  const Place& place(std::size_t piece) const { return places_[piece]; }

 private:
  std::vector<Place> places_;
  std::shared_mutex gate_;
  std::atomic<bool> open_;
};

using BoardPtr = std::shared_ptr<Board>;

class SharedMover {
 public:
  SharedMover(const MoveContext& context, ProcessGroup& group, const ExchangeView& view,
              const ExchangeUnits& work, std::span<const BoxTarget> targets, Status& local)
      : context_(context),
        group_(group),
        view_(view),
        work_(work),
        targets_(targets),
        local_(local),
        me_(static_cast<std::size_t>(group.rank())),
        mine_(std::make_shared<Board>(MakePlaces(), local.ok())) {}

  ~SharedMover() { mine_->Close(); }

  SharedMover(const SharedMover&) = delete;
  SharedMover& operator=(const SharedMover&) = delete;

  Status Run() {
    RESHARD_TRY(Meet());
    Read();
    return group_.Barrier(Wait::kData);
  }

  /// Bytes of this rank's pieces that other ranks read.
  std::uint64_t CountReceived() const {
    std::uint64_t bytes = 0;
    for (std::size_t rank = 0; rank < work_.num_ranks(); ++rank) {
      for (const Unit& unit : work_.units(rank)) {
        if (rank == me_) {
          break;
        }
        work_.pieces(me_).ForEachIn(unit, [&](std::size_t, const Piece& piece, ByteRange window) {
          bytes += DenseWindow(piece, window).size;
        });
      }
    }
    return bytes;
  }

 private:
  std::vector<Place> MakePlaces() const {
    std::vector<Place> places;
    for (const Piece& piece : work_.pieces(me_).all()) {
      const WantedBox& want = view_.wanted[me_][piece.want];
      const BoxTarget& target = targets_[piece.want];
      PlacedNest placed =
          MakePlacedNest(piece, PieceSource::kFile, context_.catalog.dtype(want.tensor), want.box,
                         target.stride_bytes);
      places.push_back({std::move(placed.nest), target.base + placed.offset});
    }
    return places;
  }

  /// Learns the boards of all ranks.
  Status Meet() {
    // A rank that gives this one up may still look at its handle: then the handle stays for good.
    auto handle = std::make_unique<BoardPtr>(mine_);
    const void* const own = handle.get();
    Bytes address(sizeof(own));
    std::memcpy(address.data(), &own, sizeof(own));
    Result<std::vector<Bytes>> told = group_.AllGather(address);
    if (!told.ok()) {
      static_cast<void>(handle.release());
      return tl::unexpected<Error>(std::move(told).error());
    }
    for (const Bytes& message : *told) {
      const void* board = nullptr;
      RESHARD_CHECK(message.size() == sizeof(board));
      std::memcpy(&board, message.data(), sizeof(board));
      boards_.push_back(*static_cast<const BoardPtr*>(board));
    }
    Status met = group_.Barrier();
    if (!met.ok()) {
      static_cast<void>(handle.release());
    }
    return met;
  }

  /// Reads this rank's units; what fails is in local_.
  void Read() {
    const std::span<const Unit> units = work_.units(me_);
    for (const Unit& unit : units) {
      if (local_.ok()) {
        local_ = context_.reader.Open(unit.file);
      }
    }
    if (!local_.ok()) {
      return;
    }
    std::atomic<std::size_t> next = 0;
    TaskGroup reading(context_.pool);
    const std::size_t threads = std::min(context_.pool.size(), units.size());
    for (std::size_t t = 0; t < threads; ++t) {
      reading.Submit([this, units, &next]() -> Status {
        RESHARD_TRY_ASSIGN(const StagingBuffer staging,
                           StagingBuffer::Allocate(BlockReader::kStagingBytes));
        for (std::size_t i = next++; i < units.size(); i = next++) {
          RESHARD_TRY(ReadUnit(units[i], staging.span()));
        }
        return OkStatus();
      });
    }
    local_ = reading.Wait();
  }

  Status ReadUnit(const Unit& unit, MutableByteSpan staging) const {
    std::vector<Board::Visit> visits;
    DeliveryList list;
    for (std::size_t rank = 0; rank < work_.num_ranks(); ++rank) {
      Board::Visit visit;
      work_.pieces(rank).ForEachIn(unit, [&](std::size_t i, const Piece& piece, ByteRange) {
        if (!visit.mutex()) {
          visit = boards_[rank]->Enter();
        }
        if (visit.owns_lock()) {
          const Place& place = boards_[rank]->place(i);
          Delivery delivery;
          delivery.tensor = view_.wanted[rank][piece.want].tensor;
          delivery.file_offset = piece.file_offset;
          delivery.file_end = piece.file_end();
          delivery.nest = &place.nest;
          delivery.destination = place.destination;
          list.Add(delivery);
        }
      });
      visits.push_back(std::move(visit));
    }
    list.Sort();
    RESHARD_TRY(context_.reader.ReadRange(unit.file, unit.range, list, staging));
    return context_.advance(unit.range.size);
  }

  const MoveContext& context_;
  ProcessGroup& group_;
  const ExchangeView& view_;
  const ExchangeUnits& work_;
  std::span<const BoxTarget> targets_;
  Status& local_;
  std::size_t me_;
  BoardPtr mine_;
  std::vector<BoardPtr> boards_;  // per rank
};

}  // namespace

Status MoveShared(const MoveContext& context, ProcessGroup& group, const ExchangeView& view,
                  const ExchangeUnits& work, std::span<const BoxTarget> targets, Status& local,
                  std::uint64_t& received) {
  SharedMover mover(context, group, view, work, targets, local);
  RESHARD_TRY(mover.Run());
  received += mover.CountReceived();
  return OkStatus();
}

}  // namespace reshard
