#include "reshard/engine/load_decision.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "reshard/catalog/pieces.h"
#include "reshard/catalog/tiling.h"
#include "reshard/engine/message.h"

namespace reshard {
namespace {

void AppendBits(Bytes& out, const std::vector<bool>& bits) {
  AppendLittle(out, static_cast<std::uint64_t>(bits.size()));
  for (std::size_t i = 0; i < bits.size(); i += 8) {
    unsigned byte = 0;
    for (std::size_t j = i; j < std::min(bits.size(), i + 8); ++j) {
      byte |= bits[j] ? 1U << (j - i) : 0U;
    }
    out.push_back(static_cast<std::byte>(byte));
  }
}

bool ReadBits(WireReader& reader, std::vector<bool>& bits) {
  std::uint64_t count = 0;
  ByteSpan bytes;
  if (!reader.Read(count) || count / 8 > reader.remaining() ||
      !reader.ReadBytes((count + 7) / 8, bytes)) {
    return false;
  }
  bits.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    bits[i] = (std::to_integer<unsigned>(bytes[i / 8]) >> (i % 8) & 1U) != 0;
  }
  return true;
}

void AppendFiles(Bytes& out, const std::vector<std::uint32_t>& files) {
  AppendLittle(out, static_cast<std::uint32_t>(files.size()));
  for (const std::uint32_t file : files) {
    AppendLittle(out, file);
  }
}

bool ReadFiles(WireReader& reader, std::vector<std::uint32_t>& files) {
  std::uint32_t count = 0;
  if (!reader.Read(count) || count > reader.remaining() / sizeof(std::uint32_t)) {
    return false;
  }
  files.resize(count);
  return std::all_of(files.begin(), files.end(),
                     [&reader](std::uint32_t& file) { return reader.Read(file); });
}

}  // namespace

Result<LoadSummary> Summarize(const Catalog& catalog, std::vector<LoadRequest>& requests,
                              bool verify) {
  LoadSummary out;
  std::vector<WantedBox> wanted;
  for (LoadRequest& request : requests) {
    wanted.push_back({request.tensor, request.box});
    request.can_digest = verify && catalog.digest(request.tensor).has_value();
    out.bytes_needed += NumBytes(request.box, catalog.dtype(request.tensor));
  }
  RESHARD_TRY_ASSIGN(const std::vector<Piece> pieces, FindPieces(catalog, wanted));
  std::vector<Verification> how(requests.size(),
                                verify ? Verification::kBlocks : Verification::kNone);
  for (const Piece& piece : pieces) {
    if (out.files.empty() || out.files.back() != piece.file) {
      out.files.push_back(piece.file);
    }
    LoadRequest& request = requests[piece.want];
    request.can_digest = request.can_digest && piece.row_major() && !IsSieved(piece);
  }
  out.bytes_by_block = PlanReads(catalog, pieces, how).bytes;
  out.bytes_by_digest = out.bytes_by_block;
  if (out.bytes_by_block <= out.bytes_needed + out.bytes_needed / 50) {
    return out;  // whole blocks cost next to nothing
  }
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].can_digest) {
      how[i] = Verification::kDigest;
    }
  }
  out.bytes_by_digest = PlanReads(catalog, pieces, how).bytes;
  out.wants_digest = out.bytes_by_digest < out.bytes_by_block;
  return out;
}

Bytes EncodeLoadVote(const LoadVote& vote) {
  Bytes out = PackStatus(vote.status);
  AppendCounted(out, EncodeStatus(vote.file_fault));
  AppendLittle(out, vote.summary.bytes_needed);
  AppendLittle(out, vote.summary.bytes_by_block);
  AppendLittle(out, vote.summary.bytes_by_digest);
  out.push_back(std::byte{vote.summary.wants_digest});
  AppendFiles(out, vote.summary.files);
  AppendCounted(out, vote.requests);
  AppendBits(out, vote.asked);
  return out;
}

