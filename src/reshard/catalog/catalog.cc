#include "reshard/catalog/catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "reshard/base/check.h"
#include "reshard/catalog/cbor.h"
#include "reshard/catalog/tiling.h"

namespace reshard {
namespace {

tl::unexpected<Error> Corrupt(std::string_view reason, std::string message) {
  return MakeError(ErrorCode::kCorruption, reason, std::move(message));
}

std::uint64_t Begin(const std::vector<std::uint64_t>& ends, std::size_t i) {
  return i == 0 ? 0 : ends[i - 1];
}

/// Running ends never fall and end at the pool's size.
bool AreEnds(const std::vector<std::uint64_t>& ends, std::size_t count, std::uint64_t pool) {
  return ends.size() == count && std::is_sorted(ends.begin(), ends.end()) &&
         (ends.empty() ? pool == 0 : ends.back() == pool);
}

std::string_view KeyAt(const std::string& keys, const std::vector<std::uint64_t>& ends,
                       std::size_t i) {
  const std::uint64_t begin = Begin(ends, i);
  return std::string_view(keys).substr(begin, ends[i] - begin);
}

ByteSpan BytesAt(const Bytes& pool, const std::vector<std::uint64_t>& ends, std::size_t i) {
  const std::uint64_t begin = Begin(ends, i);
  return ByteSpan(pool).subspan(begin, ends[i] - begin);
}

/// Paths were checked by Create.
Path PathAt(std::string_view key, ByteSpan stored) {
  Result<Path> path = DecodeStoredPath(key, stored);
  RESHARD_CHECK(path.ok());
  return std::move(*path);
}

Status CheckColumnLengths(const CatalogColumns& c) {
  const std::size_t tensors = c.key_ends.size();
  const std::size_t objects = c.object_key_ends.size();
  const std::size_t chunks = c.chunk_files.size();
  std::uint64_t blocks = 0;  // never above the column's size in memory, so the sum cannot wrap
  for (const FileEntry& file : c.files) {
    const std::uint64_t left = c.block_checksums.size() - blocks;
    const std::uint64_t own = file.has_blocks ? file.num_blocks() : 0;
    if (own > left) {
      return Corrupt("CATALOG_COLUMNS",
                     fmt::format("file '{}' of {} bytes has {} blocks, but {} checksums are left",
                                 file.name, file.size, own, left));
    }
    blocks += own;
  }
  const bool good = AreEnds(c.key_ends, tensors, c.keys.size()) &&
                    AreEnds(c.path_ends, tensors, c.paths.size()) &&
                    AreEnds(c.chunk_ends, tensors, chunks) && c.dtypes.size() == tensors &&
                    c.axes.size() == tensors && c.has_digest.size() == tensors &&
                    c.digests.size() == tensors && c.alias_of.size() == tensors &&
                    c.chunk_offsets.size() == chunks && c.chunk_orders.size() == chunks &&
                    blocks == c.block_checksums.size() &&
                    AreEnds(c.object_key_ends, objects, c.object_keys.size()) &&
                    AreEnds(c.object_path_ends, objects, c.object_paths.size()) &&
                    AreEnds(c.object_value_ends, objects, c.object_values.size()) &&
                    c.object_ranks.size() == objects;
  if (!good) {
    return Corrupt("CATALOG_COLUMNS", "the catalog's columns have lengths that disagree");
  }
  return OkStatus();
}

Status CheckFiles(const CatalogColumns& c) {
  for (std::size_t i = 0; i < c.files.size(); ++i) {
    const FileEntry& file = c.files[i];
    if (file.payload_offset > file.size) {
      return Corrupt("CHUNK_OUT_OF_FILE",
                     fmt::format("file '{}' of {} bytes: its payload begins at {}", file.name,
                                 file.size, file.payload_offset));
    }
    if (i > 0 && c.files[i - 1].name >= file.name) {
      return Corrupt("CATALOG_KEYS",
                     fmt::format("file names are not sorted and unique at '{}'", file.name));
    }
  }
  return OkStatus();
}

Status CheckPaths(const Bytes& paths, const std::vector<std::uint64_t>& ends) {
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const ByteSpan stored = BytesAt(paths, ends, i);
    if (!stored.empty()) {
      RESHARD_TRY(DecodePath(stored));
    }
  }
  return OkStatus();
}

Status CheckKeys(const CatalogColumns& c) {
  for (std::size_t i = 0; i < c.key_ends.size(); ++i) {
    const std::string_view key = KeyAt(c.keys, c.key_ends, i);
    if (key.empty() || (i > 0 && KeyAt(c.keys, c.key_ends, i - 1) >= key)) {
      return Corrupt("CATALOG_KEYS", fmt::format("keys are not sorted and unique at '{}'", key));
    }
  }
  for (std::size_t i = 0; i < c.object_key_ends.size(); ++i) {
    const std::string_view key = KeyAt(c.object_keys, c.object_key_ends, i);
    const bool sorted =
        i == 0 || std::pair(KeyAt(c.object_keys, c.object_key_ends, i - 1), c.object_ranks[i - 1]) <
                      std::pair(key, c.object_ranks[i]);
    if (key.empty() || !sorted || c.object_ranks[i] < -1) {
      return Corrupt("CATALOG_KEYS",
                     fmt::format("object keys are not sorted and unique at '{}'", key));
    }
  }
  RESHARD_TRY(CheckPaths(c.paths, c.path_ends));
  return CheckPaths(c.object_paths, c.object_path_ends);
}

/// The fault of a chunk that FastCheckChunk refused.
Status ChunkFault(const CatalogColumns& c, std::string_view key, DType dtype,
                  std::span<const std::uint64_t> shape, std::size_t chunk, BoxView box) {
  if (Status status = CheckBox(box, shape, dtype); !status.ok()) {
    return Corrupt(status.error().reason, fmt::format("tensor '{}': chunk {}: {}", key,
                                                      ToString(box), status.error().message));
  }
  if (c.chunk_files[chunk] >= c.files.size() ||
      !IsValidOrder(static_cast<ChunkOrder>(c.chunk_orders[chunk]), shape.size())) {
    return Corrupt("CHUNK_OUT_OF_FILE",
                   fmt::format("tensor '{}': chunk {} names no file", key, ToString(box)));
  }
  const FileEntry& file = c.files[c.chunk_files[chunk]];
  return Corrupt(
      "CHUNK_OUT_OF_FILE",
      fmt::format("tensor '{}': bytes [{}, +{}) are outside the payload [{}, {}) of '{}'", key,
                  c.chunk_offsets[chunk], NumBytes(box, dtype), file.payload_offset, file.size,
                  file.name));
}

/// Checks one chunk; its bytes, or nothing when something is wrong. A million of these are on the
/// way to an open catalog, so no message is made here.
std::optional<std::uint64_t> FastCheckChunk(const CatalogColumns& c, const DTypeInfo& info,
                                            std::span<const std::uint64_t> shape, std::size_t chunk,
                                            BoxView box) {
  std::uint64_t elements = 1;  // cannot wrap: each extent is within the checked shape's
  for (std::size_t a = 0; a < shape.size(); ++a) {
    if (box.offset[a] > shape[a] || box.extent[a] > shape[a] - box.offset[a]) {
      return std::nullopt;
    }
    elements *= box.extent[a];
  }
  if (info.unit_elements > 1 && !CheckBox(box, shape, info.dtype).ok()) {
    return std::nullopt;
  }
  if (c.chunk_files[chunk] >= c.files.size() ||
      !IsValidOrder(static_cast<ChunkOrder>(c.chunk_orders[chunk]), shape.size())) {
    return std::nullopt;
  }
  const FileEntry& file = c.files[c.chunk_files[chunk]];
  const std::uint64_t begin = c.chunk_offsets[chunk];
  const std::uint64_t size = elements / info.unit_elements * info.unit_bytes;
  if (begin < file.payload_offset || begin > file.size || size > file.size - begin) {
    return std::nullopt;
  }
  return size;
}

Status CheckTensor(const CatalogColumns& c, std::size_t tensor, std::uint64_t shape_begin,
                   std::uint64_t box_begin) {
  const std::string_view key = KeyAt(c.keys, c.key_ends, tensor);
  if (!IsDType(c.dtypes[tensor])) {
    return Corrupt("BAD_DTYPE", fmt::format("tensor '{}': dtype number {}", key, c.dtypes[tensor]));
  }
  const auto dtype = static_cast<DType>(c.dtypes[tensor]);
  const std::size_t axes = c.axes[tensor];
  const std::span<const std::uint64_t> shape(c.shapes.data() + shape_begin, axes);
  if (Status status = CheckShape(shape, dtype); !status.ok()) {
    return Corrupt(status.error().reason,
                   fmt::format("tensor '{}': {}", key, status.error().message));
  }
  const std::uint64_t total = NumBytes(shape, dtype);
  const std::uint64_t target = c.alias_of[tensor];
  const std::uint64_t first = Begin(c.chunk_ends, tensor);
  const std::uint64_t last = c.chunk_ends[tensor];
  if (target != tensor) {
    const bool good = target < c.key_ends.size() && c.alias_of[target] == target && first == last &&
                      c.dtypes[target] == c.dtypes[tensor];
    return good ? OkStatus()
                : Status(Corrupt("BAD_ALIAS", fmt::format("tensor '{}' is a bad alias", key)));
  }
  const DTypeInfo& info = Info(dtype);
  std::uint64_t bytes = 0;
  for (std::uint64_t i = first; i < last; ++i) {
    const std::uint64_t* at = c.chunk_boxes.data() + box_begin + (i - first) * 2 * axes;
    const BoxView box({at, axes}, {at + axes, axes});
    const std::optional<std::uint64_t> size = FastCheckChunk(c, info, shape, i, box);
    if (!size) {
      return ChunkFault(c, key, dtype, shape, i, box);
    }
    bytes += *size;
    if (bytes > total) {  // so the sum cannot wrap
      break;
    }
  }
  const bool fragment = c.info.kind == CatalogKind::kFragment;
  if (fragment ? bytes > total : bytes != total) {
    return Corrupt("COVERAGE",
                   fmt::format("tensor '{}' {}: its chunks hold {} bytes, the shape needs "
                               "{}",
                               key, ToString(shape), bytes, total));
  }
  return OkStatus();
}

}  // namespace

