#include "reshard/engine/data_file_writer.h"

#include <algorithm>

#include "reshard/base/check.h"
#include "reshard/catalog/wire.h"
#include "reshard/codec/crc64.h"
#include "reshard/format/native/catalog_codec.h"
#include "reshard/format/native/names.h"
#include "reshard/storage/staging_buffer.h"

namespace reshard {

DataFileWriter::DataFileWriter(Storage& storage, RankContent content)
    : storage_(storage), content_(std::move(content)), file_(storage) {}

Status DataFileWriter::Write(const PayloadOptions& options) {
  std::vector<PayloadSegment> segments;
  std::vector<native::HeaderEntry> entries;
  std::uint64_t payload_bytes = 0;
  for (const RankChunk& chunk : content_.plan.chunks) {
    const TensorDescription& tensor = content_.description.tensors[chunk.tensor];
    RESHARD_TRY_ASSIGN(PayloadSegment segment, content_.SegmentOf(chunk));
    RESHARD_CHECK(chunk.payload_offset == payload_bytes);
    payload_bytes += segment.num_bytes();
    segments.push_back(std::move(segment));
    entries.push_back({tensor.key, tensor.dtype, tensor.shape, chunk.box, chunk.payload_offset});
  }
  RESHARD_TRY_ASSIGN(const Bytes sample, EncodeFragment(0, {}));
  RESHARD_TRY_ASSIGN(const std::uint64_t payload_offset,
                     native::HeaderSize(entries, sample.size()));
  WriteReport report;
  report.file_name = native::DataFileName(static_cast<std::uint64_t>(content_.global_rank),
                                          content_.info.unique_id, content_.info.attempt);
  report.file_size = payload_offset + content_.plan.payload_bytes;
  report.payload_offset = payload_offset;
  RESHARD_TRY(file_.Create(report.file_name, report.file_size));
  RESHARD_TRY_ASSIGN(PayloadChecksums sums,
                     WritePayload(file_.object(), payload_offset, segments, options));
  report.block_checksums = std::move(sums.blocks);
  report.digest_parts = std::move(sums.digest_parts);
  RESHARD_TRY(WriteHeader(entries, report));
  RESHARD_TRY(file_.Finish(report.file_size));
  reports_.push_back(std::move(report));
  return storage_.SyncNames();
}

/// This file's own catalog entries. Its size does not depend on checksums.
Result<Bytes> DataFileWriter::EncodeFragment(std::uint64_t payload_offset,
                                             const WriteReport& report) const {
  CatalogInfo info = content_.info;
  info.kind = CatalogKind::kFragment;
  CatalogBuilder builder(info);
  const auto rank = static_cast<std::uint64_t>(content_.global_rank);
  std::vector<std::uint64_t> blocks = report.block_checksums;
  blocks.resize((content_.plan.payload_bytes + kBlockBytes - 1) / kBlockBytes);
  builder.AddFile({native::DataFileName(rank, content_.info.unique_id, content_.info.attempt), rank,
                   payload_offset + content_.plan.payload_bytes, payload_offset, 0, 0, true},
                  blocks);
  std::vector<std::size_t> order(content_.plan.chunks.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  std::stable_sort(order.begin(), order.end(), [this](std::size_t a, std::size_t b) {
    return content_.plan.chunks[a].tensor < content_.plan.chunks[b].tensor;
  });
  for (std::size_t i = 0; i < order.size();) {
    const std::uint32_t t = content_.plan.chunks[order[i]].tensor;
    const TensorDescription& tensor = content_.description.tensors[t];
    std::size_t end = i;
    std::uint64_t part = 0;
    for (; end < order.size() && content_.plan.chunks[order[end]].tensor == t; ++end) {
      part ^= report.digest_parts.empty() ? 0 : report.digest_parts[order[end]];
    }
    RESHARD_TRY_ASSIGN(const Path path, DecodeStoredPath(tensor.key, tensor.path));
    builder.AddTensor(tensor.key, path, tensor.dtype, tensor.shape, part);
    for (; i < end; ++i) {
      const RankChunk& chunk = content_.plan.chunks[order[i]];
      builder.AddChunk(chunk.box, 0, payload_offset + chunk.payload_offset);
    }
  }
  for (const ObjectDescription& object : content_.description.objects) {
    RESHARD_TRY_ASSIGN(const Path path, DecodeStoredPath(object.key, object.path));
    builder.AddObject(object.key, path, object.per_rank ? content_.rank : -1, object.value);
  }
  RESHARD_TRY_ASSIGN(const Catalog fragment, std::move(builder).Build());
  return native::EncodeCatalog(fragment);
}

Status DataFileWriter::WriteHeader(std::span<const native::HeaderEntry> entries,
                                   WriteReport& report) {
  RESHARD_TRY_ASSIGN(const Bytes fragment, EncodeFragment(report.payload_offset, report));
  native::Head head;
  head.unique_id = content_.info.unique_id;
  head.attempt = content_.info.attempt;
  head.rank = static_cast<std::uint64_t>(content_.global_rank);
  head.file_size = report.file_size;
  head.payload_offset = report.payload_offset;
  const Bytes header = native::EncodeHeader(entries, head, fragment);
  report.head_checksum = Crc64(ByteSpan(header).first(native::kHeadBytes));
  RESHARD_TRY_ASSIGN(const StagingBuffer aligned, StagingBuffer::Allocate(header.size()));
  std::copy(header.begin(), header.end(), aligned.data());
  return file_.object().WriteAt(0, aligned.span());
}

}  // namespace reshard
