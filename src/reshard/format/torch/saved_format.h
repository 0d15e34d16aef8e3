#pragma once

// Ordinary torch.save files as a foreign format: one-rank checkpoints whose metadata_name is the
// file itself.

#include "reshard/format/foreign.h"

namespace reshard::torch {

/// The one instance; its name is "torch.save".
const ForeignFormat& SavedFormat();

}  // namespace reshard::torch