std::uint64_t FileEntry::num_blocks() const {
  return (size - payload_offset) / kBlockBytes +
         ((size - payload_offset) % kBlockBytes != 0 ? 1 : 0);
}

ByteRange FileEntry::Block(std::uint64_t block) const {
  const std::uint64_t begin = payload_offset + block * kBlockBytes;
  return {begin, std::min(kBlockBytes, size - begin)};
}

Catalog::Catalog(CatalogColumns columns) : columns_(std::move(columns)) {}

Result<Catalog> Catalog::Create(CatalogColumns columns) {
  for (const FileEntry& file : columns.files) {
    if (file.payload_offset > file.size) {
      RESHARD_TRY(CheckFiles(columns));
    }
  }
  RESHARD_TRY(CheckColumnLengths(columns));
  RESHARD_TRY(CheckFiles(columns));
  RESHARD_TRY(CheckKeys(columns));
  Catalog catalog(std::move(columns));
  const CatalogColumns& c = catalog.columns_;
  std::uint64_t shapes = 0;
  std::uint64_t boxes = 0;
  for (std::size_t i = 0; i < c.key_ends.size(); ++i) {
    const std::uint64_t axes = c.axes[i];
    const std::uint64_t chunks = c.chunk_ends[i] - Begin(c.chunk_ends, i);
    catalog.shape_begin_.push_back(shapes);
    catalog.box_begin_.push_back(boxes);
    shapes += axes;
    boxes += chunks * 2 * axes;  // chunks is bounded by a column in memory
    if (axes > kMaxAxes || shapes > c.shapes.size() || boxes > c.chunk_boxes.size()) {
      return Corrupt("CATALOG_COLUMNS", "the catalog's shapes or boxes are too short");
    }
  }
  if (shapes != c.shapes.size() || boxes != c.chunk_boxes.size()) {
    return Corrupt("CATALOG_COLUMNS", "the catalog's shapes or boxes are too long");
  }
  for (std::size_t i = 0; i < c.key_ends.size(); ++i) {
    RESHARD_TRY(CheckTensor(c, i, catalog.shape_begin_[i], catalog.box_begin_[i]));
    const TensorId target = c.alias_of[i];
    if (target != i && !std::ranges::equal(catalog.shape(i), catalog.shape(target))) {
      return Corrupt("BAD_ALIAS", fmt::format("tensor '{}' has another shape than its alias target",
                                              catalog.key(i)));
    }
  }
  std::uint64_t block = 0;
  for (const FileEntry& file : c.files) {
    catalog.first_block_.push_back(block);
    block += file.has_blocks ? file.num_blocks() : 0;
  }
  return catalog;
}

