#pragma once

// The two names of an optimizer's master weights: dynamic graph `opt.master_weights.linear_0.w_0`,
// static graph `opt.linear_0.w_0_fp32_master_0`.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/result.h"

namespace reshard {

/// The names under which the tensor `flat_key` may be stored in the other naming. Parts are the
/// dot-separated parts of the flat key.
///
/// * A part equals `master_weights`: the first such part dropped, `_fp32_master_0` appended (one
///   name).
/// * Otherwise the last part ends with `_fp32_master_0`: that suffix removed once and the part
///   `master_weights` inserted, at position 1 first, then at every other position.
/// * Otherwise none.
std::vector<std::string> MasterWeightCandidates(std::string_view flat_key);

/// The stored name for a missing `flat_key`: the first candidate if stored, else the only stored
/// one of the others; nothing when none is stored. Errors: kInvalidArgument AMBIGUOUS_MASTER_WEIGHT
/// naming the stored candidates.
Result<std::optional<std::string>> ResolveMasterWeight(
    std::string_view flat_key, const std::function<bool(std::string_view)>& is_stored);

}  // namespace reshard
