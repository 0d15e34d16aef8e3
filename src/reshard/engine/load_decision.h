#pragma once

// The coordinator's part of a load: it looks at what all ranks want and decides how the bytes move
// and how they are verified.

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/base/bytes.h"
#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/comm/process_group.h"
#include "reshard/engine/load.h"
#include "reshard/engine/load_request.h"

namespace reshard {

/// What one rank's load costs.
struct LoadSummary {
  std::uint64_t bytes_needed = 0;
  std::uint64_t bytes_by_block = 0;   ///< Read when every touched block is read whole.
  std::uint64_t bytes_by_digest = 0;  ///< Read when tensors that can be are verified by digest.
  bool wants_digest = false;          ///< Reading whole blocks would read much more.
  std::vector<std::uint32_t> files;   ///< Needed, sorted.
};

/// Plans one rank's reads; sets `can_digest` of the requests. Errors: those of FindPieces.
/// Not collective. Cost: proportional to the chunks of the wanted tensors.
Result<LoadSummary> Summarize(const Catalog& catalog, std::vector<LoadRequest>& requests,
                              bool verify);

/// What a rank tells the coordinator.
struct LoadVote {
  Status status;
  Status file_fault;  ///< A file that is missing or does not match here.
  LoadSummary summary;
  Bytes requests;           ///< EncodeLoadRequests
  std::vector<bool> asked;  ///< Tensors, then objects, that this rank asked for.
};

Bytes EncodeLoadVote(const LoadVote& vote);
Result<LoadVote> DecodeLoadVote(ByteSpan bytes, int global_rank);

/// What all ranks are told.
struct LoadDecision {
  bool read_again = false;  ///< The catalog may have been replaced: start over, once.
  bool exchange = false;
  std::vector<bool> by_digest;       ///< Per tensor: verified by digest.
  std::vector<std::uint32_t> files;  ///< Needed by some rank.
  std::vector<std::string> unexpected;
  std::vector<Bytes> all_requests;  ///< Per rank; in an exchange, and on the coordinator.
};

/// Errors: the agreed failure of the load; kInternal BAD_MESSAGE.
Result<LoadDecision> DecodeLoadDecision(ByteSpan bytes);

/// Makes the decision, on the coordinator.
class LoadJudge {
 public:
  LoadJudge(const Catalog& catalog, const ProcessGroup& group, const LoadOptions& options,
            bool all_shared)
      : catalog_(catalog), group_(group), options_(options), all_shared_(all_shared) {}

  /// The message for all ranks, from all ranks' votes.
  Bytes Judge(const std::vector<Bytes>& votes, bool may_read_again);

  /// The requests of all ranks, after Judge: only an exchange tells them to everybody.
  std::vector<Bytes> TakeRequests() { return std::move(requests_); }

 private:
  Result<LoadDecision> Decide(const std::vector<Bytes>& bytes, bool may_read_again);
  void ChooseDigests(const std::vector<std::vector<LoadRequest>>& requests,
                     LoadDecision& decision) const;
  bool ReadsTooOften(const std::vector<LoadVote>& votes,
                     const std::vector<std::vector<LoadRequest>>& requests, bool any_digest) const;

  const Catalog& catalog_;
  const ProcessGroup& group_;
  const LoadOptions& options_;
  bool all_shared_;
  std::vector<Bytes> requests_;
};

}  // namespace reshard
