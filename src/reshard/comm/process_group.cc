#include "reshard/comm/process_group.h"

#include <fmt/format.h>

#include <algorithm>

namespace reshard {
namespace {

// Code and flags, then the two lengths.
constexpr std::size_t kHead = 2 + 2 * sizeof(std::uint32_t);
constexpr std::size_t kMaxReason = 256;
constexpr std::size_t kMaxText = 64 << 10;
constexpr std::uint8_t kRetryable = 1;
constexpr std::uint8_t kDataLoss = 2;

void AppendText(Bytes& out, std::string_view text) {
  const ByteSpan bytes = AsBytes(text);
  out.insert(out.end(), bytes.begin(), bytes.end());
}

tl::unexpected<Error> BadStatus(std::string_view why) {
  return MakeError(ErrorCode::kInternal, "BAD_STATUS",
                   fmt::format("an encoded error {}; are all ranks the same version?", why));
}

}  // namespace

int ProcessGroup::FindGlobalRank(int global) const {
  for (int i = 0; i < size(); ++i) {
    if (global_rank(i) == global) {
      return i;
    }
  }
  return -1;
}

Status ProcessGroup::Agree(const Status& mine, Wait wait) {
  Bytes vote;
  if (!mine.ok()) {
    vote = EncodeStatus(
        tl::unexpected<Error>(mine.error().WithContext(fmt::format("rank {}", global_rank()))));
  }
  RESHARD_TRY_ASSIGN(std::vector<Bytes> votes, Gather(vote, 0, wait));
  // Not lowest in this group but in the job: the same whatever the order of a subgroup.
  Bytes verdict;
  int lowest = -1;
  for (std::size_t i = 0; i < votes.size(); ++i) {
    const int global = global_rank(static_cast<int>(i));
    if (!votes[i].empty() && (lowest < 0 || global < lowest)) {
      lowest = global;
      verdict = std::move(votes[i]);
    }
  }
  RESHARD_TRY_ASSIGN(verdict, Broadcast(verdict, 0, wait));
  if (verdict.empty()) {
    return OkStatus();
  }
  RESHARD_TRY_ASSIGN(Status status, DecodeStatus(verdict));
  return status;
}

Bytes EncodeStatus(const Status& status) {
  Bytes out;
  if (status.ok()) {
    out.assign(kHead, std::byte{0});
    return out;
  }
  const Error& error = status.error();
  const std::string_view reason = std::string_view(error.reason).substr(0, kMaxReason);
  const std::string_view text = std::string_view(error.message).substr(0, kMaxText);
  out.resize(kHead);
  StoreLittle(out.data(), error.code);
  StoreLittle(out.data() + 1, static_cast<std::uint8_t>((error.retryable ? kRetryable : 0) |
                                                        (error.data_loss ? kDataLoss : 0)));
  StoreLittle(out.data() + 2, static_cast<std::uint32_t>(reason.size()));
  StoreLittle(out.data() + 6, static_cast<std::uint32_t>(text.size()));
  AppendText(out, reason);
  AppendText(out, text);
  return out;
}

Result<Status> DecodeStatus(ByteSpan bytes) {
  if (bytes.size() < kHead) {
    return BadStatus("is cut");
  }
  const auto code = LoadLittle<std::uint8_t>(bytes.data());
  const auto flags = LoadLittle<std::uint8_t>(bytes.data() + 1);
  const auto reason_size = LoadLittle<std::uint32_t>(bytes.data() + 2);
  const auto text_size = LoadLittle<std::uint32_t>(bytes.data() + 6);
  if (reason_size > kMaxReason || text_size > kMaxText ||
      bytes.size() != kHead + reason_size + text_size) {
    return BadStatus("has lengths that do not fit");
  }
  if (code > static_cast<std::uint8_t>(ErrorCode::kInternal) || flags > (kRetryable | kDataLoss)) {
    return BadStatus(fmt::format("has the unknown code {} or flags {}", code, flags));
  }
  if (code == 0) {
    if (bytes.size() != kHead || flags != 0) {
      return BadStatus("says OK with a reason");
    }
    return OkStatus();
  }
  Error error;
  error.code = static_cast<ErrorCode>(code);
  error.reason = AsText(bytes.subspan(kHead, reason_size));
  error.message = AsText(bytes.subspan(kHead + reason_size));
  error.retryable = (flags & kRetryable) != 0;
  error.data_loss = (flags & kDataLoss) != 0;
  return Status(tl::unexpected<Error>(std::move(error)));
}

}  // namespace reshard
