#pragma once

// Paddle's checkpoints as a foreign format: distributed ones (`{id}.metadata` and data files) and
// plain `paddle.save` files (`.pdparams`, `.pdopt`), which are one-rank checkpoints whose
// metadata_name is the file itself.
//
// File names come from the metadata as they stand there. Whoever opens them checks them first: a
// name with "..", a leading "/" or another way out of the directory must never be opened.

#include "reshard/format/foreign.h"

namespace reshard::paddle {

/// The one instance.
const ForeignFormat& Format();

}  // namespace reshard::paddle
