#pragma once

// PyTorch's distributed checkpoints (DCP) as a foreign format: a directory with `.metadata`, or
// with one `__{rank}.metadata` per rank, and data files of any name. docs/format/torch_dcp.md.

#include "reshard/format/foreign.h"

namespace reshard::torch {

/// The one instance. Its name is "torch".
const ForeignFormat& DcpFormat();

}  // namespace reshard::torch