Result<LoadVote> DecodeLoadVote(ByteSpan bytes, int global_rank) {
  WireReader reader(bytes);
  LoadVote vote;
  vote.status = UnpackStatus(reader, global_rank);
  vote.file_fault = UnpackStatus(reader, global_rank);
  std::uint8_t wants = 0;
  ByteSpan requests;
  if (!reader.Read(vote.summary.bytes_needed) || !reader.Read(vote.summary.bytes_by_block) ||
      !reader.Read(vote.summary.bytes_by_digest) || !reader.Read(wants) ||
      !ReadFiles(reader, vote.summary.files) || !reader.ReadCounted(requests) ||
      !ReadBits(reader, vote.asked)) {
    return BadMessage("load vote");
  }
  vote.summary.wants_digest = wants != 0;
  vote.requests = Bytes(requests.begin(), requests.end());
  return vote;
}

Result<LoadDecision> DecodeLoadDecision(ByteSpan bytes) {
  WireReader reader(bytes);
  RESHARD_TRY(UnpackStatus(reader));
  LoadDecision out;
  std::uint8_t read_again = 0;
  std::uint8_t exchange = 0;
  std::uint32_t unexpected = 0;
  bool good = reader.Read(read_again) && reader.Read(exchange) && ReadBits(reader, out.by_digest) &&
              ReadFiles(reader, out.files) && reader.Read(unexpected);
  for (std::uint32_t i = 0; good && i < unexpected; ++i) {
    ByteSpan key;
    good = reader.ReadCounted(key);
    out.unexpected.emplace_back(AsText(key));
  }
  std::uint32_t ranks = 0;
  good = good && reader.Read(ranks);
  for (std::uint32_t i = 0; good && i < ranks; ++i) {
    ByteSpan requests;
    good = reader.ReadCounted(requests);
    out.all_requests.emplace_back(requests.begin(), requests.end());
  }
  if (!good) {
    return BadMessage("load decision");
  }
  out.read_again = read_again != 0;
  out.exchange = exchange != 0;
  return out;
}

Bytes LoadJudge::Judge(const std::vector<Bytes>& votes, bool may_read_again) {
  const Result<LoadDecision> decision = Decide(votes, may_read_again);
  if (!decision.ok()) {
    return PackStatus(tl::unexpected<Error>(decision.error()));
  }
  Bytes out = PackStatus(OkStatus());
  out.push_back(std::byte{decision->read_again});
  out.push_back(std::byte{decision->exchange});
  AppendBits(out, decision->by_digest);
  AppendFiles(out, decision->files);
  AppendLittle(out, static_cast<std::uint32_t>(decision->unexpected.size()));
  for (const std::string& key : decision->unexpected) {
    AppendCounted(out, AsBytes(key));
  }
  requests_ = decision->all_requests;
  const std::size_t ranks = decision->exchange ? requests_.size() : 0;
  AppendLittle(out, static_cast<std::uint32_t>(ranks));
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    AppendCounted(out, requests_[rank]);
  }
  return out;
}

