#include "reshard/engine/torch_files.h"

#include "reshard/catalog/cbor.h"
#include "reshard/format/torch/names.h"
#include "reshard/format/torch/writer.h"

namespace reshard {
namespace {

void Append(Bytes& out, ByteSpan bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); }

}  // namespace

Result<std::vector<Bytes>> TorchObjectRecords(std::span<const MergedObject> objects) {
  std::vector<Bytes> records;
  records.reserve(objects.size());
  for (const MergedObject& merged : objects) {
    RESHARD_TRY_ASSIGN(const Value value, DecodeObject(merged.object.value));
    records.push_back(torch::EncodeObjectRecord(value));
  }
  return records;
}

Status TorchFiles::Write(const PayloadOptions& options) {
  const std::vector<RankChunk>& chunks = content().plan.chunks;
  torch::FileLayout layout;
  std::vector<Bytes> literals(1);  // one before each payload, one at the end
  literals.reserve(chunks.size() + 1);
  RESHARD_TRY_ASSIGN(const std::vector<Bytes> objects, TorchObjectRecords(content().objects));
  for (const Bytes& record : objects) {
    layout.AddObject(record.size());
    Append(literals.back(), record);
  }
  WriteReport report;
  for (const RankChunk& chunk : chunks) {
    const DType dtype = content().description.tensors[chunk.tensor].dtype;
    const torch::EncodedTensor record = torch::EncodeTensorRecord(dtype, chunk.box.extent);
    const std::uint64_t end = layout.size();
    const ByteRange range = layout.AddTensor(record);
    literals.back().resize(literals.back().size() + (range.offset - end));
    Append(literals.back(), record.head);
    literals.push_back(record.tail);
    report.chunks.push_back(report.chunks.size());
    report.chunk_offsets.push_back(range.offset + record.head.size());
  }
  std::vector<PayloadSegment> segments;
  segments.reserve(literals.size() + chunks.size());
  for (std::size_t i = 0; i < literals.size(); ++i) {
    segments.emplace_back().literal = literals[i];
    if (i < chunks.size()) {
      RESHARD_TRY_ASSIGN(segments.emplace_back(), content().SegmentOf(chunks[i]));
    }
  }
  report.file_name = torch::DataFileName(static_cast<std::uint64_t>(content().global_rank), 0,
                                         content().info.attempt);
  report.file_size = layout.size();
  RESHARD_TRY(WriteFile(std::move(report), segments, options));
  return FinishFiles();
}

}  // namespace reshard
