#pragma once

// "X.safetensors.index.json": which file of a set holds which tensor.
// docs/format/safetensors.md section 3.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/byte_source.h"
#include "reshard/base/result.h"

namespace reshard::safetensors {

/// Reasons of this decoder, beside BAD_STRING, DUPLICATE_NAME and DEPTH.
inline constexpr std::string_view kBadIndex = "BAD_INDEX";
inline constexpr std::string_view kIndexTooLarge = "INDEX_TOO_LARGE";

/// Largest index.
inline constexpr std::uint64_t kMaxIndexBytes = 100'000'000;

/// Most files that one may name.
inline constexpr std::size_t kMaxIndexFiles = 100'000;

/// One tensor.
struct IndexEntry {
  std::string name;
  std::uint32_t file = 0;  ///< SetIndex into SetIndex::files.
  bool operator==(const IndexEntry&) const = default;
};

/// The whole index.
struct SetIndex {
  std::vector<std::string> files;           ///< Each once, sorted; not to be trusted as names.
  std::vector<IndexEntry> tensors;          ///< Sorted by name.
  std::optional<std::uint64_t> total_size;  ///< metadata.total_size, when it is a whole number.

  /// The entry of a tensor; null when there is none.
  const IndexEntry* Find(std::string_view name) const;
};

/// Reads an index. Unknown keys are passed over. Errors: kCorruption BAD_INDEX, INDEX_TOO_LARGE,
/// DUPLICATE_NAME, BAD_STRING, DEPTH; kIo from the source. Cost: linear but for sorting names.
/// Memory: at most kMaxIndexBytes of text, and 40 bytes and the name for each tensor.
Result<SetIndex> DecodeIndex(ByteSource& source);

/// The text of an index: names sorted, indented by two spaces as Hugging Face does. `total_size` is
/// of the tensors' bytes. Deterministic.
std::string EncodeIndex(const SetIndex& index);

}  // namespace reshard::safetensors
