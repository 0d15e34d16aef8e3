#pragma once

// Messages of the collective operations: a status first, then what goes with it.

#include <cstdint>

#include "reshard/base/bytes.h"
#include "reshard/base/result.h"
#include "reshard/catalog/wire.h"
#include "reshard/comm/process_group.h"

namespace reshard {

/// A status and what goes with it, as one message.
Bytes PackStatus(const Status& status, ByteSpan payload = {});

/// Takes the status off the front; what follows stays in the reader. An error gets "rank N: "
/// before its message when `global_rank` is given. Errors: the packed one; kInternal BAD_MESSAGE.
Status UnpackStatus(WireReader& reader, int global_rank = -1);

/// The root's number on every rank. Collective: yes.
Result<std::uint64_t> BroadcastNumber(ProcessGroup& group, std::uint64_t number, int root);

/// The global ranks of the group, by group rank.
std::vector<int> GlobalRanks(const ProcessGroup& group);

}  // namespace reshard
