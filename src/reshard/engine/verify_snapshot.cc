#include "reshard/engine/verify_snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <memory>
#include <set>

#include "reshard/base/mutex.h"
#include "reshard/codec/crc64.h"
#include "reshard/engine/chunk_digest.h"
#include "reshard/engine/data_file_opener.h"
#include "reshard/engine/fragment_check.h"
#include "reshard/engine/key_pattern.h"
#include "reshard/format/native/data_file.h"
#include "reshard/storage/staging_buffer.h"

namespace reshard {
namespace {

/// Blocks of one unit of work: enough to read in sequence, few enough to spread.
constexpr std::uint64_t kWorkBlocks = 16;
constexpr std::size_t kMostKeys = 4;

/// A block whose checksum is wrong.
struct BadBlock {
  std::uint64_t block = 0;
  std::uint64_t found = 0;
};

/// What is known of a file while it is read.
struct FileState {
  Mutex mutex;
  bool opened RESHARD_GUARDED_BY(mutex) = false;
  std::unique_ptr<ReadableObject> object RESHARD_GUARDED_BY(mutex);  // null: cannot be read
  std::vector<VerifyFault> faults RESHARD_GUARDED_BY(mutex);
  std::vector<BadBlock> bad_blocks RESHARD_GUARDED_BY(mutex);
  std::atomic<std::size_t> work_left = 0;  // the file is closed at 0
  bool head_is_good RESHARD_GUARDED_BY(mutex) = false;
};

/// The header of a file, or some of its blocks.
struct Work {
  std::uint32_t file = 0;
  bool header = false;
  std::uint64_t first = 0;
  std::uint64_t last = 0;
};

class SnapshotVerifier {
 public:
  /// With `record`, what is found is recorded there instead of being compared.
  SnapshotVerifier(const Catalog& catalog, Storage& storage, const VerifyOptions& options,
                   ThreadPool& pool, SnapshotVerdict& verdict, StoredChecksums* record = nullptr)
      : record_(record),
        catalog_(catalog),
        storage_(storage),
        options_(options),
        pool_(pool),
        verdict_(verdict),
        chunks_(ChunksByFile(catalog)),
        wanted_(catalog.num_tensors()),
        stored_wanted_(catalog.num_tensors()),
        parts_(catalog.num_tensors()),
        unread_(catalog.num_tensors()),
        files_(catalog.files().size()) {}

  Status Run() {
    SelectTensors();
    CheckCoverage();
    MakeWork();
    RESHARD_TRY(RunWork());
    for (std::uint32_t file = 0; file < files_.size(); ++file) {
      CollectFaults(file);
    }
    CheckDigests();
    return OkStatus();
  }

 private:
  void SelectTensors() {
    for (TensorId tensor = 0; tensor < catalog_.num_tensors(); ++tensor) {
      if (MatchesAnyKey(options_.keys, catalog_.key(tensor))) {
        wanted_[tensor] = true;
        stored_wanted_[catalog_.alias_of(tensor)] = true;
        ++verdict_.tensors;
      }
    }
  }

  void CheckCoverage() {
    for (TensorId tensor = 0; tensor < catalog_.num_tensors(); ++tensor) {
      if (!wanted_[tensor]) {
        continue;
      }
      if (Status status = catalog_.CheckCoverage(tensor); !status.ok()) {
        verdict_.faults.push_back(
            {std::move(status).error(), "", std::nullopt, {std::string(catalog_.key(tensor))}, 1});
        unread_[catalog_.alias_of(tensor)] = true;  // its digest cannot be right either
      }
    }
  }

  /// Which blocks of a file hold wanted bytes.
  std::vector<bool> WantedBlocks(std::uint32_t file) const {
    const FileEntry& entry = catalog_.files()[file];
    if (!entry.has_blocks && record_ == nullptr) {
      return {};
    }
    std::vector<bool> blocks(entry.num_blocks(), options_.keys.empty());
    for (const PlacedChunk& chunk : chunks_[file]) {
      if (!options_.keys.empty() && stored_wanted_[chunk.tensor]) {
        const std::uint64_t first = (chunk.offset - entry.payload_offset) / kBlockBytes;
        const std::uint64_t last = (chunk.end - 1 - entry.payload_offset) / kBlockBytes;
        std::fill(blocks.begin() + static_cast<std::ptrdiff_t>(first),
                  blocks.begin() + static_cast<std::ptrdiff_t>(last) + 1, true);
      }
    }
    return blocks;
  }

