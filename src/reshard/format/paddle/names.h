#pragma once

// The file names of Paddle's distributed checkpoints, and those that we make among them:
// docs/format/paddle.md section 1.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace reshard::paddle {

/// What a name of a checkpoint directory means.
enum class NameKind {
  kMetadata,      ///< "{id}.metadata": the commit record, Paddle's and ours.
  kIndex,         ///< "{id}.metadata.reshard": our index beside it.
  kTempMetadata,  ///< "{id}.metadata.a{attempt}.tmp": a claim of ours; after an overwrite the
                  ///< replaced metadata.
  kTempIndex,     ///< "{id}.metadata.reshard.a{attempt}.tmp"
  kData,          ///< "{rank}_{id}.distcp", "{rank}_{id}.safetensors", or ours:
                  ///< "{rank}[_p{part}][_a{attempt}]_{id}.distcp".
  kLock,          ///< "{id}.metadata.lock": Paddle is, or was, writing.
};

/// A parsed name.
struct Name {
  NameKind kind = NameKind::kMetadata;
  std::uint64_t unique_id = 0;
  std::uint64_t attempt = 0;
  std::uint64_t rank = 0;  ///< Of data files.
  std::uint64_t part = 0;  ///< Of data files: a dict holds one piece per key, more go into parts.
  bool operator==(const Name&) const = default;
};

/// Only canonical spellings count (decimals without leading zeros, part 0 and attempt 0 unwritten).
/// Data files that metadata refers to may have other names.
std::optional<Name> ParseName(std::string_view text);

std::string MetadataName(std::uint64_t unique_id);
std::string IndexName(std::uint64_t unique_id);
std::string TempMetadataName(std::uint64_t unique_id, std::uint64_t attempt);
std::string TempIndexName(std::uint64_t unique_id, std::uint64_t attempt);
std::string DataFileName(std::uint64_t rank, std::uint64_t part, std::uint64_t unique_id,
                         std::uint64_t attempt);

}  // namespace reshard::paddle
