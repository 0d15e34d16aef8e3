#include "reshard/engine/paddle_files.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "reshard/format/paddle/names.h"

namespace reshard {
namespace {

/// The name of a tensor in Paddle's name table: the last part of its path. Paddle has internal
/// names there, which do not matter on loading.
Result<std::string> TableName(const TensorDescription& tensor) {
  RESHARD_TRY_ASSIGN(const Path path, DecodeStoredPath(tensor.key, tensor.path));
  return FlatKey({path.back()});
}

}  // namespace

Status PaddleFiles::Write(const PayloadOptions& options) {
  const std::vector<std::vector<std::size_t>> parts = Parts();
  for (std::size_t part = 0; part < parts.size(); ++part) {
    RESHARD_TRY(WritePart(part, parts[part], options));
  }
  return FinishFiles();
}

/// Positions of chunks by file: the n-th piece of a tensor goes into the n-th file.
std::vector<std::vector<std::size_t>> PaddleFiles::Parts() const {
  std::vector<std::vector<std::size_t>> parts;
  std::unordered_map<std::uint32_t, std::size_t> pieces;
  for (std::size_t i = 0; i < content().plan.chunks.size(); ++i) {
    const std::size_t part = pieces[content().plan.chunks[i].tensor]++;
    parts.resize(std::max(parts.size(), part + 1));
    parts[part].push_back(i);
  }
  return parts;
}

Status PaddleFiles::WritePart(std::size_t part, const std::vector<std::size_t>& chunks,
                              const PayloadOptions& options) {
  std::vector<std::string> names;
  for (const std::size_t i : chunks) {
    const RankChunk& chunk = content().plan.chunks[i];
    RESHARD_TRY_ASSIGN(names.emplace_back(),
                       TableName(content().description.tensors[chunk.tensor]));
  }
  std::vector<paddle::ArrayEntry> arrays;
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    const RankChunk& chunk = content().plan.chunks[chunks[c]];
    const TensorDescription& tensor = content().description.tensors[chunk.tensor];
    arrays.push_back({tensor.key, names[c], tensor.dtype, chunk.box.extent});
  }
  const paddle::DataFileLayout layout = paddle::LayOutDataFile(arrays);
  std::vector<PayloadSegment> segments;
  for (std::size_t c = 0; c <= chunks.size(); ++c) {
    PayloadSegment& literal = segments.emplace_back();
    literal.literal = layout.Literal(c);
    if (c < chunks.size()) {
      RESHARD_TRY_ASSIGN(segments.emplace_back(),
                         content().SegmentOf(content().plan.chunks[chunks[c]]));
    }
  }
  WriteReport report;
  report.file_name = paddle::DataFileName(static_cast<std::uint64_t>(content().global_rank), part,
                                          content().info.unique_id, content().info.attempt);
  report.file_size = layout.file_size;
  report.chunks.assign(chunks.begin(), chunks.end());
  report.chunk_offsets = layout.payload_offsets;
  return WriteFile(std::move(report), segments, options);
}

}  // namespace reshard
