#pragma once

// The two ways in which the bytes of one phase of a load get from files into memory.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/base/thread_pool.h"
#include "reshard/catalog/pieces.h"
#include "reshard/comm/process_group.h"
#include "reshard/engine/block_reader.h"
#include "reshard/engine/load_request.h"

namespace reshard {

/// Memory that takes one wanted box.
struct BoxTarget {
  std::byte* base = nullptr;               ///< Of the box's first element.
  std::vector<std::int64_t> stride_bytes;  ///< Per axis, last in units.
  /// Where the part of the digest goes; null: verify by blocks.
  std::atomic<std::uint64_t>* digest_part = nullptr;
};

/// What both ways need. Not owning.
struct MoveContext {
  const Catalog& catalog;
  BlockReader& reader;
  ThreadPool& pool;
  /// Called with bytes delivered since the last call, from worker threads; an error stops.
  std::function<Status(std::uint64_t)> advance;
};

/// Reads what this rank wants from its own storage. Not collective. Files are opened on the way.
Status MoveDirectly(const MoveContext& context, std::span<const WantedBox> wanted,
                    std::span<const BoxTarget> targets);

/// What all ranks want in this phase, and who sees which file.
struct ExchangeView {
  std::vector<std::vector<WantedBox>> wanted;  ///< Per rank.
  std::vector<std::vector<bool>> sees;         ///< [rank][file]
  std::uint64_t round_bytes = 0;  ///< Bound on what this rank sends or receives in a round.
};

/// Reads every block that some rank wants once, on one rank that sees it, balanced by bytes, and
/// sends the parts on, in rounds of bounded size that overlap with reading. Collective; a rank
/// whose `local` is an error, or that meets one, stays in every round, but nothing is written to
/// its targets any more. Returns whether the group lives; `local` is this rank's own outcome, not
/// yet agreed. `received` counts bytes from other ranks.
Status MoveByExchange(const MoveContext& context, ProcessGroup& group, const ExchangeView& view,
                      std::span<const BoxTarget> targets, Status& local, std::uint64_t& received);

}  // namespace reshard
