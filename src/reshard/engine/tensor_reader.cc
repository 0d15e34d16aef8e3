#include "reshard/engine/tensor_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/engine/load_request.h"
#include "reshard/tensor/strided.h"

namespace reshard {

/// A file that is open, read through a BlockReader of its own.
struct TensorReader::OpenFile {
  OpenFile(const Catalog& catalog, Storage& storage, bool verify,
           std::atomic<std::uint64_t>& closed_bytes)
      : reader(catalog, storage, verify), total(closed_bytes) {}

  ~OpenFile() { total += reader.bytes_read(); }

  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  Mutex mutex;
  bool opened RESHARD_GUARDED_BY(mutex) = false;
  BlockReader reader;
  std::atomic<std::uint64_t>& total;
};

/// A verified block; whoever needs it first reads it while the others wait.
struct TensorReader::CachedBlock {
  Mutex mutex;
  bool ready RESHARD_GUARDED_BY(mutex) = false;
  Bytes bytes RESHARD_GUARDED_BY(mutex);
};

/// A staging buffer that goes back to the reader.
class TensorReader::Lease {
 public:
  explicit Lease(TensorReader& owner) : owner_(owner) {}

  ~Lease() {
    if (buffer_.size() > 0) {
      MutexLock lock(owner_.mutex_);
      owner_.staging_.push_back(std::move(buffer_));
    }
  }

  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  Status Take() {
    {
      MutexLock lock(owner_.mutex_);
      if (!owner_.staging_.empty()) {
        buffer_ = std::move(owner_.staging_.back());
        owner_.staging_.pop_back();
        return OkStatus();
      }
    }
    RESHARD_TRY_ASSIGN(buffer_, StagingBuffer::Allocate(BlockReader::kStagingBytes));
    return OkStatus();
  }

  MutableByteSpan span() const { return buffer_.span(); }

