#pragma once

// Reads ranges of data files block by block, verifies, and delivers what lies in them: the one loop
// that all loading goes through.

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/engine/chunk_digest.h"
#include "reshard/storage/storage.h"
#include "reshard/tensor/strided.h"

namespace reshard {

/// Part of a file that goes somewhere.
struct Delivery {
  TensorId tensor = 0;            ///< For messages.
  std::uint64_t file_offset = 0;  ///< Source offset 0 of the nest.
  std::uint64_t file_end = 0;
  const CopyNest* nest = nullptr;  ///< File -> destination, runs increasing.
  std::byte* destination = nullptr;
  /// Where the part of the tensor's digest is gathered; null: the blocks are checked instead.
  const ChunkDigest* digest = nullptr;
  std::atomic<std::uint64_t>* part = nullptr;
};

/// The deliveries of one file.
class DeliveryList {
 public:
  void Add(const Delivery& delivery) { deliveries_.push_back(delivery); }

  /// Call once after the last Add.
  void Sort();

  bool empty() const { return deliveries_.empty(); }

  const std::vector<Delivery>& all() const { return deliveries_; }

  /// Calls `visit` for each delivery that overlaps the range, by increasing file_offset.
  template <typename Visit>
  void ForEachOverlapping(ByteRange range, const Visit& visit) const {
    for (std::size_t i = FirstEndingAfter(range.offset);
         i < deliveries_.size() && deliveries_[i].file_offset < range.end(); ++i) {
      if (deliveries_[i].file_end > range.offset) {
        visit(deliveries_[i]);
      }
    }
  }

 private:
  std::size_t FirstEndingAfter(std::uint64_t offset) const;

  std::vector<Delivery> deliveries_;
  std::vector<std::uint64_t> max_end_;  // prefix maximum
};

/// Reads for one load. Thread-safe but for Open.
class BlockReader {
 public:
  /// `verify`: check blocks and gather digests. `catalog` and `storage` must outlive the reader.
  BlockReader(const Catalog& catalog, Storage& storage, bool verify);

  /// Opens a file of the catalog, checked by size and head; once is enough. Errors: see
  /// OpenDataFile.
  Status Open(std::uint32_t file);

  bool IsOpen(std::uint32_t file) const { return files_[file] != nullptr; }

  std::uint64_t bytes_read() const { return bytes_read_; }

  /// Bytes that staging must hold.
  static constexpr std::size_t kStagingBytes = kBlockBytes;

  /// Reads the range and delivers. Deliveries without a digest are checked block by block: the
  /// range must then begin and end at block edges. Errors: kCorruption BLOCK_CHECKSUM (names file,
  /// byte range, tensor), and those of ReadAt.
  Status ReadRange(std::uint32_t file, ByteRange range, const DeliveryList& deliveries,
                   MutableByteSpan staging);

  /// Reads only the runs [first_run, last_run) of one gappy delivery, whose dense runs are those of
  /// `file_to_dense`.
  Status ReadRuns(std::uint32_t file, const Delivery& delivery, const CopyNest& file_to_dense,
                  std::uint64_t first_run, std::uint64_t last_run, MutableByteSpan staging);

  /// Says that the range of an open file will be read soon.
  void WillNeed(std::uint32_t file, ByteRange range) { files_[file]->WillNeed(range); }

  /// Checks the blocks that overlap the range, without delivering.
  Status VerifyBlocks(std::uint32_t file, ByteRange range, TensorId tensor,
                      MutableByteSpan staging);

  /// The range widened to block edges.
  ByteRange WidenToBlocks(std::uint32_t file, ByteRange range) const;

  bool verifies() const { return verify_; }

  /// Whether blocks of the file can be checked.
  bool Verifies(std::uint32_t file) const;

 private:
  Status Read(std::uint32_t file, std::uint64_t offset, MutableByteSpan out);
  Status DeliverWindow(std::uint32_t file, ByteRange window, const DeliveryList& deliveries,
                       MutableByteSpan staging);
  Status CheckBlock(std::uint32_t file, ByteRange window, std::uint64_t linear,
                    TensorId tensor) const;

  const Catalog& catalog_;
  Storage& storage_;
  bool verify_;
  std::vector<std::unique_ptr<ReadableObject>> files_;
  std::atomic<std::uint64_t> bytes_read_ = 0;
};

}  // namespace reshard
