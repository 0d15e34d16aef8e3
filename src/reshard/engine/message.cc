#include "reshard/engine/message.h"

#include <fmt/format.h>

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
  for (int rank = 0; rank < group.size(); ++rank) {
    ranks.push_back(group.global_rank(rank));
  }
  return ranks;
}

}  // namespace reshard
