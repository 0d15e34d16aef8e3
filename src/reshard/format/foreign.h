#pragma once

// What the engine needs of a foreign format to read its checkpoints: which names of a directory
// belong to one, what its metadata says, what one of its data files holds, and the catalog that
// follows. All pure: bytes in, values out.
//
// A data file is examined by any rank that sees it; what it found travels as bytes to the rank that
// assembles the catalog.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/byte_source.h"
#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"

namespace reshard {

/// A foreign checkpoint that a directory holds.
struct ForeignRef {
  std::string format;         ///< "paddle"
  std::string metadata_name;  ///< The file that names all others, or the one file there is.
  std::uint64_t unique_id = 0;
  /// Further files that hold metadata, sorted; usually none. (One per rank, or the data files where
  /// no other file names them: metadata_name is the first then.)
  std::vector<std::string> more_names = {};
  bool operator==(const ForeignRef&) const = default;
};

/// The decoded metadata of one checkpoint. Each format derives its own.
class ForeignMetadata {
 public:
  virtual ~ForeignMetadata() = default;

  /// The data files that it needs, each once, sorted; untrusted until CheckForeignName passed.
  virtual std::span<const std::string> files() const = 0;

  /// What Examine has to know of file number `file`, in bytes; may be nothing.
  virtual Bytes Request(std::size_t file) const {
    static_cast<void>(file);
    return {};
  }
};

/// What is known of a data file.
struct ExaminedFile {
  std::uint64_t size = 0;
  std::int64_t mtime_ns = 0;
  Result<Bytes> found = Bytes();  ///< Of ForeignFormat::Examine, or an error that names the file.
};

/// Something wrong with the checkpoint that does not keep the rest from being read.
struct ForeignFault {
  Error error;
  std::string file;               ///< Empty when it concerns none.
  std::vector<std::string> keys;  ///< Tensors that cannot be read because of it.
};

/// The result of assembling.
struct Assembled {
  Catalog catalog;  ///< kIndex, without checksums; only tensors that can be read.
  std::vector<ForeignFault> faults;
  std::vector<std::string> notes;  ///< What a user should know: arrays that no entry names.
};

/// A format. Stateless and thread-safe.
class ForeignFormat {
 public:
  virtual ~ForeignFormat() = default;

  virtual std::string_view name() const = 0;

  /// The checkpoints among the (sorted) names of one directory, by unique_id.
  virtual std::vector<ForeignRef> Find(std::span<const std::string> names) const = 0;

  /// Decodes the metadata, `sources` being the files `ref.metadata_name` and `ref.more_names`.
  /// Errors: of the format.
  virtual Result<std::unique_ptr<ForeignMetadata>> ReadMetadata(
      const ForeignRef& ref, std::span<ByteSource* const> sources) const = 0;

  /// Whether a file of this name would be one of its data files, named by the metadata or not.
  virtual bool IsDataFileName(const ForeignRef& ref, std::string_view name) const = 0;

  /// Whether the first bytes of a single file look like a checkpoint of this format.
  virtual bool LooksLikeFile(std::string_view name, ByteSpan first_bytes) const = 0;

  /// What one data file holds, as bytes for Assemble; `request` is of ForeignMetadata::Request.
  /// Errors: of the format.
  virtual Result<Bytes> Examine(std::string_view name, ByteSource& file,
                                ByteSpan request) const = 0;

  /// `files` in the order of metadata.files(). Errors: of the format, when nothing can be read.
  virtual Result<Assembled> Assemble(const ForeignRef& ref, const ForeignMetadata& metadata,
                                     std::span<const ExaminedFile> files) const = 0;
};

}  // namespace reshard