 private:
  TensorReader& owner_;
  StagingBuffer buffer_;
};

TensorReader::TensorReader(const Catalog& catalog, Storage& storage,
                           const TensorReaderOptions& options)
    : catalog_(catalog), storage_(storage), options_(options) {}

TensorReader::~TensorReader() {
  MutexLock lock(mutex_);
  file_places_.clear();
  files_.clear();  // while the sum that they add to is there
}

std::uint64_t TensorReader::bytes_read() const {
  MutexLock lock(mutex_);
  std::uint64_t bytes = closed_bytes_;
  for (const auto& entry : files_) {
    bytes += entry.second->reader.bytes_read();
  }
  return bytes;
}

Status TensorReader::ReadBox(TensorId tensor, const Box& box, MutableByteSpan out) {
  const DType dtype = catalog_.dtype(tensor);
  RESHARD_TRY(CheckBox(box, catalog_.shape(tensor), dtype));
  if (const std::uint64_t bytes = NumBytes(box, dtype); bytes != out.size()) {
    return MakeError(ErrorCode::kInvalidArgument, "BAD_VIEW",
                     fmt::format("tensor '{}': the box {} has {} bytes, the memory {}",
                                 catalog_.key(tensor), ToString(box), bytes, out.size()));
  }
  if (out.empty()) {
    return OkStatus();
  }
  const WantedBox want = {tensor, box};
  RESHARD_TRY_ASSIGN(const std::vector<Piece> pieces, FindPieces(catalog_, {&want, 1}));
  Lease lease(*this);
  RESHARD_TRY(lease.Take());
  for (const Piece& piece : pieces) {
    RESHARD_TRY(ReadPiece(want, piece, out, lease.span()));
  }
  return OkStatus();
}

Status TensorReader::ReadPiece(const WantedBox& want, const Piece& piece, MutableByteSpan out,
                               MutableByteSpan staging) {
  RESHARD_TRY_ASSIGN(const std::shared_ptr<OpenFile> file, Open(piece.file));
  const DType dtype = catalog_.dtype(want.tensor);
  const std::vector<std::int64_t> strides =
      DenseStrideBytes(ToUnits(want.box, dtype).extent, Info(dtype).unit_bytes);
  const PlacedNest placed = MakePlacedNest(piece, PieceSource::kFile, dtype, want.box, strides);
  Delivery delivery;
  delivery.tensor = want.tensor;
  delivery.file_offset = piece.file_offset;
  delivery.file_end = piece.file_end();
  delivery.nest = &placed.nest;
  delivery.destination = out.data() + placed.offset;
  DeliveryList list;
  list.Add(delivery);
  list.Sort();
  const PieceRead read = {piece, file->reader, list, staging};
  return file->reader.Verifies(piece.file) ? ReadVerified(read) : ReadUnverified(read);
}

Result<std::shared_ptr<TensorReader::OpenFile>> TensorReader::Open(std::uint32_t file) {
  std::shared_ptr<OpenFile> out;
  FileList closed;  // outlives the lock: closing takes time
  {
    MutexLock lock(mutex_);
    if (const auto place = file_places_.find(file); place != file_places_.end()) {
      files_.splice(files_.begin(), files_, place->second);
    } else {
      files_.emplace_front(
          file, std::make_shared<OpenFile>(catalog_, storage_, options_.verify, closed_bytes_));
      file_places_[file] = files_.begin();
      if (files_.size() > std::max<std::size_t>(1, options_.open_files)) {
        file_places_.erase(files_.back().first);
        closed.splice(closed.begin(), files_, std::prev(files_.end()));
      }
    }
    out = files_.front().second;
  }
  MutexLock lock(out->mutex);
  if (!out->opened) {
    RESHARD_TRY(out->reader.Open(file));
    out->opened = true;
  }
  return out;
}

Status TensorReader::ReadUnverified(const PieceRead& read) {
  Status status;
  ForEachFileRange(read.piece, kMinRunBytes, [&](ByteRange range) {
    if (status.ok()) {
      status = read.reader.ReadRange(read.piece.file, range, read.list, read.staging);
    }
  });
  return status;
}

Status TensorReader::ReadVerified(const PieceRead& read) {
  Status status;
  std::uint64_t done = 0;  // blocks that begin before it were delivered
  ForEachFileRange(read.piece, kBlockBytes, [&](ByteRange range) {
    const ByteRange wide = read.reader.WidenToBlocks(read.piece.file, range);
    const std::uint64_t begin = std::max(wide.offset, done);
    if (status.ok() && begin < wide.end()) {
      status = ReadBlocks(read, {begin, wide.end() - begin});
      done = wide.end();
    }
  });
  return status;
}

/// Reads whole blocks: those that the piece cuts through the cache, since the box beside this one
/// is likely to need them, the others directly.
Status TensorReader::ReadBlocks(const PieceRead& read, ByteRange blocks) {
  const Piece& piece = read.piece;
  const std::uint64_t end = blocks.end();
  std::uint64_t begin = blocks.offset;
  if (begin < piece.file_offset) {
    const std::uint64_t size = std::min(kBlockBytes, end - begin);
    RESHARD_TRY(DeliverCached(read, {begin, size}));
    begin += size;
  }
  std::uint64_t inner_end = end;
  if (end > piece.file_end() && begin < end) {
    inner_end = begin + (end - begin - 1) / kBlockBytes * kBlockBytes;
  }
  if (begin < inner_end) {
    RESHARD_TRY(
        read.reader.ReadRange(piece.file, {begin, inner_end - begin}, read.list, read.staging));
  }
  return inner_end < end ? DeliverCached(read, {inner_end, end - inner_end}) : OkStatus();
}

Status TensorReader::DeliverCached(const PieceRead& read, ByteRange block) {
  const Delivery& delivery = read.list.all().front();
  const std::shared_ptr<CachedBlock> cached = FindCached(read.piece.file, block.offset);
  MutexLock lock(cached->mutex);
  if (!cached->ready) {
    cached->bytes.resize(block.size);
    const CopyNest whole = {block.size, {}};
    Delivery keep;
    keep.tensor = delivery.tensor;
    keep.file_offset = block.offset;
    keep.file_end = block.end();
    keep.nest = &whole;
    keep.destination = cached->bytes.data();
    DeliveryList list;
    list.Add(keep);
    list.Sort();
    RESHARD_TRY(read.reader.ReadRange(read.piece.file, block, list, read.staging));
    cached->ready = true;
  }
  const std::uint64_t begin = std::max(delivery.file_offset, block.offset);
  const std::uint64_t end = std::min(delivery.file_end, block.end());
  RunCopyWindow(*delivery.nest, {begin - delivery.file_offset, end - begin},
                cached->bytes.data() + (begin - block.offset), delivery.destination);
  return OkStatus();
}

std::shared_ptr<TensorReader::CachedBlock> TensorReader::FindCached(std::uint32_t file,
                                                                    std::uint64_t offset) {
  const BlockKey key = {file, offset};
  MutexLock lock(mutex_);
  if (const auto place = block_places_.find(key); place != block_places_.end()) {
    blocks_.splice(blocks_.begin(), blocks_, place->second);
    return blocks_.front().second;
  }
  blocks_.emplace_front(key, std::make_shared<CachedBlock>());
  block_places_[key] = blocks_.begin();
  if (blocks_.size() > std::max<std::size_t>(1, options_.cached_blocks)) {
    block_places_.erase(blocks_.back().first);
    blocks_.pop_back();
  }
  return blocks_.front().second;
}

}  // namespace reshard
