#pragma once

// Paddle's checkpoints as a foreign format: distributed ones (`{id}.metadata` and data files) and
// plain `paddle.save` files (`.pdparams`, `.pdopt`), which are one-rank checkpoints.

#include "reshard/format/foreign.h"

namespace reshard::paddle {

/// The one instance.
const ForeignFormat& Format();

}  // namespace reshard::paddle
