#pragma once

// Reading safetensors checkpoints: one file, a set with an index, PyTorch DCP's sharded sets.
// docs/format/safetensors.md.

#include <string_view>

#include "reshard/format/foreign.h"

namespace reshard::safetensors {

/// The format's name in catalogs and options.
inline constexpr std::string_view kFormatName = "safetensors";

/// Reasons, beside those of the decoders.
inline constexpr std::string_view kMissingShard = "MISSING_SHARD";
inline constexpr std::string_view kMissingTensor = "MISSING_TENSOR";
inline constexpr std::string_view kSeveralFiles = "SEVERAL_FILES";

/// The format, for ForeignFormats().
const ForeignFormat& Format();

}  // namespace reshard::safetensors