  void MakeWork() {
    for (std::uint32_t file = 0; file < files_.size(); ++file) {
      const std::vector<bool> blocks = WantedBlocks(file);
      const std::size_t begin = work_.size();
      for (std::uint64_t first = 0; first < blocks.size();) {
        std::uint64_t last = first;
        while (last < blocks.size() && blocks[last] && last - first < kWorkBlocks) {
          verdict_.bytes += catalog_.files()[file].Block(last).size;
          ++last;
        }
        if (last > first) {
          verdict_.blocks += last - first;
          work_.push_back({file, false, first, last});
        }
        first = std::max(last, first + 1);
      }
      if (work_.size() > begin || options_.keys.empty()) {
        ++verdict_.files;
        work_.insert(work_.begin() + static_cast<std::ptrdiff_t>(begin), {file, true, 0, 0});
        files_[file] = std::make_unique<FileState>();
        files_[file]->work_left = work_.size() - begin;
      }
    }
    progress_.bytes_total = verdict_.bytes;
  }

  Status RunWork() {
    TaskGroup group(pool_);
    std::atomic<std::size_t> next = 0;
    std::atomic<bool> failed = false;
    for (std::size_t t = 0; t < std::min(pool_.size(), work_.size()); ++t) {
      group.Submit([&]() -> Status {
        RESHARD_TRY_ASSIGN(const StagingBuffer staging, StagingBuffer::Allocate(kBlockBytes));
        for (std::size_t i = next++; i < work_.size() && !failed; i = next++) {
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

  Status RunOne(const Work& work, MutableByteSpan staging) {
    FileState& state = *files_[work.file];
    ReadableObject* object = nullptr;
    bool head_is_good = false;
    {
      MutexLock lock(state.mutex);
      if (!state.opened) {
        Open(work.file, state);
      }
      object = state.object.get();
      head_is_good = state.head_is_good;
    }
    Status status;
    if (work.header) {
      if (object != nullptr && head_is_good) {
        CheckHeader(work.file, *object);
      }
    } else {
      status = CheckBlocks(work, object, staging);
    }
    if (--state.work_left == 0) {
      MutexLock lock(state.mutex);
      state.object.reset();
    }
    return status;
  }

  /// Opens, and checks size and head; what is wrong does not keep the rest from being read.
  void Open(std::uint32_t file, FileState& state) RESHARD_REQUIRES(state.mutex) {
    state.opened = true;
    const FileEntry& entry = catalog_.files()[file];
    const bool foreign = catalog_.info().kind == CatalogKind::kIndex;
    Result<std::unique_ptr<ReadableObject>> object =
        foreign ? OpenDataFile(storage_, catalog_, file) : storage_.Open(entry.name);
    if (!object.ok()) {
      state.faults.push_back({std::move(object).error(), entry.name, std::nullopt, {}, 0});
      return;
    }
    state.object = std::move(*object);
    if (foreign) {
      return;  // its size is right; there is no head
    }
    if (state.object->size() != entry.size) {
      state.faults.push_back(
          {Corrupt("FILE_SIZE", fmt::format("{}: the file has {} bytes, the catalog says {}",
                                            entry.name, state.object->size(), entry.size)),
           entry.name,
           std::nullopt,
           {},
           0});
    }
    const std::uint64_t head_bytes = std::min(native::kHeadBytes, entry.size);
    if (state.object->size() < head_bytes) {
      return;
    }
    std::array<std::byte, native::kHeadBytes> head;
    const MutableByteSpan bytes = MutableByteSpan(head).first(head_bytes);
    const ByteRange range = {0, head_bytes};
    if (Status read = state.object->ReadAt(0, bytes); !read.ok()) {
      state.faults.push_back({std::move(read).error(), entry.name, range, {}, 0});
    } else if (Crc64(bytes) != entry.head_checksum) {
      state.faults.push_back(
          {Corrupt("FILE_HEAD",
                   fmt::format("{}: its first {} bytes are not those that the catalog records; it "
                               "is damaged, or the file of another save",
                               entry.name, head_bytes)),
           entry.name,
           range,
           {},
           0});
    } else {
      state.head_is_good = true;
    }
  }

  void CheckHeader(std::uint32_t file, ReadableObject& object) {
    const FileEntry& entry = catalog_.files()[file];
    if (entry.payload_offset > object.size()) {
      return;  // FILE_SIZE says so
    }
    const ByteRange range = {0, entry.payload_offset};
    if (entry.payload_offset > native::kMaxHeaderBytes + native::kHeadBytes) {
      AddFault(file, range,
               Corrupt("BAD_HEAD", fmt::format("{}: a header of {} bytes is too long", entry.name,
                                               entry.payload_offset)));
      return;
    }
    Bytes header(entry.payload_offset);
    Status status = object.ReadAt(0, header);
    if (status.ok()) {
      status = CheckFragment(catalog_, file, chunks_[file], header);
    }
    if (!status.ok()) {
      AddFault(file, range, std::move(status).error());
    }
  }

  Status CheckBlocks(const Work& work, ReadableObject* object, MutableByteSpan staging) {
    const FileEntry& entry = catalog_.files()[work.file];
    for (std::uint64_t block = work.first; block < work.last; ++block) {
      const ByteRange range = entry.Block(block);
      if (object == nullptr || range.end() > object->size() ||
          !CheckBlock(work.file, block, range, *object, staging.first(range.size))) {
        ForEachChunk(work.file, range, [this](const PlacedChunk& c) { unread_[c.tensor] = true; });
      }
      RESHARD_TRY(Advance(range.size));
    }
    return OkStatus();
  }

  /// False when the block's bytes are not to be trusted.
  bool CheckBlock(std::uint32_t file, std::uint64_t block, ByteRange range, ReadableObject& object,
                  MutableByteSpan data) {
    if (Status read = object.ReadAt(range.offset, data); !read.ok()) {
      AddFault(file, range, std::move(read).error());
      return false;
    }
    const std::uint64_t linear = Crc64Linear(data);
    const std::uint64_t found = linear ^ Crc64Constant(range.size);
    if (record_ != nullptr) {
      record_->blocks[file][block] = found;
    } else if (found != catalog_.BlockChecksum(file, block).value_or(found)) {
      FileState& state = *files_[file];
      MutexLock lock(state.mutex);
      state.bad_blocks.push_back({block, found});
      return false;
    }
    ForEachChunk(file, range,
                 [&](const PlacedChunk& placed) { AddPart(placed, range, data.data(), linear); });
    return true;
  }

  /// Adds what the block's bytes contribute to the tensor's digest.
  void AddPart(const PlacedChunk& placed, ByteRange range, const std::byte* data,
               std::uint64_t block_linear) {
    const Chunk chunk = catalog_.chunk(placed.tensor, placed.index);
    if (chunk.order != ChunkOrder::kRowMajor) {
      unread_[placed.tensor] = true;  // digests are of row-major bytes
      return;
    }
    const ChunkDigest digest(chunk.box, catalog_.shape(placed.tensor),
                             catalog_.dtype(placed.tensor));
    const std::uint64_t begin = std::max(placed.offset, range.offset);
    const std::uint64_t end = std::min(placed.end, range.end());
    const ByteRange own = {begin - placed.offset, end - begin};
    const bool whole_block = own.size == range.size && digest.contiguous();
    parts_[placed.tensor] ^= whole_block ? digest.PartFromLinear(own, block_linear)
                                         : digest.Part(own, data + (begin - range.offset));
  }

  template <typename Visit>
  void ForEachChunk(std::uint32_t file, ByteRange range, const Visit& visit) const {
    const std::vector<PlacedChunk>& chunks = chunks_[file];
    auto at = std::partition_point(chunks.begin(), chunks.end(), [&](const PlacedChunk& chunk) {
      return chunk.end <= range.offset;
    });
    for (; at != chunks.end() && at->offset < range.end(); ++at) {
      visit(*at);
    }
  }

  static Error Corrupt(std::string_view reason, std::string message) {
    return {ErrorCode::kCorruption, std::string(reason), std::move(message), false, true};
  }

  void AddFault(std::uint32_t file, ByteRange range, Error error) {
    FileState& state = *files_[file];
    MutexLock lock(state.mutex);
    state.faults.push_back({std::move(error), catalog_.files()[file].name, range, {}, 0});
  }

  Status Advance(std::uint64_t bytes) {
    if (!options_.progress) {
      return OkStatus();
    }
    MutexLock lock(progress_mutex_);
    progress_.bytes_done += bytes;
    try {
      return options_.progress(progress_);
    } catch (const std::exception& e) {
      return MakeError(ErrorCode::kCancelled, "CALLBACK",
                       fmt::format("the progress callback threw: {}", e.what()));
    }
  }

  /// The faults of a file in the order of its bytes, damaged blocks in a row as one.
  void CollectFaults(std::uint32_t file) {
    if (files_[file] == nullptr) {
      return;
    }
    FileState& state = *files_[file];
    MutexLock lock(state.mutex);
    std::vector<VerifyFault>& faults = state.faults;
    std::vector<BadBlock>& bad = state.bad_blocks;
    std::sort(bad.begin(), bad.end(),
              [](const BadBlock& a, const BadBlock& b) { return a.block < b.block; });
    for (std::size_t i = 0; i < bad.size();) {
      std::size_t last = i + 1;
      while (last < bad.size() && bad[last].block == bad[last - 1].block + 1) {
        ++last;
      }
      faults.push_back(BlockFault(file, bad[i], last - i));
      i = last;
    }
    std::stable_sort(faults.begin(), faults.end(), [](const VerifyFault& a, const VerifyFault& b) {
      return a.range.value_or(ByteRange{}).offset < b.range.value_or(ByteRange{}).offset;
    });
    for (VerifyFault& fault : faults) {
      NameTensors(file, fault);
      verdict_.faults.push_back(std::move(fault));
    }
  }

  VerifyFault BlockFault(std::uint32_t file, const BadBlock& bad, std::uint64_t count) const {
    const FileEntry& entry = catalog_.files()[file];
    const ByteRange first = entry.Block(bad.block);
    const ByteRange range = {first.offset, entry.Block(bad.block + count - 1).end() - first.offset};
    std::string what =
        count == 1 ? fmt::format("have checksum {:016x}, the catalog says {:016x}", bad.found,
                                 catalog_.BlockChecksum(file, bad.block).value_or(0))
                   : fmt::format("are damaged: {} blocks with wrong checksums", count);
    return {Corrupt("BLOCK_CHECKSUM", fmt::format("{}: bytes [{}, {}) {}", entry.name, range.offset,
                                                  range.end(), what)),
            entry.name,
            range,
            {},
            0};
  }

  void NameTensors(std::uint32_t file, VerifyFault& fault) const {
    const ByteRange range = fault.range.value_or(ByteRange{0, catalog_.files()[file].size});
    std::set<TensorId> seen;
    ForEachChunk(file, range, [&](const PlacedChunk& chunk) {
      if (seen.insert(chunk.tensor).second && fault.keys.size() < kMostKeys) {
        fault.keys.emplace_back(catalog_.key(chunk.tensor));
      }
    });
    fault.num_keys = seen.size();
  }

  /// Tensors whose blocks are all whole must have the digest that the catalog records.
  void CheckDigests() {
    if (record_ != nullptr) {
      RecordDigests();
      return;
    }
    for (TensorId tensor = 0; tensor < catalog_.num_tensors(); ++tensor) {
      const TensorId stored = catalog_.alias_of(tensor);
      const std::optional<std::uint64_t> expected = catalog_.digest(tensor);
      if (!wanted_[tensor] || unread_[stored] || !expected) {
        continue;
      }
      ++verdict_.digests;
      const std::uint64_t found = parts_[stored] ^ Crc64Constant(catalog_.num_bytes(stored));
      if (found != *expected) {
        const std::string key(catalog_.key(tensor));
        verdict_.faults.push_back(
            {Corrupt("TENSOR_DIGEST",
                     fmt::format("tensor '{}': its bytes have digest {:016x}, the catalog says "
                                 "{:016x}, though all blocks are whole: it was written wrongly",
                                 key, found, *expected)),
             "",
             std::nullopt,
             {key},
             1});
      }
    }
  }

  void RecordDigests() {
    for (TensorId tensor = 0; tensor < catalog_.num_tensors(); ++tensor) {
      const TensorId stored = catalog_.alias_of(tensor);
      if (!unread_[stored]) {
        const std::uint64_t bytes = catalog_.num_bytes(stored);
        record_->digests[tensor] = bytes == 0 ? 0 : parts_[stored] ^ Crc64Constant(bytes);
      }
    }
  }

  StoredChecksums* record_;
  const Catalog& catalog_;
  Storage& storage_;
  const VerifyOptions& options_;
  ThreadPool& pool_;
  SnapshotVerdict& verdict_;
  std::vector<std::vector<PlacedChunk>> chunks_;  // per file
  std::vector<bool> wanted_;
  std::vector<bool> stored_wanted_;                // of aliases the tensor that is stored
  std::vector<std::atomic<std::uint64_t>> parts_;  // per tensor: linear part of what was read
  std::vector<std::atomic<bool>> unread_;          // per tensor: some of its bytes are missing
  std::vector<std::unique_ptr<FileState>> files_;  // null: not needed
  std::vector<Work> work_;
  Mutex progress_mutex_;
  Progress progress_;
};

}  // namespace

Status VerifySnapshot(const Catalog& catalog, Storage& storage, const VerifyOptions& options,
                      ThreadPool& pool, SnapshotVerdict& verdict) {
  return SnapshotVerifier(catalog, storage, options, pool, verdict).Run();
}

Result<StoredChecksums> TakeChecksums(const Catalog& catalog, Storage& storage,
                                      const VerifyOptions& options, ThreadPool& pool) {
  StoredChecksums out;
  for (const FileEntry& file : catalog.files()) {
    out.blocks.emplace_back(file.num_blocks());
  }
  out.digests.resize(catalog.num_tensors());
  SnapshotVerdict verdict;
  RESHARD_TRY(SnapshotVerifier(catalog, storage, options, pool, verdict, &out).Run());
  if (!verdict.faults.empty()) {
    return tl::unexpected<Error>(verdict.faults.front().error);
  }
  return out;
}

}  // namespace reshard
