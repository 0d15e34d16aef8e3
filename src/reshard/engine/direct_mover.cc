#include <algorithm>
#include <atomic>
#include <memory>

#include "reshard/engine/mover.h"
#include "reshard/storage/staging_buffer.h"

namespace reshard {
namespace {

/// Bytes of one unit of work: large enough to read in sequence, small enough to spread.
constexpr std::uint64_t kWorkBytes = 16 * kBlockBytes;

/// Units of work that the store is told of before they are read.
constexpr std::size_t kAhead = 8;

/// One unit of work.
struct Work {
  std::uint32_t file = 0;
  ByteRange range;                    // to read whole, when `runs_of` is null
  const Delivery* runs_of = nullptr;  // else runs of this delivery
  const CopyNest* file_to_dense = nullptr;
  std::uint64_t first_run = 0;
  std::uint64_t last_run = 0;
  std::uint64_t bytes = 0;
};

class DirectMover {
 public:
  DirectMover(const MoveContext& context, std::span<const WantedBox> wanted,
              std::span<const BoxTarget> targets)
      : context_(context), wanted_(wanted), targets_(targets) {}

  Status Run() {
    RESHARD_TRY_ASSIGN(pieces_, FindPieces(context_.catalog, wanted_));
    std::vector<Verification> how;
    for (const BoxTarget& target : targets_) {
      how.push_back(target.digest_part != nullptr ? Verification::kDigest
                    : context_.reader.verifies()  ? Verification::kBlocks
                                                  : Verification::kNone);
    }
    plan_ = PlanReads(context_.catalog, pieces_, how);
    RESHARD_TRY(OpenFiles());
    MakeDeliveries();
    MakeWork();
    return RunWork();
  }

 private:
  Status OpenFiles() {
    for (const Piece& piece : pieces_) {
      RESHARD_TRY(context_.reader.Open(piece.file));
    }
    return OkStatus();
  }

  void MakeDeliveries() {
    lists_.resize(context_.catalog.files().size());
    nests_.reserve(pieces_.size());
    digests_.reserve(pieces_.size());
    std::vector<bool> by_runs(pieces_.size(), false);
    for (const std::size_t i : plan_.run_pieces) {
      by_runs[i] = true;
    }
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const Piece& piece = pieces_[i];
      const TensorId tensor = wanted_[piece.want].tensor;
      const DType dtype = context_.catalog.dtype(tensor);
      const BoxTarget& target = targets_[piece.want];
      nests_.push_back(MakePlacedNest(piece, PieceSource::kFile, dtype, wanted_[piece.want].box,
                                      target.stride_bytes));
      Delivery delivery;
      delivery.tensor = tensor;
      delivery.file_offset = piece.file_offset;
      delivery.file_end = piece.file_end();
      delivery.nest = &nests_.back().nest;
      delivery.destination = target.base + nests_.back().offset;
      if (target.digest_part != nullptr) {
        digests_.push_back(
            std::make_unique<ChunkDigest>(piece.box, context_.catalog.shape(tensor), dtype));
        delivery.digest = digests_.back().get();
        delivery.part = target.digest_part;
      }
      if (by_runs[i]) {
        run_deliveries_.push_back(std::make_unique<Delivery>(delivery));
      } else {
        lists_[piece.file].Add(delivery);
      }
    }
    for (DeliveryList& list : lists_) {
      list.Sort();
    }
  }

  void MakeWork() {
    for (std::uint32_t file = 0; file < lists_.size(); ++file) {
      const std::uint64_t payload = context_.catalog.files()[file].payload_offset;
      for (const ByteRange& extent : plan_.extents[file]) {
        for (std::uint64_t at = extent.offset; at < extent.end();) {
          const std::uint64_t edge = payload + ((at - payload) / kWorkBytes + 1) * kWorkBytes;
          const std::uint64_t size = std::min(edge, extent.end()) - at;
          work_.push_back({file, {at, size}, nullptr, nullptr, 0, 0, size});
          at += size;
        }
      }
    }
    for (std::size_t i = 0; i < plan_.run_pieces.size(); ++i) {
      const Piece& piece = pieces_[plan_.run_pieces[i]];
      const std::uint64_t runs = piece.file_to_dense.num_runs();
      const std::uint64_t run_bytes = piece.file_to_dense.run_bytes;
      const std::uint64_t step = std::max<std::uint64_t>(1, kWorkBytes / run_bytes);
      for (std::uint64_t run = 0; run < runs; run += step) {
        const std::uint64_t last = std::min(runs, run + step);
        work_.push_back({piece.file,
                         {},
                         run_deliveries_[i].get(),
                         &piece.file_to_dense,
                         run,
                         last,
                         (last - run) * run_bytes});
      }
    }
  }

  Status RunWork() {
    const std::size_t threads = std::min(context_.pool.size(), work_.size());
    TaskGroup group(context_.pool);
    std::atomic<std::size_t> next = 0;
    std::atomic<bool> failed = false;
    for (std::size_t i = 0; i < kAhead; ++i) {
      Announce(i);
    }
    for (std::size_t t = 0; t < threads; ++t) {
      group.Submit([&]() -> Status {
        RESHARD_TRY_ASSIGN(const StagingBuffer staging,
                           StagingBuffer::Allocate(BlockReader::kStagingBytes));
        for (std::size_t i = next++; i < work_.size() && !failed; i = next++) {
          Announce(i + kAhead);
          Status status = RunOne(work_[i], staging.span());
          if (!status.ok()) {
            failed = true;
            return status;
          }
        }
        return OkStatus();
      });
    }
    return group.Wait();
  }

  /// Lets the store begin with a unit of work that comes soon: reading in small windows leaves a
  /// disk idle otherwise.
  void Announce(std::size_t index) {
    if (index < work_.size() && work_[index].runs_of == nullptr) {
      context_.reader.WillNeed(work_[index].file, work_[index].range);
    }
  }

  Status RunOne(const Work& work, MutableByteSpan staging) {
    if (work.runs_of != nullptr) {
      RESHARD_TRY(context_.reader.ReadRuns(work.file, *work.runs_of, *work.file_to_dense,
                                           work.first_run, work.last_run, staging));
    } else {
      RESHARD_TRY(context_.reader.ReadRange(work.file, work.range, lists_[work.file], staging));
    }
    return context_.advance(work.bytes);
  }

  const MoveContext& context_;
  std::span<const WantedBox> wanted_;
  std::span<const BoxTarget> targets_;
  std::vector<Piece> pieces_;
  ReadPlan plan_;
  std::vector<PlacedNest> nests_;  // reserved: deliveries point into it
  std::vector<std::unique_ptr<ChunkDigest>> digests_;
  std::vector<std::unique_ptr<Delivery>> run_deliveries_;
  std::vector<DeliveryList> lists_;
  std::vector<Work> work_;
};

}  // namespace

Status MoveDirectly(const MoveContext& context, std::span<const WantedBox> wanted,
                    std::span<const BoxTarget> targets) {
  return DirectMover(context, wanted, targets).Run();
}

}  // namespace reshard
