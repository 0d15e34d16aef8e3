#include <fmt/format.h>

#include <algorithm>

#include "reshard/comm/process_group.h"

namespace reshard {
namespace {

tl::unexpected<Error> BadArgument(std::string message) {
  return MakeError(ErrorCode::kInvalidArgument, "BAD_RANKS", std::move(message));
}

class SingleGroup final : public ProcessGroup {
 public:
  explicit SingleGroup(int global) : global_(global) {}

  using ProcessGroup::global_rank;

  int rank() const override { return 0; }

  int size() const override { return 1; }

  bool shares_memory() const override { return true; }

  int global_rank(int rank) const override { return rank == 0 ? global_ : -1; }

  Result<std::vector<Bytes>> Gather(ByteSpan mine, int root, Wait /*wait*/) override {
    RESHARD_TRY(CheckRoot(root));
    return std::vector<Bytes>{Bytes(mine.begin(), mine.end())};
  }

  Result<Bytes> Broadcast(ByteSpan mine, int root, Wait /*wait*/) override {
    RESHARD_TRY(CheckRoot(root));
    return Bytes(mine.begin(), mine.end());
  }

  Result<std::vector<Bytes>> AllGather(ByteSpan mine, Wait wait) override {
    return Gather(mine, 0, wait);
  }

  Status AllToAllV(std::span<const ByteSpan> send, std::span<const MutableByteSpan> receive,
                   Wait /*wait*/) override {
    if (send.size() != 1 || receive.size() != 1 || send[0].size() != receive[0].size()) {
      return MakeError(ErrorCode::kInvalidArgument, "SIZE_MISMATCH",
                       "AllToAllV in a group of one needs one buffer each way, of one size");
    }
    std::copy(send[0].begin(), send[0].end(), receive[0].begin());
    return OkStatus();
  }

  Status Barrier(Wait /*wait*/) override { return OkStatus(); }

  void Beat() override {}

  Result<std::unique_ptr<ProcessGroup>> Duplicate() override { return SingleProcessGroup(global_); }

  Result<std::unique_ptr<ProcessGroup>> Subgroup(std::span<const int> ranks) override {
    if (ranks.empty()) {
      return std::unique_ptr<ProcessGroup>();
    }
    if (ranks.size() != 1 || ranks[0] != 0) {
      return BadArgument("a subgroup of a group of one has rank 0 alone");
    }
    return SingleProcessGroup(global_);
  }

 private:
  static Status CheckRoot(int root) {
    if (root != 0) {
      return BadArgument(fmt::format("rank {} is outside the group of one rank", root));
    }
    return OkStatus();
  }

  int global_;
};

}  // namespace

std::unique_ptr<ProcessGroup> SingleProcessGroup(int global_rank) {
  return std::make_unique<SingleGroup>(global_rank);
}

}  // namespace reshard
