#include "reshard/engine/load_request.h"

#include <algorithm>

#include "reshard/catalog/wire.h"

namespace reshard {
namespace {

/// Cuts `box` into parts of at most `limit` bytes (single units apart) that follow each other in
/// row-major order.
void CutContiguously(const Box& box, DType dtype, std::uint64_t limit, std::vector<Box>& out) {
  const std::uint64_t bytes = NumBytes(box, dtype);
  std::size_t axis = 0;
  while (axis < box.extent.size() && box.extent[axis] == 1) {
    ++axis;
  }
  if (bytes <= limit || axis == box.extent.size()) {
    out.push_back(box);
    return;
  }
  const bool last = axis + 1 == box.extent.size();
  const std::uint64_t unit = last ? Info(dtype).unit_elements : 1;
  const std::uint64_t unit_bytes = bytes / (box.extent[axis] / unit);
  const std::uint64_t step = std::max<std::uint64_t>(1, limit / unit_bytes) * unit;
  for (std::uint64_t begin = 0; begin < box.extent[axis]; begin += step) {
    Box part = box;
    part.offset[axis] += begin;
    part.extent[axis] = std::min(step, box.extent[axis] - begin);
    if (part.extent[axis] == unit && !last) {
      CutContiguously(part, dtype, limit, out);
    } else {
      out.push_back(std::move(part));
    }
  }
}

void MergeExtents(std::vector<ByteRange>& extents) {
  std::sort(extents.begin(), extents.end(),
            [](const ByteRange& a, const ByteRange& b) { return a.offset < b.offset; });
  std::vector<ByteRange> merged;
  for (const ByteRange& range : extents) {
    if (!merged.empty() && range.offset <= merged.back().end() + kMinRunBytes) {
      merged.back().size = std::max(merged.back().end(), range.end()) - merged.back().offset;
    } else {
      merged.push_back(range);
    }
  }
  extents = std::move(merged);
}

ByteRange WidenToBlocks(const FileEntry& file, ByteRange range) {
  const std::uint64_t begin = (range.offset - file.payload_offset) / kBlockBytes * kBlockBytes;
  const std::uint64_t end = range.end() - file.payload_offset;
  const std::uint64_t wide = (end + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  return {file.payload_offset + begin, std::min(file.size - file.payload_offset, wide) - begin};
}

}  // namespace

std::vector<LoadStep> DivideIntoSteps(const Catalog& catalog, std::span<const LoadRequest> requests,
                                      std::uint64_t phase_bytes) {
  std::vector<LoadStep> steps;
  for (std::uint32_t i = 0; i < requests.size(); ++i) {
    if (!requests[i].staged) {
      steps.push_back({i, 0, requests[i].box});
    }
  }
  std::uint32_t phase = 0;
  std::uint64_t room = 0;
  std::vector<Box> parts;
  for (std::uint32_t i = 0; i < requests.size(); ++i) {
    if (!requests[i].staged) {
      continue;
    }
    const DType dtype = catalog.dtype(requests[i].tensor);
    parts.clear();
    CutContiguously(requests[i].box, dtype, std::max<std::uint64_t>(phase_bytes / 4, 1), parts);
    for (Box& part : parts) {
      const std::uint64_t bytes = NumBytes(part, dtype);
      if (bytes > room) {
        ++phase;
        room = std::max(bytes, phase_bytes);
      }
      room -= bytes;
      steps.push_back({i, phase, std::move(part)});
    }
  }
  return steps;
}

Bytes EncodeLoadRequests(std::span<const LoadRequest> requests) {
  Bytes out;
  AppendLittle(out, static_cast<std::uint32_t>(requests.size()));
  for (const LoadRequest& request : requests) {
    AppendLittle(out, static_cast<std::uint64_t>(request.tensor));
    out.push_back(static_cast<std::byte>((request.staged ? 1 : 0) | (request.can_digest ? 2 : 0)));
    AppendNumbers(out, request.box.offset);
    AppendNumbers(out, request.box.extent);
  }
  return out;
}

Result<std::vector<LoadRequest>> DecodeLoadRequests(ByteSpan bytes, const Catalog& catalog) {
  WireReader reader(bytes);
  std::uint32_t count = 0;
  if (!reader.Read(count)) {
    return BadMessage("load requests");
  }
  std::vector<LoadRequest> out;
  for (std::uint32_t i = 0; i < count; ++i) {
    std::uint64_t tensor = 0;
    std::uint8_t flags = 0;
    if (!reader.Read(tensor) || !reader.Read(flags) || tensor >= catalog.num_tensors()) {
      return BadMessage("load requests");
    }
    LoadRequest request;
    request.tensor = tensor;
    request.staged = (flags & 1) != 0;
    request.can_digest = (flags & 2) != 0;
    const auto shape = catalog.shape(tensor);
    request.box.offset.resize(shape.size());
    request.box.extent.resize(shape.size());
    if (!reader.ReadNumbers(request.box.offset) || !reader.ReadNumbers(request.box.extent) ||
        !CheckBox(request.box, shape, catalog.dtype(tensor)).ok()) {
      return BadMessage("load requests");
    }
    out.push_back(std::move(request));
  }
  return out;
}

bool IsSieved(const Piece& piece) {
  const CopyNest& nest = piece.file_to_dense;
  const std::uint64_t span = piece.span();
  return !nest.loops.empty() &&
         (nest.run_bytes < kMinRunBytes || nest.num_bytes() >= span - span / 20);
}

ReadPlan PlanReads(const Catalog& catalog, std::span<const Piece> pieces,
                   const std::vector<Verification>& verification) {
  ReadPlan plan;
  plan.extents.resize(catalog.files().size());
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    const FileEntry& file = catalog.files()[piece.file];
    std::vector<ByteRange>& extents = plan.extents[piece.file];
    const Verification how = verification[piece.want];
    const bool by_block = how == Verification::kBlocks && file.has_blocks;
    const bool sieved = how != Verification::kDigest && IsSieved(piece);
    if (by_block || sieved || piece.file_to_dense.loops.empty()) {
      ForEachFileRange(piece, kMinRunBytes, [&](ByteRange range) {
        const ByteRange wide = by_block ? WidenToBlocks(file, range) : range;
        if (!extents.empty() && extents.back().end() >= wide.offset &&
            extents.back().offset <= wide.offset) {
          extents.back().size = std::max(extents.back().end(), wide.end()) - extents.back().offset;
        } else {
          extents.push_back(wide);
        }
      });
    } else {
      plan.run_pieces.push_back(i);
      plan.bytes += piece.num_bytes();
    }
  }
  for (std::vector<ByteRange>& extents : plan.extents) {
    MergeExtents(extents);
    for (const ByteRange& range : extents) {
      plan.bytes += range.size;
    }
  }
  return plan;
}

}  // namespace reshard
