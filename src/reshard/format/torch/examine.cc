// Records of data files, plain and compressed.

#include <fmt/format.h>

#include <algorithm>

#include "reshard/catalog/cbor.h"
#include "reshard/format/torch/assemble_internal.h"
#include "reshard/format/torch/zstd_records.h"

namespace reshard::torch {
namespace {

/// Where a record lies in the decoded file; its bounds are those of frames.
Result<ByteRange> DecodedRange(std::span<const ZstdFrame> frames, ByteRange stored) {
  const auto begin = std::partition_point(
      frames.begin(), frames.end(),
      [&stored](const ZstdFrame& f) { return f.stored.offset < stored.offset; });
  const auto end = std::partition_point(
      begin, frames.end(), [&stored](const ZstdFrame& f) { return f.stored.end() <= stored.end(); });
  if (begin == end || begin->stored.offset != stored.offset ||
      (end - 1)->stored.end() != stored.end()) {
    return MakeError(ErrorCode::kCorruption, kBadZstd,
                     fmt::format("the record at bytes [{}, {}) is no whole zstd frame",
                                 stored.offset, stored.end()));
  }
  return ByteRange{begin->decoded.offset, (end - 1)->decoded.end() - begin->decoded.offset};
}

}  // namespace

FoundRecord ExamineRecord(ByteSource& source, ByteRange bytes, bool value) {
  if (value) {
    const Result<Value> found = ReadValueRecord(source, bytes);
    return found.ok() ? FoundRecord(EncodeObject(*found)) : FoundRecord(found.error());
  }
  Result<TensorRecord> found = ReadTensorRecord(source, bytes);
  return found.ok() ? FoundRecord(std::move(*found)) : FoundRecord(found.error());
}

Result<Bytes> ExamineCompressed(ByteSource& file, std::span<const WantedRecord> records) {
  std::uint64_t most = 0;
  for (const WantedRecord& record : records) {
    most += record.most_decoded;  // at most 2^63 for each: wraps only for lists beyond memory
  }
  RESHARD_TRY_ASSIGN(const std::unique_ptr<ZstdRecords> decoded, ZstdRecords::Open(file, most));
  FoundFile found;
  found.decoded_bytes = decoded->size();
  found.records.reserve(records.size());
  for (const WantedRecord& record : records) {
    const Result<ByteRange> range = DecodedRange(decoded->frames(), record.bytes);
    found.records.push_back(range.ok() ? ExamineRecord(*decoded, *range, record.value)
                                       : FoundRecord(range.error()));
  }
  return EncodeFound(found);
}

}  // namespace reshard::torch