std::string_view Catalog::key(TensorId tensor) const {
  return KeyAt(columns_.keys, columns_.key_ends, tensor);
}

std::span<const std::uint64_t> Catalog::shape(TensorId tensor) const {
  return {columns_.shapes.data() + shape_begin_[tensor], columns_.axes[tensor]};
}

std::optional<std::uint64_t> Catalog::digest(TensorId tensor) const {
  if (columns_.has_digest[tensor] == 0) {
    return std::nullopt;
  }
  return columns_.digests[tensor];
}

Path Catalog::path(TensorId tensor) const {
  return PathAt(key(tensor), BytesAt(columns_.paths, columns_.path_ends, tensor));
}

std::size_t Catalog::num_chunks(TensorId tensor) const {
  const TensorId own = columns_.alias_of[tensor];
  return columns_.chunk_ends[own] - Begin(columns_.chunk_ends, own);
}

Chunk Catalog::chunk(TensorId tensor, std::size_t index) const {
  const TensorId own = columns_.alias_of[tensor];
  const std::size_t axes = columns_.axes[own];
  const std::uint64_t* at = columns_.chunk_boxes.data() + box_begin_[own] + index * 2 * axes;
  const std::size_t chunk = Begin(columns_.chunk_ends, own) + index;
  return {BoxView({at, axes}, {at + axes, axes}), columns_.chunk_files[chunk],
          columns_.chunk_offsets[chunk], static_cast<ChunkOrder>(columns_.chunk_orders[chunk])};
}

