#pragma once

// Checkpoints that other frameworks wrote: finding them in a directory, and their catalog, from our
// index beside them or from their own metadata and the structure of their data files.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/format/foreign.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// The formats that can be read, in the order in which they are looked for.
std::span<const ForeignFormat* const> ForeignFormats();

/// The format that made `ref`.
const ForeignFormat& FormatOf(const ForeignRef& ref);

/// The checkpoints of one directory by id, all of one format: the first that has any. When no name
/// tells and there is a single file, its first bytes do. Errors: those of List; kIo.
Result<std::vector<ForeignRef>> FindForeign(Storage& storage);

/// What tells whether metadata is the one that was indexed.
struct Fingerprint {
  std::uint64_t size = 0;
  std::uint64_t checksum = 0;  ///< CRC-64
  bool operator==(const Fingerprint&) const = default;
};

/// What of a metadata file that is a data file too counts for its fingerprint.
inline constexpr std::uint64_t kFingerprintHeadBytes = 65536;

/// Of the metadata files of `ref`, read in bounded memory; where one is a data file of `catalog`
/// too, its size and the checksum of its first kFingerprintHeadBytes. Errors: those of Open and
/// ReadAt.
Result<Fingerprint> MetadataFingerprint(Storage& storage, const ForeignRef& ref,
                                        const Catalog& catalog);

/// Our index beside `ref`, when it is there and fits.
struct ForeignIndex {
  std::optional<Catalog> catalog;  ///< Nothing: there is none, or it does not describe `ref`.
  std::vector<std::string> notes;  ///< Why it was ignored, or what changed since.
};

/// The index's name.
std::string IndexNameOf(const ForeignRef& ref);

/// Reads the index. It is ignored, with a note, when the foreign metadata is not the one it
/// records, or when it is damaged; not where metadata inside a data file was damaged rather than
/// written again, so that the index's checksums find that. Where a data file's time changed, the
/// digests of its tensors are left out (checksums stay). Errors: kIo.
Result<ForeignIndex> ReadIndex(Storage& storage, const ForeignRef& ref);

/// Opens and decodes the metadata. Errors: those of Storage::Open, naming the file, and of the
/// format.
Result<std::unique_ptr<ForeignMetadata>> ReadForeignMetadata(Storage& storage,
                                                             const ForeignRef& ref);

/// Examines a data file; what fails is in the result.
ExaminedFile ExamineFile(Storage& storage, const ForeignFormat& format, const std::string& name,
                         ByteSpan request);

/// An open foreign checkpoint.
struct ForeignCheckpoint {
  ForeignRef ref;
  Assembled content;
  bool indexed = false;  ///< The catalog is our index's: with checksums and digests.
};

/// Choices of OpenForeign.
struct ForeignOptions {
  bool use_index = true;
  std::size_t threads = 0;  ///< Files examined at once; 0: as many as there are cores, at most 8.
};

/// Opens a checkpoint on one rank. Reads kilobytes per data file, or with an index no data file at
/// all. Errors: what keeps all of it from being read; other faults are in the result.
/// Collective: no.
Result<ForeignCheckpoint> OpenForeign(Storage& storage, const ForeignRef& ref,
                                      const ForeignOptions& options = {});

/// The first fault as an error that says how many there are.
Error FirstFault(const std::vector<ForeignFault>& faults);

}  // namespace reshard
