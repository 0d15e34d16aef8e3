#pragma once

// Commands with many threads must not need much more address space than memory: batch systems limit
// it (ulimit -v).

namespace reshard::cli {

/// From now on a new thread has a small stack and no arena of its own. Call before the first one.
void SaveAddressSpace();

}  // namespace reshard::cli
