#pragma once

// The file names of DCP checkpoints: docs/format/torch_dcp.md section 1. Data files that metadata
// refers to may have any name.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace reshard::torch {

/// The commit record, torch's and ours.
inline constexpr std::string_view kMetadataName = ".metadata";

/// Our index beside it.
inline constexpr std::string_view kIndexName = ".metadata.reshard";

/// What a name of a checkpoint directory means.
enum class NameKind {
  kMetadata,      ///< ".metadata"
  kRankMetadata,  ///< "__{rank}.metadata"
  kIndex,         ///< ".metadata.reshard"
  kTempMetadata,  ///< ".metadata.a{attempt}.tmp": a claim of ours; after an overwrite the replaced
                  ///< metadata.
  kTempIndex,     ///< ".metadata.reshard.a{attempt}.tmp"
  kTorchTemp,     ///< ".metadata.tmp": torch is, or was, writing.
  kData,          ///< "__{rank}_{n}.distcp", or ours from the second attempt on:
                  ///< "__{rank}_{n}.a{attempt}.distcp".
};

/// A parsed name.
struct Name {
  NameKind kind = NameKind::kMetadata;
  std::uint64_t attempt = 0;
  std::uint64_t rank = 0;  ///< Of data files and rank metadata.
  std::uint64_t part = 0;  ///< Of data files.
  bool operator==(const Name&) const = default;
};

/// Only canonical spellings count (decimals without leading zeros, attempt 0 unwritten).
std::optional<Name> ParseName(std::string_view text);

std::string TempMetadataName(std::uint64_t attempt);
std::string TempIndexName(std::uint64_t attempt);
std::string DataFileName(std::uint64_t rank, std::uint64_t part, std::uint64_t attempt);

}  // namespace reshard::torch
