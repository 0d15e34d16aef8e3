#include "reshard/engine/data_file_writer.h"

#include <algorithm>

#include "reshard/base/check.h"
#include "reshard/catalog/wire.h"
#include "reshard/codec/crc64.h"
#include "reshard/format/native/catalog_codec.h"
#include "reshard/format/native/names.h"
#include "reshard/storage/staging_buffer.h"

namespace reshard {

DataFileWriter::DataFileWriter(Storage& storage, DataFileContent content)
    : storage_(storage), content_(std::move(content)) {}

Status DataFileWriter::Write(const PayloadOptions& options) {
  const auto& tensors = content_.description.tensors;
  std::vector<PayloadSegment> segments;
  std::vector<native::HeaderEntry> entries;
  std::uint64_t payload_bytes = 0;
  for (const RankChunk& chunk : content_.plan.chunks) {
    const TensorDescription& tensor = tensors[chunk.tensor];
    const TensorShard* shard = FindShard(chunk);
    if (shard == nullptr) {
      return BadMessage("plan names a box that this rank does not hold");
    }
    RESHARD_CHECK(chunk.payload_offset == payload_bytes);
    payload_bytes += NumBytes(chunk.box, tensor.dtype);
    segments.push_back({tensor.key, shard, tensor.dtype, tensor.shape, chunk.box, {}});
    entries.push_back({tensor.key, tensor.dtype, tensor.shape, chunk.box, chunk.payload_offset});
  }
  RESHARD_TRY_ASSIGN(const Bytes sample, EncodeFragment(0, {}));
  RESHARD_TRY_ASSIGN(const std::uint64_t payload_offset,
                     native::HeaderSize(entries, sample.size()));
  const std::uint64_t file_size = payload_offset + content_.plan.payload_bytes;
  const std::string name = native::DataFileName(static_cast<std::uint64_t>(content_.global_rank),
                                                content_.info.unique_id, content_.info.attempt);
  Result<std::unique_ptr<WritableObject>> created = storage_.Create(name, {file_size, false});
  if (!created.ok()) {
    met_stray_ = created.error().reason == "FILE_EXISTS";
    return tl::unexpected<Error>(std::move(created).error());
  }
  file_ = std::move(*created);
  report_.file_name = name;
  RESHARD_TRY_ASSIGN(PayloadChecksums sums,
                     WritePayload(*file_, payload_offset, segments, options));
  report_.file_size = file_size;
  report_.payload_offset = payload_offset;
  report_.block_checksums = std::move(sums.blocks);
  report_.digest_parts = std::move(sums.digest_parts);
  RESHARD_TRY(WriteHeader(entries));
  may_stay_ = true;
  RESHARD_TRY(file_->Finish(file_size));
  return storage_.SyncNames();
}

const TensorShard* DataFileWriter::FindShard(const RankChunk& chunk) const {
  const Tensor* tensor = TensorOf(chunk.tensor);
  for (const TensorShard& shard : tensor->shards) {
    if (Contains(shard.box, chunk.box)) {
      return &shard;
    }
  }
  return nullptr;
}

/// The leaf of the i-th tensor description (objects lie between them).
const Tensor* DataFileWriter::TensorOf(std::uint32_t index) const {
  const std::string& key = content_.description.tensors[index].key;
  const auto leaf =
      std::lower_bound(content_.leaves.begin(), content_.leaves.end(), key,
                       [](const FlatEntry& entry, const std::string& k) { return entry.key < k; });
  return leaf->leaf->get_if<Tensor>();
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

Status DataFileWriter::WriteHeader(std::span<const native::HeaderEntry> entries) {
  RESHARD_TRY_ASSIGN(const Bytes fragment, EncodeFragment(report_.payload_offset, report_));
  native::Head head;
  head.unique_id = content_.info.unique_id;
  head.attempt = content_.info.attempt;
  head.rank = static_cast<std::uint64_t>(content_.global_rank);
  head.file_size = report_.file_size;
  head.payload_offset = report_.payload_offset;
  const Bytes header = native::EncodeHeader(entries, head, fragment);
  report_.head_checksum = Crc64(ByteSpan(header).first(native::kHeadBytes));
  RESHARD_TRY_ASSIGN(const StagingBuffer aligned, StagingBuffer::Allocate(header.size()));
  std::copy(header.begin(), header.end(), aligned.data());
  return file_->WriteAt(0, aligned.span());
}

void DataFileWriter::Keep() { file_.reset(); }

void DataFileWriter::Discard() {
  // A failed Finish may have taken effect. The name goes before the object does: afterwards it
  // could be another writer's.
  if (may_stay_) {
    static_cast<void>(storage_.Remove(report_.file_name).ok());
    may_stay_ = false;
  }
  file_.reset();
}

}  // namespace reshard
