#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
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

std::uint64_t BeginAt(const std::vector<std::uint64_t>& ends, std::size_t i) {
  return i == 0 ? 0 : ends[i - 1];
}

std::string_view KeyOf(const CatalogColumns& columns, std::size_t tensor) {
  const std::uint64_t begin = BeginAt(columns.key_ends, tensor);
  return std::string_view(columns.keys).substr(begin, columns.key_ends[tensor] - begin);
}

/// The tensor of that key among sorted ones.
std::optional<std::size_t> FindKey(const CatalogColumns& columns, std::string_view key) {
  std::size_t low = 0;
  std::size_t high = columns.key_ends.size();
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (KeyOf(columns, middle) < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < columns.key_ends.size() && KeyOf(columns, low) == key ? std::optional(low)
                                                                     : std::nullopt;
}

template <typename Column>
void SortColumn(const std::vector<std::size_t>& order, Column& column) {
  Column out;
  out.reserve(column.size());
  for (const std::size_t i : order) {
    out.push_back(column[i]);
  }
  column = std::move(out);
}

/// A pool whose entry i ends at ends[i].
template <typename Pool>
void SortPool(const std::vector<std::size_t>& order, const std::vector<std::uint64_t>& ends,
              Pool& pool) {
  Pool out;
  out.reserve(pool.size());
  for (const std::size_t i : order) {
    out.insert(out.end(), pool.begin() + static_cast<std::ptrdiff_t>(BeginAt(ends, i)),
               pool.begin() + static_cast<std::ptrdiff_t>(ends[i]));
  }
  pool = std::move(out);
}

std::vector<std::uint64_t> SortedEnds(const std::vector<std::size_t>& order,
                                      const std::vector<std::uint64_t>& ends) {
  std::vector<std::uint64_t> out;
  out.reserve(ends.size());
  std::uint64_t end = 0;
  for (const std::size_t i : order) {
    out.push_back(end += ends[i] - BeginAt(ends, i));
  }
  return out;
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
  AppendTo(columns_.keys, columns_.key_ends, key);
  AppendTo(columns_.paths, columns_.path_ends, StoredPath(key, path));
  columns_.dtypes.push_back(static_cast<std::uint8_t>(dtype));
  columns_.axes.push_back(static_cast<std::uint8_t>(shape.size()));
  columns_.has_digest.push_back(digest.has_value() ? 1 : 0);
  columns_.digests.push_back(digest.value_or(0));
  columns_.shapes.insert(columns_.shapes.end(), shape.begin(), shape.end());
  columns_.chunk_ends.push_back(columns_.chunk_files.size());
  if (!alias_of_key.empty()) {
    aliases_.push_back({std::string(key), std::string(alias_of_key)});
  }
}

void CatalogBuilder::AddChunk(BoxView box, std::uint32_t file, std::uint64_t byte_offset,
                              ChunkOrder order) {
  ++columns_.chunk_ends.back();
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

/// Chunks move with their tensors. One column after the other, so that memory holds one twice.
void CatalogBuilder::SortTensors(const std::vector<std::size_t>& order) {
  CatalogColumns& c = columns_;
  std::vector<std::uint64_t> shape_ends;
  std::vector<std::uint64_t> box_ends;
  std::uint64_t shapes = 0;
  std::uint64_t boxes = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    shape_ends.push_back(shapes += c.axes[i]);
    box_ends.push_back(boxes +=
                       std::uint64_t{2} * c.axes[i] * (c.chunk_ends[i] - BeginAt(c.chunk_ends, i)));
  }
  SortPool(order, shape_ends, c.shapes);
  SortPool(order, box_ends, c.chunk_boxes);
  SortPool(order, c.chunk_ends, c.chunk_files);
  SortPool(order, c.chunk_ends, c.chunk_offsets);
  SortPool(order, c.chunk_ends, c.chunk_orders);
  c.chunk_ends = SortedEnds(order, c.chunk_ends);
  SortPool(order, c.key_ends, c.keys);
  c.key_ends = SortedEnds(order, c.key_ends);
  SortPool(order, c.path_ends, c.paths);
  c.path_ends = SortedEnds(order, c.path_ends);
  SortColumn(order, c.dtypes);
  SortColumn(order, c.axes);
  SortColumn(order, c.has_digest);
  SortColumn(order, c.digests);
}

Status CatalogBuilder::SetAliases() {
  columns_.alias_of.resize(columns_.key_ends.size());
  std::iota(columns_.alias_of.begin(), columns_.alias_of.end(), 0);
  for (const Alias& alias : aliases_) {
    const std::optional<std::size_t> target = FindKey(columns_, alias.target);
    if (!target) {
      return MakeError(
          ErrorCode::kInvalidArgument, "BAD_ALIAS",
          fmt::format("'{}' is an alias of '{}', which is not there", alias.key, alias.target));
    }
    columns_.alias_of[*FindKey(columns_, alias.key)] = *target;
  }
  return OkStatus();
}

Result<Catalog> CatalogBuilder::Build() && {
  std::vector<std::size_t> order(columns_.key_ends.size());
  std::iota(order.begin(), order.end(), 0);
  const auto by_key = [this](std::size_t a, std::size_t b) {
    return KeyOf(columns_, a) < KeyOf(columns_, b);
  };
  if (!std::is_sorted(order.begin(), order.end(), by_key)) {
    std::stable_sort(order.begin(), order.end(), by_key);
    SortTensors(order);
  }
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (KeyOf(columns_, i - 1) == KeyOf(columns_, i)) {
      return MakeError(ErrorCode::kInvalidArgument, "DUPLICATE_KEY",
                       fmt::format("the key '{}' stands twice", KeyOf(columns_, i)));
    }
  }
  RESHARD_TRY(SetAliases());
  CatalogColumns out = std::move(columns_);
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
