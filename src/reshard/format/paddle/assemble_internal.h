#pragma once

// From metadata and examined data files to a catalog.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/format/foreign.h"
#include "reshard/format/paddle/data_file.h"
#include "reshard/format/paddle/metadata.h"

namespace reshard::paddle {

/// What ReadMetadata gives: the metadata of a distributed checkpoint, or nothing but the one file.
class PaddleMetadata final : public ForeignMetadata {
 public:
  explicit PaddleMetadata(Metadata metadata);

  explicit PaddleMetadata(std::string file) : files_{std::move(file)}, single_(true) {}

  std::span<const std::string> files() const override { return files_; }

  const Metadata& metadata() const { return metadata_; }

  bool single() const { return single_; }

  /// The place in files() of the metadata's file `number`.
  std::uint32_t place(std::uint32_t number) const { return places_[number]; }

 private:
  Metadata metadata_;
  std::vector<std::string> files_;
  std::vector<std::uint32_t> places_;
  bool single_ = false;
};

/// As ForeignFormat::Assemble.
Result<Assembled> AssembleDistributed(const ForeignRef& ref, const PaddleMetadata& metadata,
                                      std::span<const ExaminedFile> files);
Result<Assembled> AssembleSingle(const ForeignRef& ref, const PaddleMetadata& metadata,
                                 std::span<const ExaminedFile> files);

/// A data file as the catalog lists it.
FileEntry MakeFileEntry(const std::string& name, const ExaminedFile& examined,
                        const DataFile& file);

/// A place in a file where elements [begin, end) of a piece's row-major block lie, or the whole
/// piece in `order`.
struct StoredRun {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t byte_offset = 0;
  ChunkOrder order = ChunkOrder::kRowMajor;
  bool whole = false;
};

/// Chunks of one tensor, collected before it is known whether all of it is right.
struct Chunks {
  std::vector<Box> boxes;
  std::vector<std::uint32_t> files;
  std::vector<std::uint64_t> offsets;
  std::vector<ChunkOrder> orders;

  /// Adds a run of a piece that lies at `offset` with `shape` in the tensor. Errors: of
  /// FlattenedRangeToBoxes.
  Status Add(const Shape& offset, const Shape& shape, DType dtype, const StoredRun& run,
             std::uint32_t file);
};

/// Gives the tensor to the builder if it can be part of a catalog. Errors: kCorruption COVERAGE,
/// BOX_OUT_OF_SHAPE, BAD_KEY, those of CheckShape.
Status AddTensorTo(CatalogBuilder& builder, const std::string& key, const Path& path, DType dtype,
                   const Shape& shape, const Chunks& chunks);

/// What is wrong with a shape, box or range that stands in a file is damage, not a caller's
/// mistake.
inline Status FromFile(Status status) {
  if (!status.ok()) {
    status.error().code = ErrorCode::kCorruption;
  }
  return status;
}

}  // namespace reshard::paddle
