#pragma once

// Reads boxes of tensors, one at a time, from an open checkpoint: for programs that go through a
// checkpoint piece by piece (conversion, export) instead of loading a state dict.
//
// Blocks of a file with checksums are verified whole. A block that a box cuts is kept for a while,
// so that boxes which follow each other read it once; this holds across threads too.
//
// Thread-safety: all methods from any thread.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "reshard/base/bytes.h"
#include "reshard/base/mutex.h"
#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/catalog/pieces.h"
#include "reshard/engine/block_reader.h"
#include "reshard/storage/staging_buffer.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// Choices of a TensorReader.
struct TensorReaderOptions {
  bool verify = true;  ///< Check every block that is read, where the file has checksums.
  std::size_t cached_blocks = 32;  ///< Blocks kept, of kBlockBytes each; at least 1.
  std::size_t open_files = 256;    ///< Files kept open; at least 1.
};

/// Reads from one checkpoint.
class TensorReader {
 public:
  /// `catalog` and `storage` must outlive the reader.
  TensorReader(const Catalog& catalog, Storage& storage, const TensorReaderOptions& options = {});
  ~TensorReader();
  TensorReader(const TensorReader&) = delete;
  TensorReader& operator=(const TensorReader&) = delete;

  /// Reads a box of a tensor of the catalog into row-major memory. On an error `out` is
  /// unspecified.
  ///
  /// `box`  within the tensor's shape, in elements; an empty one reads nothing.
  /// `out`  exactly the bytes of the box.
  /// Errors: kInvalidArgument those of CheckBox, BAD_VIEW (size of `out`); kCorruption
  ///         BLOCK_CHECKSUM, COVERAGE, OVERLAP; those of OpenDataFile and ReadAt; kUnavailable
  ///         NO_MEMORY.
  /// Cost: one read per block that the box touches (per range of bytes, where there are no
  ///       checksums); memory for two blocks per call.
  Status ReadBox(TensorId tensor, const Box& box, MutableByteSpan out);

  /// Bytes read from storage so far, but for what opening a file costs.
  std::uint64_t bytes_read() const;

  const Catalog& catalog() const { return catalog_; }

 private:
  struct OpenFile;
  struct CachedBlock;
  class Lease;

  /// What one piece is read with.
  struct PieceRead {
    const Piece& piece;
    BlockReader& reader;
    const DeliveryList& list;  // one delivery
    MutableByteSpan staging;
  };

  Result<std::shared_ptr<OpenFile>> Open(std::uint32_t file);
  Status ReadPiece(const WantedBox& want, const Piece& piece, MutableByteSpan out,
                   MutableByteSpan staging);
  static Status ReadUnverified(const PieceRead& read);
  Status ReadVerified(const PieceRead& read);
  Status ReadBlocks(const PieceRead& read, ByteRange blocks);
  Status DeliverCached(const PieceRead& read, ByteRange block);
  std::shared_ptr<CachedBlock> FindCached(std::uint32_t file, std::uint64_t offset);

  const Catalog& catalog_;
  Storage& storage_;
  const TensorReaderOptions options_;
  std::atomic<std::uint64_t> closed_bytes_ = 0;  // read from files that were closed meanwhile

  mutable Mutex mutex_;
  using FileList = std::list<std::pair<std::uint32_t, std::shared_ptr<OpenFile>>>;
  FileList files_ RESHARD_GUARDED_BY(mutex_);  // the last used one first
  std::map<std::uint32_t, FileList::iterator> file_places_ RESHARD_GUARDED_BY(mutex_);
  using BlockKey = std::pair<std::uint32_t, std::uint64_t>;  // file, offset in it
  using BlockList = std::list<std::pair<BlockKey, std::shared_ptr<CachedBlock>>>;
  BlockList blocks_ RESHARD_GUARDED_BY(mutex_);  // the last used one first
  std::map<BlockKey, BlockList::iterator> block_places_ RESHARD_GUARDED_BY(mutex_);
  std::vector<StagingBuffer> staging_ RESHARD_GUARDED_BY(mutex_);  // not in use
};

}  // namespace reshard