Result<LoadDecision> LoadJudge::Decide(const std::vector<Bytes>& bytes, bool may_read_again) {
  std::vector<LoadVote> votes;
  for (std::size_t rank = 0; rank < bytes.size(); ++rank) {
    RESHARD_TRY_ASSIGN(LoadVote vote,
                       DecodeLoadVote(bytes[rank], group_.global_rank(static_cast<int>(rank))));
    RESHARD_TRY(Status(vote.status));
    votes.push_back(std::move(vote));
  }
  LoadDecision out;
  out.by_digest.assign(catalog_.num_tensors(), false);
  Status fault;
  bool all_missing = true;
  for (const LoadVote& vote : votes) {
    if (fault.ok() && !vote.file_fault.ok()) {
      fault = vote.file_fault;
    }
    all_missing = all_missing &&
                  (vote.file_fault.ok() || vote.file_fault.error().code == ErrorCode::kNotFound);
  }
  const bool exchange_may_help =
      all_missing && !all_shared_ && options_.transfer == Transfer::kAuto;
  if (!fault.ok() && !exchange_may_help) {
    if (!may_read_again) {
      return tl::unexpected<Error>(std::move(fault).error());
    }
    out.read_again = true;
    return out;
  }
  std::vector<std::vector<LoadRequest>> requests;
  std::set<std::uint32_t> files;
  std::vector<bool> asked(catalog_.num_tensors() + catalog_.num_objects(), false);
  bool wants_digest = false;
  for (LoadVote& vote : votes) {
    RESHARD_TRY_ASSIGN(std::vector<LoadRequest> decoded,
                       DecodeLoadRequests(vote.requests, catalog_));
    requests.push_back(std::move(decoded));
    files.insert(vote.summary.files.begin(), vote.summary.files.end());
    for (std::size_t i = 0; i < asked.size() && i < vote.asked.size(); ++i) {
      asked[i] = asked[i] || vote.asked[i];
    }
    wants_digest = wants_digest || vote.summary.wants_digest;
  }
  out.files.assign(files.begin(), files.end());
  if (wants_digest) {
    ChooseDigests(requests, out);
  }
  out.exchange = options_.transfer == Transfer::kExchange || !fault.ok() ||
                 (options_.transfer == Transfer::kAuto && group_.size() > 1 &&
                  ReadsTooOften(votes, requests, wants_digest));
  if (out.exchange) {  // every block is read whole
    out.by_digest.assign(catalog_.num_tensors(), false);
  }
  for (std::size_t i = 0; i < asked.size(); ++i) {
    if (asked[i]) {
      continue;
    }
    const std::size_t object = i - catalog_.num_tensors();
    if (i < catalog_.num_tensors()) {
      out.unexpected.emplace_back(catalog_.key(i));
    } else if (catalog_.object_rank(object) < 0) {
      out.unexpected.emplace_back(catalog_.object_key(object));
    } else {
      out.unexpected.push_back(
          fmt::format("{} (rank {})", catalog_.object_key(object), catalog_.object_rank(object)));
    }
  }
  for (LoadVote& vote : votes) {
    out.all_requests.push_back(std::move(vote.requests));
  }
  return out;
}

/// A tensor can be verified by its digest when the distinct boxes of all ranks tile it.
void LoadJudge::ChooseDigests(const std::vector<std::vector<LoadRequest>>& requests,
                              LoadDecision& decision) const {
  std::map<TensorId, std::set<std::pair<Index, Index>>> boxes;
  std::set<TensorId> cannot;
  for (const auto& rank : requests) {
    for (const LoadRequest& request : rank) {
      boxes[request.tensor].emplace(request.box.offset, request.box.extent);
      if (!request.can_digest) {
        cannot.insert(request.tensor);
      }
    }
  }
  for (const auto& [tensor, distinct] : boxes) {
    std::vector<BoxView> views;
    for (const auto& [offset, extent] : distinct) {
      views.emplace_back(offset, extent);
    }
    decision.by_digest[tensor] =
        cannot.count(tensor) == 0 && TilesExactly(WholeBox(catalog_.shape(tensor)), views);
  }
}

/// Direct reads of all ranks against the distinct bytes that are wanted.
bool LoadJudge::ReadsTooOften(const std::vector<LoadVote>& votes,
                              const std::vector<std::vector<LoadRequest>>& requests,
                              bool any_digest) const {
  constexpr std::uint64_t kNotWorthIt = std::uint64_t{4} << 20;
  std::uint64_t reads = 0;
  for (const LoadVote& vote : votes) {
    reads += any_digest ? vote.summary.bytes_by_digest : vote.summary.bytes_by_block;
  }
  std::uint64_t distinct = 0;
  std::set<std::tuple<TensorId, Index, Index>> seen;
  for (const auto& rank : requests) {
    for (const LoadRequest& request : rank) {
      if (seen.emplace(request.tensor, request.box.offset, request.box.extent).second) {
        distinct += NumBytes(request.box, catalog_.dtype(request.tensor));
      }
    }
  }
  return reads > distinct + distinct / 20 + kNotWorthIt;
}

}  // namespace reshard
