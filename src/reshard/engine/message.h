#pragma once

// Messages of the collective operations: a status first, then what goes with it.

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

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

/// Checks that all ranks name the same coordinator, that it is in the group, and that they pass the
/// same options, written as text for the message. Errors, the same on every rank: kInvalidArgument
/// BAD_COORDINATOR, OPTIONS_MISMATCH. Collective: yes.
Status AgreeOnOptions(ProcessGroup& group, int coordinator_rank, std::string_view options);

/// Runs a callback of the caller; what it throws becomes kCancelled CALLBACK, which names `what`
/// ("the progress callback").
Status CallGuarded(std::string_view what, const std::function<Status()>& callback);

/// Never frees the buffers: the group is dead, but its transport may still look at them.
void KeepForGood(std::vector<Bytes> buffers);

/// The root's number on every rank. Collective: yes.
Result<std::uint64_t> BroadcastNumber(ProcessGroup& group, std::uint64_t number, int root);

/// The global ranks of the group, by group rank.
std::vector<int> GlobalRanks(const ProcessGroup& group);

}  // namespace reshard
