#pragma once

// An exchange among ranks that are threads of one process.

#include <cstdint>
#include <span>

#include "reshard/base/result.h"
#include "reshard/comm/process_group.h"
#include "reshard/engine/exchange_units.h"
#include "reshard/engine/mover.h"

namespace reshard {

/// Like MoveByExchange, without messages: each rank reads its units and puts the bytes straight
/// into the memory of every rank that wants them. Returns when no other rank writes to `targets`
/// any more, also after an error: it may then wait for reads of one unit. The group must share
/// memory.
Status MoveShared(const MoveContext& context, ProcessGroup& group, const ExchangeView& view,
                  const ExchangeUnits& work, std::span<const BoxTarget> targets, Status& local,
                  std::uint64_t& received);

}  // namespace reshard
