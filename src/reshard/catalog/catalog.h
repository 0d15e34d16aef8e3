#pragma once

// A checkpoint, of whatever format: tensors cut into chunks, chunks as byte ranges of files, the
// flat mapping, and objects. Held as columns, as on disk, so that a million chunks open in
// milliseconds.
//
// Invariants (checked by Catalog::Create): keys sorted and unique, boxes inside shapes, byte ranges
// inside files, chunk volumes add up to the tensor's. That chunks do not overlap is checked per
// tensor by the load plan and by verify.
//
// Thread-safety: immutable after Create. On disk: docs/format/native.md.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/bytes.h"
#include "reshard/base/result.h"
#include "reshard/catalog/flatten.h"
#include "reshard/tensor/box.h"

namespace reshard {

/// Bytes of a file's payload that share one checksum.
inline constexpr std::uint64_t kBlockBytes = std::uint64_t{256} * 1024;

/// What a catalog describes. Numbers are stored.
enum class CatalogKind : std::uint8_t {
  kSnapshot = 1,  ///< The commit record of a native snapshot.
  kIndex = 2,     ///< Beside a foreign checkpoint.
  kFragment = 3,  ///< One data file's own entries, inside that file.
};

/// How the elements of a chunk lie in its file: dense, but with the axes in some order. Numbers are
/// stored: from 2 on, 2 + the lexicographic rank of that order among all orders of the chunk's axes
/// (at most kMostPermutedAxes of them).
enum class ChunkOrder : std::uint8_t {
  kRowMajor = 0,
  kColumnMajor = 1,
};

/// Most axes of a chunk that is neither row-major nor column-major.
inline constexpr std::size_t kMostPermutedAxes = 5;

/// Whether `order` means anything for so many axes.
bool IsValidOrder(ChunkOrder order, std::size_t axes);

/// The axes in the order in which they lie in the file, outermost first. `order` must be valid.
std::vector<std::size_t> AxesInFile(ChunkOrder order, std::size_t axes);

/// The opposite, in its canonical form; nothing when it cannot be stored (more than
/// kMostPermutedAxes axes), or when `axes` is no order of axes.
std::optional<ChunkOrder> OrderOf(std::span<const std::size_t> axes);

/// How the bytes of a file become those that chunks point into. Numbers are stored.
enum class FileEncoding : std::uint8_t {
  kRaw = 0,  ///< Chunks point into the file itself.
  /// A pickle that holds arrays as text (protocol 2, `_codecs.encode(text, 'latin1')`): chunks
  /// point into its decoded arrays, one after the other in the file's order.
  kPickleText = 1,
  /// zstd frames back to back: chunks point into their contents, one after the other.
  kZstdRecords = 2,
};

/// Facts about the whole checkpoint.
struct CatalogInfo {
  CatalogKind kind = CatalogKind::kSnapshot;
  std::string format = "native";  ///< "native", "paddle", "torch", "safetensors".
  std::uint64_t unique_id = 0;
  std::uint64_t attempt = 0;
  std::uint64_t world_size = 1;         ///< Ranks of the group that saved.
  std::uint64_t coordinator_rank = 0;   ///< Global rank that wrote the catalog.
  std::uint64_t metadata_size = 0;      ///< kIndex only: of the foreign metadata file...
  std::uint64_t metadata_checksum = 0;  ///< ...and its CRC-64, when it was indexed.
  bool operator==(const CatalogInfo&) const = default;
};

/// A data file.
struct FileEntry {
  std::string name;
  std::uint64_t rank = 0;            ///< Global rank that wrote it.
  std::uint64_t size = 0;            ///< Exact bytes (decoded, where it is encoded).
  std::uint64_t payload_offset = 0;  ///< Where blocks begin to count.
  std::uint64_t head_checksum = 0;   ///< CRC-64 of the first min(size, 4096) bytes; native only.
  std::int64_t mtime_ns = 0;         ///< Index only: when it was indexed.
  bool has_blocks = true;            ///< Whether block checksums are known.
  FileEncoding encoding = FileEncoding::kRaw;

  /// Number of checksum blocks of the payload.
  std::uint64_t num_blocks() const;

  /// The bytes of block `block` in the file; the last one is shorter.
  ByteRange Block(std::uint64_t block) const;
};

/// A piece of a tensor in a file.
struct Chunk {
  BoxView box;
  std::uint32_t file = 0;         ///< Index into files().
  std::uint64_t byte_offset = 0;  ///< From the start of the file.
  ChunkOrder order = ChunkOrder::kRowMajor;
};

/// Names an entry of the tensor columns.
using TensorId = std::size_t;

/// The columns. Offsets named *_ends are running ends: entry i occupies [ends[i-1], ends[i]).
struct CatalogColumns {
  CatalogInfo info;

  std::vector<FileEntry> files;                ///< Sorted by name.
  std::vector<std::uint64_t> block_checksums;  ///< Of all files that have them, in file order.

  // Tensors, sorted by key (bytewise).
  std::string keys;
  std::vector<std::uint64_t> key_ends;
  Bytes paths;  ///< EncodePath; empty where the path is the key itself as one part.
  std::vector<std::uint64_t> path_ends;
  std::vector<std::uint8_t> dtypes;
  std::vector<std::uint8_t> axes;
  std::vector<std::uint8_t> has_digest;
  std::vector<std::uint64_t> digests;     ///< CRC-64 of the whole tensor, row-major; of a fragment:
                                          ///< linear part of this file's chunks.
  std::vector<std::uint64_t> shapes;      ///< All shapes, one after the other.
  std::vector<std::uint64_t> chunk_ends;  ///< Running number of chunks.
  std::vector<std::uint64_t> alias_of;    ///< The tensor whose chunks it shares; itself usually.

