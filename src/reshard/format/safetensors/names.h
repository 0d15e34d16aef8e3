#pragma once

// The file names of safetensors checkpoints: docs/format/safetensors.md section 1.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace reshard::safetensors {

/// One file of a set: "{prefix}-{part}-of-{parts}[.a{attempt}].safetensors", numbers of five digits
/// or more, from 1 on. A set that we write has a part 0 when there are tensors without elements.
struct PartName {
  std::string prefix;  ///< "model", "diffusion_pytorch_model.fp16".
  std::uint64_t part = 0;
  std::uint64_t parts = 0;
  std::uint64_t attempt = 0;  ///< Ours; 0 is not written.
  bool operator==(const PartName&) const = default;
};

std::optional<PartName> ParsePartName(std::string_view text);

/// The opposite.
std::string PartFileName(const PartName& name);

/// The number of the rank that wrote "shard-{shard}-model-{part}-of-{parts}.safetensors" (PyTorch
/// DCP's sharded files), from 1 on.
std::optional<std::uint64_t> ShardOf(const PartName& name);

/// "X.safetensors.index.json", "X.safetensors.index.VARIANT.json".
bool IsIndexName(std::string_view text);

/// "X.safetensors", but not the data files of native and Paddle checkpoints, "{rank}_{id}...".
bool IsDataName(std::string_view text);

/// The index that a directory is opened by when it has several.
inline constexpr std::string_view kIndexName = "model.safetensors.index.json";

/// The one file of a checkpoint that we write on one rank.
inline constexpr std::string_view kSingleName = "model.safetensors";

/// Names that a save of ours has until it is committed.
enum class TempKind {
  kClaim,  ///< "model.safetensors.a{attempt}.tmp"
  kData,   ///< "model.safetensors.data.a{attempt}.tmp"
  kIndex,  ///< "model.safetensors[.index.json].reshard.a{attempt}.tmp"
};

std::string TempName(TempKind kind, std::uint64_t attempt, std::string_view index_name = {});

/// The attempt of a temporary name of ours (".old" may follow: an index that is being replaced).
std::optional<std::uint64_t> AttemptOfTemp(std::string_view text);

}  // namespace reshard::safetensors
