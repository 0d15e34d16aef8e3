#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "reshard/catalog/catalog.h"
#include "reshard/catalog/cbor.h"

namespace reshard {
namespace {

template <typename Pool, typename Range>
void AppendTo(Pool& pool, std::vector<std::uint64_t>& ends, const Range& range) {
  pool.insert(pool.end(), range.begin(), range.end());
  ends.push_back(pool.size());
}

}  // namespace

Bytes StoredPath(std::string_view key, const Path& path) {
  const bool plain = path.size() == 1 && std::holds_alternative<std::string>(path[0]) &&
                     std::get<std::string>(path[0]) == key;
  return plain ? Bytes() : EncodePath(path);
}

Result<Path> DecodeStoredPath(std::string_view key, ByteSpan stored) {
  if (stored.empty()) {
    return Path{PathPart(std::string(key))};
  }
  return DecodePath(stored);
}

CatalogBuilder::CatalogBuilder(CatalogInfo info) { columns_.info = std::move(info); }

std::uint32_t CatalogBuilder::AddFile(FileEntry file,
                                      std::span<const std::uint64_t> block_checksums) {
  columns_.block_checksums.insert(columns_.block_checksums.end(), block_checksums.begin(),
                                  block_checksums.end());
  columns_.files.push_back(std::move(file));
  return static_cast<std::uint32_t>(columns_.files.size() - 1);
}

void CatalogBuilder::AddTensor(std::string_view key, const Path& path, DType dtype,
                               std::span<const std::uint64_t> shape,
                               std::optional<std::uint64_t> digest, std::string_view alias_of_key) {
  tensors_.push_back({std::string(key), StoredPath(key, path), dtype,
                      Shape(shape.begin(), shape.end()), digest, std::string(alias_of_key),
                      columns_.chunk_files.size(), 0});
}

void CatalogBuilder::AddChunk(BoxView box, std::uint32_t file, std::uint64_t byte_offset,
                              ChunkOrder order) {
  ++tensors_.back().num_chunks;
  chunk_box_begin_.push_back(columns_.chunk_boxes.size());
  columns_.chunk_files.push_back(file);
  columns_.chunk_offsets.push_back(byte_offset);
  columns_.chunk_orders.push_back(static_cast<std::uint8_t>(order));
  columns_.chunk_boxes.insert(columns_.chunk_boxes.end(), box.offset.begin(), box.offset.end());
  columns_.chunk_boxes.insert(columns_.chunk_boxes.end(), box.extent.begin(), box.extent.end());
}

void CatalogBuilder::AddObject(std::string_view key, const Path& path, std::int64_t rank,
                               ByteSpan value) {
  objects_.push_back(
      {std::string(key), StoredPath(key, path), rank, Bytes(value.begin(), value.end())});
}

Result<Catalog> CatalogBuilder::Build() && {
  const auto by_key = [](const auto& a, const auto& b) { return a.key < b.key; };
  const bool sorted = std::is_sorted(tensors_.begin(), tensors_.end(), by_key);
  CatalogColumns out;
  if (!sorted) {  // chunks move with their tensors
    std::stable_sort(tensors_.begin(), tensors_.end(), by_key);
  }
  out.info = std::move(columns_.info);
  out.files = std::move(columns_.files);
  out.block_checksums = std::move(columns_.block_checksums);
  std::unordered_map<std::string_view, std::size_t> number;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (!number.emplace(tensors_[i].key, i).second) {
      return MakeError(ErrorCode::kInvalidArgument, "DUPLICATE_KEY",
                       fmt::format("the key '{}' stands twice", tensors_[i].key));
    }
  }
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const TensorRow& row = tensors_[i];
    AppendTo(out.keys, out.key_ends, row.key);
    AppendTo(out.paths, out.path_ends, row.path);
    out.dtypes.push_back(static_cast<std::uint8_t>(row.dtype));
    out.axes.push_back(static_cast<std::uint8_t>(row.shape.size()));
    out.has_digest.push_back(row.digest.has_value() ? 1 : 0);
    out.digests.push_back(row.digest.value_or(0));
    out.shapes.insert(out.shapes.end(), row.shape.begin(), row.shape.end());
    const auto target = row.alias_of.empty() ? number.find(row.key) : number.find(row.alias_of);
    if (target == number.end()) {
      return MakeError(
          ErrorCode::kInvalidArgument, "BAD_ALIAS",
          fmt::format("'{}' is an alias of '{}', which is not there", row.key, row.alias_of));
    }
    out.alias_of.push_back(target->second);
    for (std::size_t c = row.first_chunk; !sorted && c < row.first_chunk + row.num_chunks; ++c) {
      out.chunk_files.push_back(columns_.chunk_files[c]);
      out.chunk_offsets.push_back(columns_.chunk_offsets[c]);
      out.chunk_orders.push_back(columns_.chunk_orders[c]);
      const auto box =
          columns_.chunk_boxes.begin() + static_cast<std::ptrdiff_t>(chunk_box_begin_[c]);
      out.chunk_boxes.insert(out.chunk_boxes.end(), box,
                             box + static_cast<std::ptrdiff_t>(2 * row.shape.size()));
    }
    out.chunk_ends.push_back((i == 0 ? 0 : out.chunk_ends.back()) + row.num_chunks);
  }
  if (sorted) {
    out.chunk_files = std::move(columns_.chunk_files);
    out.chunk_offsets = std::move(columns_.chunk_offsets);
    out.chunk_orders = std::move(columns_.chunk_orders);
    out.chunk_boxes = std::move(columns_.chunk_boxes);
  }
  std::stable_sort(objects_.begin(), objects_.end(), [](const ObjectRow& a, const ObjectRow& b) {
    return std::pair<const std::string&, std::int64_t>(a.key, a.rank) <
           std::pair<const std::string&, std::int64_t>(b.key, b.rank);
  });
  for (const ObjectRow& row : objects_) {
    AppendTo(out.object_keys, out.object_key_ends, row.key);
    AppendTo(out.object_paths, out.object_path_ends, row.path);
    out.object_ranks.push_back(row.rank);
    AppendTo(out.object_values, out.object_value_ends, row.value);
  }
  return Catalog::Create(std::move(out));
}

}  // namespace reshard