  // Chunks, grouped by tensor.
  std::vector<std::uint32_t> chunk_files;
  std::vector<std::uint64_t> chunk_offsets;
  std::vector<std::uint8_t> chunk_orders;
  std::vector<std::uint64_t> chunk_boxes;  ///< Per chunk: offsets, then extents.

  // Objects, sorted by (key, rank).
  std::string object_keys;
  std::vector<std::uint64_t> object_key_ends;
  Bytes object_paths;
  std::vector<std::uint64_t> object_path_ends;
  std::vector<std::int64_t> object_ranks;  ///< -1: shared; else the group rank of a per-rank value.
  Bytes object_values;                     ///< EncodeObject.
  std::vector<std::uint64_t> object_value_ends;
};

/// The catalog of one snapshot.
class Catalog {
 public:
  /// Checks the invariants. Errors: kCorruption with the reasons CATALOG_COLUMNS (lengths
  /// disagree), CATALOG_KEYS, BAD_OBJECT (a path), BAD_DTYPE, SHAPE_OVERFLOW, NOT_BYTE_SIZED,
  /// BOX_OUT_OF_SHAPE, CHUNK_OUT_OF_FILE, COVERAGE, BAD_ALIAS.
  static Result<Catalog> Create(CatalogColumns columns);

  const CatalogInfo& info() const { return columns_.info; }

  const CatalogColumns& columns() const { return columns_; }

  const std::vector<FileEntry>& files() const { return columns_.files; }

  std::size_t num_tensors() const { return columns_.key_ends.size(); }

  std::size_t num_chunks() const { return columns_.chunk_files.size(); }

  std::string_view key(TensorId tensor) const;

  DType dtype(TensorId tensor) const { return static_cast<DType>(columns_.dtypes[tensor]); }

  std::span<const std::uint64_t> shape(TensorId tensor) const;
  std::optional<std::uint64_t> digest(TensorId tensor) const;

  /// The tensor whose chunks it shares, itself when it has its own.
  TensorId alias_of(TensorId tensor) const { return columns_.alias_of[tensor]; }

  Path path(TensorId tensor) const;

  std::uint64_t num_bytes(TensorId tensor) const { return NumBytes(shape(tensor), dtype(tensor)); }

  /// Number of chunks (an alias shows those of its target).
  std::size_t num_chunks(TensorId tensor) const;
  Chunk chunk(TensorId tensor, std::size_t index) const;
  std::uint64_t chunk_bytes(TensorId tensor, std::size_t index) const;

  /// The boxes of all chunks of a tensor, one after the other: offsets, then extents.
  std::span<const std::uint64_t> chunk_boxes(TensorId tensor) const;

  /// The tensor of that key, by binary search.
  std::optional<TensorId> Find(std::string_view key) const;

  /// Checksum of one block, nothing when the file has none.
  std::optional<std::uint64_t> BlockChecksum(std::uint32_t file, std::uint64_t block) const;

  std::size_t num_objects() const { return columns_.object_key_ends.size(); }

  std::string_view object_key(std::size_t object) const;
  Path object_path(std::size_t object) const;

  std::int64_t object_rank(std::size_t object) const { return columns_.object_ranks[object]; }

  ByteSpan object_value(std::size_t object) const;

  /// The objects of that key: [first, last).
  std::pair<std::size_t, std::size_t> FindObjects(std::string_view key) const;

  /// Whether the tensor's chunks cover it exactly once; an error names two chunks or the hole.
  /// Errors: kCorruption OVERLAP, COVERAGE.
  Status CheckCoverage(TensorId tensor) const;

 private:
  explicit Catalog(CatalogColumns columns);

  CatalogColumns columns_;
  std::vector<std::uint64_t> shape_begin_;  // per tensor: index into shapes
  std::vector<std::uint64_t> box_begin_;    // per tensor: index into chunk_boxes of its first chunk
  std::vector<std::uint64_t> first_block_;  // per file: index into block_checksums
};

/// Collects entries in any order and makes the sorted columns.
class CatalogBuilder {
 public:
  explicit CatalogBuilder(CatalogInfo info);

  /// Returns the file's number for AddChunk. Names must be added in sorted order for a stable
  /// number.
  std::uint32_t AddFile(FileEntry file, std::span<const std::uint64_t> block_checksums);

  /// Begins a tensor; the AddChunk calls that follow belong to it. An alias has no chunks.
  void AddTensor(std::string_view key, const Path& path, DType dtype,
                 std::span<const std::uint64_t> shape, std::optional<std::uint64_t> digest,
                 std::string_view alias_of_key = {});
  void AddChunk(BoxView box, std::uint32_t file, std::uint64_t byte_offset,
                ChunkOrder order = ChunkOrder::kRowMajor);
  void AddObject(std::string_view key, const Path& path, std::int64_t rank, ByteSpan value);

  /// Errors: those of Catalog::Create, and kInvalidArgument DUPLICATE_KEY, BAD_ALIAS.
  Result<Catalog> Build() &&;

 private:
  struct Alias {
    std::string key;
    std::string target;
  };

  struct ObjectRow {
    std::string key;
    Bytes path;
    std::int64_t rank;
    Bytes value;
  };

  void SortTensors(const std::vector<std::size_t>& order);
  Status SetAliases();

  CatalogColumns columns_;  // as it came, without aliases and objects
  std::vector<Alias> aliases_;
  std::vector<ObjectRow> objects_;
};

/// The stored form of a path: nothing when it is the key as one part.
Bytes StoredPath(std::string_view key, const Path& path);

/// The opposite. Errors: kCorruption BAD_OBJECT.
Result<Path> DecodeStoredPath(std::string_view key, ByteSpan stored);

}  // namespace reshard
