#pragma once

// From DCP's metadata and examined data files to a catalog.

#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/catalog/value.h"
#include "reshard/format/foreign.h"
#include "reshard/format/torch/metadata.h"
#include "reshard/format/torch/record.h"

namespace reshard::torch {

/// A record that is to be examined.
struct WantedRecord {
  ByteRange bytes;
  bool value = false;  ///< Else a tensor.
  bool zstd = false;
  std::uint64_t most_decoded = 0;  ///< Of a compressed one.
  bool operator==(const WantedRecord&) const = default;
};

Bytes EncodeRequest(std::span<const WantedRecord> records);
Result<std::vector<WantedRecord>> DecodeRequest(ByteSpan bytes);

/// What a record holds: a tensor, EncodeObject of a value, or why it cannot be read.
using FoundRecord = std::variant<TensorRecord, Bytes, Error>;

/// What a data file holds. Offsets are in the decoded file where it is compressed.
struct FoundFile {
  std::uint64_t decoded_bytes = 0;  ///< 0: it is not compressed.
  std::vector<FoundRecord> records;  ///< In the order of the request.
};

Bytes EncodeFound(const FoundFile& file);
Result<FoundFile> DecodeFound(ByteSpan bytes);

/// What a file of compressed records holds, encoded. Errors: of ZstdRecords.
Result<Bytes> ExamineCompressed(ByteSource& file, std::span<const WantedRecord> records);

/// Reads one record of `source`.
FoundRecord ExamineRecord(ByteSource& source, ByteRange bytes, bool value);

/// Metadata, and which records its files hold.
class DcpMetadata final : public ForeignMetadata {
 public:
  /// Errors: kCorruption OVERLAP, when two records of a file overlap; kUnsupported BAD_METADATA
  /// when some records of a file are compressed and others not.
  static Result<std::unique_ptr<DcpMetadata>> Create(Metadata metadata);

  std::span<const std::string> files() const override { return files_; }

  Bytes Request(std::size_t file) const override { return EncodeRequest(wanted_[file]); }

  const Metadata& metadata() const { return metadata_; }

  /// The place of the metadata's file `number` in files().
  std::uint32_t place(std::uint32_t number) const { return places_[number]; }

  /// The number of a record in its file's request.
  std::size_t RecordNumber(const RecordPlace& place) const;

 private:
  Metadata metadata_;
  std::vector<std::string> files_;
  std::vector<std::uint32_t> places_;
  std::vector<std::vector<WantedRecord>> wanted_;  // per place, by offset
};

/// The metadata of several ranks as one: chunks of one tensor together, equal ones once; of values
/// the first. Errors: kCorruption BAD_METADATA when ranks disagree on a tensor.
Result<Metadata> UniteMetadata(std::vector<Metadata> ranks);

/// As ForeignFormat::Assemble.
Result<Assembled> Assemble(const ForeignRef& ref, const DcpMetadata& metadata,
                           std::span<const ExaminedFile> files);

}  // namespace reshard::torch
