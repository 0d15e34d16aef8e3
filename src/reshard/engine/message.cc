#include "reshard/engine/message.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace reshard {

Bytes PackStatus(const Status& status, ByteSpan payload) {
  Bytes out;
  AppendCounted(out, EncodeStatus(status));
  out.insert(out.end(), payload.begin(), payload.end());
  return out;
}

Status UnpackStatus(WireReader& reader, int global_rank) {
  ByteSpan bytes;
  if (!reader.ReadCounted(bytes)) {
    return BadMessage("status");
  }
  RESHARD_TRY_ASSIGN(Status status, DecodeStatus(bytes));
  if (!status.ok() && global_rank >= 0) {
    return tl::unexpected<Error>(status.error().WithContext(fmt::format("rank {}", global_rank)));
  }
  return status;
}

namespace {

struct Terms {
  std::uint64_t coordinator = 0;
  ByteSpan options;
};

/// On the first rank: compares everybody's terms with its own.
Status CompareTerms(const ProcessGroup& group, const std::vector<Bytes>& all) {
  Terms first;
  for (int rank = 0; rank < group.size(); ++rank) {
    WireReader reader(all[static_cast<std::size_t>(rank)]);
    Terms terms;
    if (!reader.Read(terms.coordinator) || !reader.ReadCounted(terms.options)) {
      return BadMessage("options");
    }
    if (rank == 0) {
      first = terms;
    }
    if (terms.coordinator != first.coordinator) {
      return MakeError(ErrorCode::kInvalidArgument, "BAD_COORDINATOR",
                       fmt::format("rank {} was called with coordinator rank {}, rank {} with {}; "
                                   "pass the same on all ranks",
                                   group.global_rank(0), first.coordinator, group.global_rank(rank),
                                   terms.coordinator));
    }
    if (!std::ranges::equal(terms.options, first.options)) {
      return MakeError(ErrorCode::kInvalidArgument, "OPTIONS_MISMATCH",
                       fmt::format("rank {} was called with {}; rank {} with {}; pass the same on "
                                   "all ranks",
                                   group.global_rank(0), AsText(first.options),
                                   group.global_rank(rank), AsText(terms.options)));
    }
  }
  return OkStatus();
}

}  // namespace

Status AgreeOnOptions(ProcessGroup& group, int coordinator_rank, std::string_view options) {
  Bytes mine;
  AppendLittle(mine, static_cast<std::uint64_t>(coordinator_rank));
  AppendCounted(mine, AsBytes(options));
  RESHARD_TRY_ASSIGN(const std::vector<Bytes> all, group.Gather(mine, 0));
  Bytes verdict;
  if (group.rank() == 0) {
    verdict = PackStatus(CompareTerms(group, all));
  }
  RESHARD_TRY_ASSIGN(const Bytes told, group.Broadcast(verdict, 0));
  WireReader reader(told);
  RESHARD_TRY(UnpackStatus(reader));
  if (group.FindGlobalRank(coordinator_rank) < 0) {  // the same on every rank
    return MakeError(
        ErrorCode::kInvalidArgument, "BAD_COORDINATOR",
        fmt::format("coordinator rank {} is not in the process group", coordinator_rank));
  }
  return OkStatus();
}

Status CallGuarded(std::string_view what, const std::function<Status()>& callback) {
  try {
    return callback();
  } catch (const std::exception& e) {
    return MakeError(ErrorCode::kCancelled, "CALLBACK",
                     fmt::format("{} threw: {}", what, e.what()));
  } catch (...) {
    return MakeError(ErrorCode::kCancelled, "CALLBACK",
                     fmt::format("{} threw something that is no std::exception", what));
  }
}

void KeepForGood(std::vector<Bytes> buffers) {
  static_cast<void>(new std::vector<Bytes>(std::move(buffers)));  // NOLINT: never freed, on purpose
}

Result<std::uint64_t> BroadcastNumber(ProcessGroup& group, std::uint64_t number, int root) {
  Bytes message;
  AppendLittle(message, number);
  RESHARD_TRY_ASSIGN(const Bytes told, group.Broadcast(message, root));
  WireReader reader(told);
  std::uint64_t out = 0;
  if (!reader.Read(out)) {
    return BadMessage("number");
  }
  return out;
}

std::vector<int> GlobalRanks(const ProcessGroup& group) {
  std::vector<int> ranks;
  ranks.reserve(static_cast<std::size_t>(group.size()));
  for (int rank = 0; rank < group.size(); ++rank) {
    ranks.push_back(group.global_rank(rank));
  }
  return ranks;
}

}  // namespace reshard
