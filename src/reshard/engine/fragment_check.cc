#include "reshard/engine/fragment_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/format/native/data_file.h"

namespace reshard {
namespace {

Status Mismatch(const FileEntry& file, std::string_view what) {
  return MakeError(
      ErrorCode::kCorruption, "FRAGMENT_MISMATCH",
      fmt::format("{}: the entries in its header do not agree with the catalog: {}; the "
                  "file belongs to another save, or the catalog was changed",
                  file.name, what));
}

Status CheckHead(const native::Head& head, const CatalogInfo& info, const FileEntry& file) {
  if (head.unique_id != info.unique_id || head.attempt != info.attempt) {
    return Mismatch(file, fmt::format("it is of snapshot {}, attempt {}; the catalog of {}, {}",
                                      head.unique_id, head.attempt, info.unique_id, info.attempt));
  }
  if (head.rank != file.rank || head.file_size != file.size ||
      head.payload_offset != file.payload_offset) {
    return Mismatch(file, "rank, size or payload offset");
  }
  return OkStatus();
}

Status CheckFileEntry(const Catalog& catalog, std::uint32_t file, const Catalog& fragment) {
  const FileEntry& entry = catalog.files()[file];
  if (fragment.files().size() != 1 || fragment.info().kind != CatalogKind::kFragment) {
    return Mismatch(entry, "it does not describe one file");
  }
  const FileEntry& own = fragment.files()[0];
  if (own.name != entry.name || own.size != entry.size ||
      own.payload_offset != entry.payload_offset || own.num_blocks() != entry.num_blocks()) {
    return Mismatch(entry, "name or size of the file");
  }
  for (std::uint64_t block = 0; entry.has_blocks && block < entry.num_blocks(); ++block) {
    if (fragment.BlockChecksum(0, block) != catalog.BlockChecksum(file, block)) {
      return Mismatch(entry, fmt::format("the checksum of block {}", block));
    }
  }
  return OkStatus();
}

}  // namespace

std::vector<std::vector<PlacedChunk>> ChunksByFile(const Catalog& catalog) {
  std::vector<std::vector<PlacedChunk>> out(catalog.files().size());
  for (TensorId tensor = 0; tensor < catalog.num_tensors(); ++tensor) {
    if (catalog.alias_of(tensor) != tensor) {
      continue;
    }
    for (std::size_t i = 0; i < catalog.num_chunks(tensor); ++i) {
      const Chunk chunk = catalog.chunk(tensor, i);
      const std::uint64_t bytes = NumBytes(chunk.box, catalog.dtype(tensor));
      if (bytes > 0) {
        out[chunk.file].push_back(
            {chunk.byte_offset, chunk.byte_offset + bytes, tensor, static_cast<std::uint32_t>(i)});
      }
    }
  }
  for (auto& chunks : out) {
    std::sort(chunks.begin(), chunks.end(),
              [](const PlacedChunk& a, const PlacedChunk& b) { return a.offset < b.offset; });
  }
  return out;
}

Status CheckFragment(const Catalog& catalog, std::uint32_t file,
                     const std::vector<PlacedChunk>& chunks, ByteSpan header) {
  const FileEntry& entry = catalog.files()[file];
  const auto named = [&entry](const Error& error) {
    return tl::unexpected<Error>(error.WithContext(entry.name));
  };
  Result<native::Head> head = native::DecodeHead(header);
  if (!head.ok()) {
    return named(head.error());
  }
  RESHARD_TRY(CheckHead(*head, catalog.info(), entry));
  const Result<Catalog> fragment = native::DecodeFragment(header);
  if (!fragment.ok()) {
    return named(fragment.error());
  }
  RESHARD_TRY(CheckFileEntry(catalog, file, *fragment));
  const std::vector<PlacedChunk> own = ChunksByFile(*fragment)[0];
  if (own.size() != chunks.size()) {
    return Mismatch(entry,
                    fmt::format("it lists {} chunks, the catalog {}", own.size(), chunks.size()));
  }
  for (std::size_t i = 0; i < own.size(); ++i) {
    const TensorId a = own[i].tensor;
    const TensorId b = chunks[i].tensor;
    const bool same = own[i].offset == chunks[i].offset && own[i].end == chunks[i].end &&
                      fragment->key(a) == catalog.key(b) &&
                      fragment->dtype(a) == catalog.dtype(b) &&
                      std::ranges::equal(fragment->shape(a), catalog.shape(b)) &&
                      fragment->chunk(a, own[i].index).box == catalog.chunk(b, chunks[i].index).box;
    if (!same) {
      return Mismatch(entry, fmt::format("the chunk of tensor '{}' at byte {}", catalog.key(b),
                                         chunks[i].offset));
    }
  }
  return OkStatus();
}

}  // namespace reshard
