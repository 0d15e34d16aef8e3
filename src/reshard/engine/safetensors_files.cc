#include "reshard/engine/safetensors_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "reshard/codec/crc64.h"
#include "reshard/engine/foreign.h"
#include "reshard/format/safetensors/names.h"
#include "reshard/format/safetensors/writer.h"

namespace reshard {

std::string SafetensorsFiles::FileName() const {
  return single()
             ? safetensors::TempName(safetensors::TempKind::kData, content_.info.attempt)
             : safetensors::PartFileName({"model", static_cast<std::uint64_t>(content_.rank) + 1,
                                          content_.info.world_size, content_.info.attempt});
}

/// One file does not replace a set, nor a set one file: readers would have both for a moment.
Status SafetensorsFiles::CheckLayout() const {
  const std::string_view other = single() ? safetensors::kIndexName : safetensors::kSingleName;
  const auto there = storage_.Open(other);
  if (!there.ok() && there.error().code == ErrorCode::kNotFound) {
    return OkStatus();
  }
  return MakeError(
      ErrorCode::kInvalidArgument, "OTHER_LAYOUT",
      fmt::format("{} holds {}, and this save writes {}; save into a directory of its "
                  "own",
                  storage_.description(), other, single() ? "one file" : "one file per rank"));
}

Status SafetensorsFiles::Write(const PayloadOptions& options) {
  RESHARD_TRY(CheckLayout());
  const std::vector<RankChunk>& chunks = content_.plan.chunks;
  std::vector<safetensors::WriteEntry> entries;
  std::vector<PayloadSegment> segments(1);
  for (const RankChunk& chunk : chunks) {
    const TensorDescription& tensor = content_.description.tensors[chunk.tensor];
    entries.push_back({tensor.key, tensor.dtype, tensor.shape});
    RESHARD_TRY_ASSIGN(segments.emplace_back(), content_.SegmentOf(chunk));
  }
  for (const TensorDescription& tensor : content_.description.tensors) {
    if (single() && NumElements(tensor.shape) == 0) {
      entries.push_back({tensor.key, tensor.dtype, tensor.shape});
    }
  }
  RESHARD_TRY_ASSIGN(const Bytes header, safetensors::EncodeHeader(entries));
  segments[0].literal = header;

  WriteReport report;
  report.file_name = FileName();
  report.file_size = header.size();
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    report.chunks.push_back(i);
    report.chunk_offsets.push_back(report.file_size);
    report.file_size += segments[i + 1].num_bytes();
  }
  RESHARD_TRY(file_.Create(report.file_name, report.file_size));
  RESHARD_TRY_ASSIGN(PayloadChecksums sums, WritePayload(file_.object(), 0, segments, options));
  RESHARD_TRY(file_.Finish(report.file_size));
  report.block_checksums = std::move(sums.blocks);
  report.digest_parts = std::move(sums.digest_parts);
  RESHARD_TRY(storage_.SyncNames());
  RESHARD_TRY(ReadBack(report));
  reports_.push_back(std::move(report));
  return OkStatus();
}

/// What the index has to say of the file, as readers will see it.
Status SafetensorsFiles::ReadBack(WriteReport& report) const {
  RESHARD_TRY_ASSIGN(const std::unique_ptr<ReadableObject> object, storage_.Open(report.file_name));
  report.mtime_ns = object->mtime_ns();
  if (single()) {
    Bytes head(std::min(kFingerprintHeadBytes, report.file_size));
    RESHARD_TRY(object->ReadAt(0, head));
    report.head_checksum = Crc64(head);
  }
  return OkStatus();
}

void SafetensorsFiles::Keep() {
  file_.Keep();
  if (single() && !reports_.empty()) {
    reports_[0].file_name = safetensors::kSingleName;
  }
}

}  // namespace reshard
