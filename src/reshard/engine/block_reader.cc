#include "reshard/engine/block_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/codec/crc64.h"
#include "reshard/engine/data_file_opener.h"
#include "reshard/engine/snapshot.h"

namespace reshard {
namespace {

/// A part of a window that belongs to one delivery, in offsets from the delivery's start.
ByteRange Common(const Delivery& delivery, ByteRange window) {
  const std::uint64_t begin = std::max(delivery.file_offset, window.offset);
  const std::uint64_t end = std::min(delivery.file_end, window.end());
  return {begin - delivery.file_offset, end - begin};
}

bool CoversContiguously(const Delivery& delivery, ByteRange window) {
  return delivery.nest->loops.empty() && delivery.file_offset <= window.offset &&
         delivery.file_end >= window.end();
}

}  // namespace

void DeliveryList::Sort() {
  std::stable_sort(
      deliveries_.begin(), deliveries_.end(),
      [](const Delivery& a, const Delivery& b) { return a.file_offset < b.file_offset; });
  std::uint64_t end = 0;
  max_end_.clear();
  for (const Delivery& delivery : deliveries_) {
    end = std::max(end, delivery.file_end);
    max_end_.push_back(end);
  }
}

std::size_t DeliveryList::FirstEndingAfter(std::uint64_t offset) const {
  return static_cast<std::size_t>(std::upper_bound(max_end_.begin(), max_end_.end(), offset) -
                                  max_end_.begin());
}

BlockReader::BlockReader(const Catalog& catalog, Storage& storage, bool verify)
    : catalog_(catalog), storage_(storage), verify_(verify), files_(catalog.files().size()) {}

Status BlockReader::Open(std::uint32_t file) {
  if (files_[file] == nullptr) {
    RESHARD_TRY_ASSIGN(files_[file], OpenDataFile(storage_, catalog_, file));
  }
  return OkStatus();
}

bool BlockReader::Verifies(std::uint32_t file) const {
  return verify_ && catalog_.files()[file].has_blocks;
}

ByteRange BlockReader::WidenToBlocks(std::uint32_t file, ByteRange range) const {
  const FileEntry& entry = catalog_.files()[file];
  const std::uint64_t first = (range.offset - entry.payload_offset) / kBlockBytes;
  const std::uint64_t begin = entry.payload_offset + first * kBlockBytes;
  const std::uint64_t blocks = (range.end() - begin + kBlockBytes - 1) / kBlockBytes;
  return {begin, std::min(entry.size, begin + blocks * kBlockBytes) - begin};
}

Status BlockReader::Read(std::uint32_t file, std::uint64_t offset, MutableByteSpan out) {
  bytes_read_ += out.size();
  return files_[file]->ReadAt(offset, out);
}

Status BlockReader::ReadRange(std::uint32_t file, ByteRange range, const DeliveryList& deliveries,
                              MutableByteSpan staging) {
  const std::uint64_t payload = catalog_.files()[file].payload_offset;
  for (std::uint64_t at = range.offset; at < range.end();) {
    const std::uint64_t edge = payload + ((at - payload) / kBlockBytes + 1) * kBlockBytes;
    const ByteRange window = {at, std::min(edge, range.end()) - at};
    RESHARD_TRY(DeliverWindow(file, window, deliveries, staging));
    at = window.end();
  }
  return OkStatus();
}

Status BlockReader::DeliverWindow(std::uint32_t file, ByteRange window,
                                  const DeliveryList& deliveries, MutableByteSpan staging) {
  const Delivery* only = nullptr;
  std::size_t count = 0;
  bool by_block = false;
  deliveries.ForEachOverlapping(window, [&](const Delivery& delivery) {
    only = &delivery;
    ++count;
    by_block = by_block || delivery.digest == nullptr;
  });
  if (count == 0) {  // a gap between deliveries inside the range
    return OkStatus();
  }
  const bool verifies = Verifies(file);
  const bool fused = count == 1 && CoversContiguously(*only, window);
  const MutableByteSpan data = staging.first(window.size);
  if (fused && !verifies && only->digest == nullptr) {  // nothing looks at the bytes
    return Read(file, window.offset,
                {only->destination + (window.offset - only->file_offset), window.size});
  }
  RESHARD_TRY(Read(file, window.offset, data));
  if (fused) {
    const ByteRange own = Common(*only, window);
    const std::uint64_t linear =
        Crc64LinearCopy(only->destination + own.offset, data.data(), window.size);
    if (only->digest != nullptr) {
      *only->part ^= only->digest->contiguous() ? only->digest->PartFromLinear(own, linear)
                                                : only->digest->Part(own, data.data());
      return OkStatus();
    }
    return verifies ? CheckBlock(file, window, linear, only->tensor) : OkStatus();
  }
  if (by_block && verifies) {
    RESHARD_TRY(CheckBlock(file, window, Crc64Linear(data), only->tensor));
  }
  deliveries.ForEachOverlapping(window, [&](const Delivery& delivery) {
    const ByteRange own = Common(delivery, window);
    const std::byte* bytes = data.data() + (delivery.file_offset + own.offset - window.offset);
    RunCopyWindow(*delivery.nest, own, bytes, delivery.destination);
    if (delivery.digest != nullptr) {
      *delivery.part ^= delivery.digest->Part(own, bytes);
    }
  });
  return OkStatus();
}

Status BlockReader::ReadRuns(std::uint32_t file, const Delivery& delivery,
                             const CopyNest& file_to_dense, std::uint64_t first_run,
                             std::uint64_t last_run, MutableByteSpan staging) {
  const std::uint64_t run_bytes = file_to_dense.run_bytes;
  for (std::uint64_t run = first_run; run < last_run; ++run) {
    std::uint64_t source = 0;
    std::uint64_t rest = run;
    for (auto loop = file_to_dense.loops.rbegin(); loop != file_to_dense.loops.rend(); ++loop) {
      source += rest % loop->count * static_cast<std::uint64_t>(loop->src_stride);
      rest /= loop->count;
    }
    for (std::uint64_t done = 0; done < run_bytes;) {
      const std::uint64_t size = std::min<std::uint64_t>(run_bytes - done, staging.size());
      const MutableByteSpan data = staging.first(size);
      RESHARD_TRY(Read(file, delivery.file_offset + source + done, data));
      RunCopyWindow(*delivery.nest, {source + done, size}, data.data(), delivery.destination);
      if (delivery.digest != nullptr) {
        *delivery.part ^= delivery.digest->Part({run * run_bytes + done, size}, data.data());
      }
      done += size;
    }
  }
  return OkStatus();
}

Status BlockReader::VerifyBlocks(std::uint32_t file, ByteRange range, TensorId tensor,
                                 MutableByteSpan staging) {
  const ByteRange wide = WidenToBlocks(file, range);
  for (std::uint64_t at = wide.offset; at < wide.end(); at += kBlockBytes) {
    const ByteRange window = {at, std::min(kBlockBytes, wide.end() - at)};
    RESHARD_TRY(Read(file, at, staging.first(window.size)));
    RESHARD_TRY(CheckBlock(file, window, Crc64Linear(staging.first(window.size)), tensor));
  }
  return OkStatus();
}

Status BlockReader::CheckBlock(std::uint32_t file, ByteRange window, std::uint64_t linear,
                               TensorId tensor) const {
  const FileEntry& entry = catalog_.files()[file];
  const std::uint64_t block = (window.offset - entry.payload_offset) / kBlockBytes;
  const std::uint64_t found = linear ^ Crc64Constant(window.size);
  const std::uint64_t expected = catalog_.BlockChecksum(file, block).value_or(found);
  if (found == expected) {
    return OkStatus();
  }
  auto error = MakeError(
      ErrorCode::kCorruption, "BLOCK_CHECKSUM",
      fmt::format(
          "{}: bytes [{}, {}), which hold a part of tensor '{}', have checksum {:016x}, the "
          "catalog says {:016x}; {}",
          PlaceOf(storage_, entry.name), window.offset, window.end(), catalog_.key(tensor), found,
          expected, DamageAdvice(catalog_)));
  error.value().data_loss = true;
  return error;
}

}  // namespace reshard