std::uint64_t Catalog::chunk_bytes(TensorId tensor, std::size_t index) const {
  return NumBytes(chunk(tensor, index).box, dtype(tensor));
}

std::span<const std::uint64_t> Catalog::chunk_boxes(TensorId tensor) const {
  const TensorId own = columns_.alias_of[tensor];
  return {columns_.chunk_boxes.data() + box_begin_[own], num_chunks(own) * 2 * columns_.axes[own]};
}

std::optional<TensorId> Catalog::Find(std::string_view key_text) const {
  std::size_t low = 0;
  std::size_t high = num_tensors();
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (key(middle) < key_text) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < num_tensors() && key(low) == key_text ? std::optional(low) : std::nullopt;
}

std::optional<std::uint64_t> Catalog::BlockChecksum(std::uint32_t file, std::uint64_t block) const {
  if (!columns_.files[file].has_blocks) {
    return std::nullopt;
  }
  return columns_.block_checksums[first_block_[file] + block];
}

std::string_view Catalog::object_key(std::size_t object) const {
  return KeyAt(columns_.object_keys, columns_.object_key_ends, object);
}

Path Catalog::object_path(std::size_t object) const {
  return PathAt(object_key(object),
                BytesAt(columns_.object_paths, columns_.object_path_ends, object));
}

ByteSpan Catalog::object_value(std::size_t object) const {
  return BytesAt(columns_.object_values, columns_.object_value_ends, object);
}

std::pair<std::size_t, std::size_t> Catalog::FindObjects(std::string_view key_text) const {
  std::size_t low = 0;
  std::size_t high = num_objects();
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (object_key(middle) < key_text) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  std::size_t last = low;
  while (last < num_objects() && object_key(last) == key_text) {
    ++last;
  }
  return {low, last};
}

Status Catalog::CheckCoverage(TensorId tensor) const {
  std::vector<BoxView> boxes;
  boxes.reserve(num_chunks(tensor));
  for (std::size_t i = 0; i < num_chunks(tensor); ++i) {
    boxes.push_back(chunk(tensor, i).box);
  }
  if (TilesExactly(WholeBox(shape(tensor)), boxes)) {
    return OkStatus();
  }
  const TilingFault fault = FindTilingFault(boxes);
  if (fault.overlap) {
    return Corrupt("OVERLAP",
                   fmt::format("tensor '{}': chunks {} and {} overlap", key(tensor),
                               ToString(boxes[fault.first]), ToString(boxes[fault.second])));
  }
  return Corrupt("COVERAGE", fmt::format("tensor '{}' {}: its {} chunks leave a hole", key(tensor),
                                         ToString(shape(tensor)), boxes.size()));
}

}  // namespace reshard
