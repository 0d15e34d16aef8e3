#include "reshard/engine/load.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <thread>

#include "reshard/base/mutex.h"
#include "reshard/catalog/tiling.h"
#include "reshard/catalog/wire.h"
#include "reshard/codec/crc64.h"
#include "reshard/engine/load_decision.h"
#include "reshard/engine/message.h"
#include "reshard/engine/mover.h"
#include "reshard/engine/open_catalog.h"
#include "reshard/engine/staging.h"
#include "reshard/storage/posix_path.h"
#include "reshard/storage/staging_buffer.h"

namespace reshard {
namespace {

/// Where the bytes of one request go on this rank.
struct LocalRequest {
  const TensorShard* shard = nullptr;
  DType wanted = DType::kUint8;
  std::string key;
};

bool IsFileFault(const Error& error) {
  return error.reason == "FILE_MISSING" || error.reason == "FILE_SIZE" ||
         error.reason == "FILE_HEAD";
}

/// Larger rounds of an exchange gain nothing and leave the caches.
constexpr std::uint64_t kMostRoundBytes = std::uint64_t{16} << 20;

/// Each overwrite that comes between makes another look worth while, but not for ever.
constexpr int kMostCatalogReads = 16;

bool IsSameSave(const Catalog& a, const Catalog& b) {
  return a.info().unique_id == b.info().unique_id && a.info().attempt == b.info().attempt;
}

Status Fail(Error error) { return tl::unexpected<Error>(std::move(error)); }

/// Checks a target that the caller gave.
Status CheckTarget(const std::string& key, const Tensor& tensor) {
  for (const TensorShard& shard : tensor.shards) {
    Status status = CheckShape(tensor.global_shape, tensor.dtype);
    if (status.ok()) {
      status = CheckBox(shard.box, tensor.global_shape, tensor.dtype);
    }
    if (status.ok() && shard.source) {
      status = MakeError(ErrorCode::kInvalidArgument, "SOURCE_ON_LOAD",
                         "a shard with a source can only be saved; give it a view or a sink");
    }
    if (status.ok() && !shard.sink) {
      status = CheckView(shard.view);
    }
    if (!status.ok()) {
      return Fail(status.error().WithContext(fmt::format("tensor '{}'", key)));
    }
    if (!shard.sink && (shard.view.shape != shard.box.extent || shard.view.dtype != tensor.dtype)) {
      return MakeError(
          ErrorCode::kInvalidArgument, "SHARD_SHAPE",
          fmt::format("tensor '{}': the box {} of {} does not fit memory of shape {} and {}", key,
                      ToString(shard.box), Info(tensor.dtype).name, ToString(shard.view.shape),
                      Info(shard.view.dtype).name));
    }
  }
  return OkStatus();
}

/// One load, on one rank.
class LoadSession {
 public:
  LoadSession(StateDict& state, Storage* storage, Status storage_status, ProcessGroup& group,
              const LoadOptions& options)
      : state_(state),
        storage_(storage),
        group_(group),
        options_(options),
        local_(std::move(storage_status)),
        root_(group.FindGlobalRank(options.coordinator_rank)) {}

  Result<LoadReport> Run() {
    RESHARD_TRY(AgreeOnOptions(group_, options_.coordinator_rank, OptionsText()));
    FlattenState();
    for (int reads = 0;; ++reads) {
      RESHARD_TRY_ASSIGN(AgreedCatalog agreed,
                         AgreeOnCatalog(storage_, local_, group_, root_, options_.unique_id));
      // Files that are not there are looked for again as long as the catalog changes.
      const bool changed = reads == 0 || !IsSameSave(agreed.catalog, *catalog_);
      catalog_ = std::make_unique<Catalog>(std::move(agreed.catalog));
      all_shared_ = agreed.all_shared;
      faults_ = std::move(agreed.faults);
      reader_ = std::make_unique<BlockReader>(*catalog_, *storage_, options_.verify);
      RESHARD_TRY(ResolveKeys());
      PlanOwn();
      RESHARD_TRY(Decide(changed && reads + 1 < kMostCatalogReads));
      if (!decision_.read_again) {
        break;
      }
    }
    RESHARD_TRY(MoveAll());
    RESHARD_TRY(CheckDigests());
    SetObjects();
    return Finish();
  }

 private:
  bool is_root() const { return group_.rank() == root_; }

  /// What all ranks must pass alike.
  std::string OptionsText() const {
    return fmt::format(
        "unique_id={} strict={} verify={} dtype={} shape={} per_rank={} mw_name_compatibility={} "
        "transfer={} memory_bytes={}",
        options_.unique_id ? std::to_string(*options_.unique_id) : "newest", options_.strict,
        options_.verify, static_cast<int>(options_.dtype), static_cast<int>(options_.shape),
        static_cast<int>(options_.per_rank), options_.mw_name_compatibility,
        static_cast<int>(options_.transfer), options_.memory_bytes);
  }

  void FlattenState() {
    if (!local_.ok()) {
      return;
    }
    Result<std::vector<MutableFlatEntry>> leaves = Flatten(state_);
    if (!leaves.ok()) {
      local_ = Fail(std::move(leaves).error());
      return;
    }
    leaves_ = std::move(*leaves);
    for (const MutableFlatEntry& leaf : leaves_) {
      const auto* tensor = leaf.leaf->get_if<Tensor>();
      if (tensor != nullptr && local_.ok()) {
        local_ = CheckTarget(leaf.key, *tensor);
      }
    }
  }

  /// Finds what is stored for each wanted key; in a strict load nothing may stay unresolved
  /// anywhere.
  Status ResolveKeys() {
    ResolveOptions resolve;
    resolve.dtype = options_.dtype;
    resolve.shape = options_.shape;
    resolve.per_rank = options_.per_rank;
    resolve.mw_name_compatibility = options_.mw_name_compatibility;
    resolve.rename = options_.rename;
    resolve.rank = group_.rank();
    resolve.world_size = group_.size();
    return group_.Agree(CallGuarded("the rename rule", [&]() -> Status {
      RESHARD_TRY_ASSIGN(resolution_, Resolve(*catalog_, leaves_, resolve));
      RESHARD_TRY(CheckFaults());
      return options_.strict ? CheckStrict() : OkStatus();
    }));
  }

  /// A wanted tensor that is stored but cannot be read is damage, strict or not.
  Status CheckFaults() const {
    for (const ForeignFault& fault : faults_) {
      const bool wanted =
          std::any_of(fault.keys.begin(), fault.keys.end(), [this](const std::string& key) {
            const auto& missing = resolution_.missing;
            return std::find(missing.begin(), missing.end(), key) != missing.end();
          });
      if (wanted) {
        return Fail(FirstFault({fault}));
      }
    }
    return OkStatus();
  }

  Status CheckStrict() const {
    if (!resolution_.mismatched.empty()) {
      std::vector<std::string> lines;
      for (const Mismatch& mismatch : resolution_.mismatched) {
        lines.push_back(fmt::format("'{}': {}", mismatch.key, mismatch.what));
      }
      return MakeError(
          ErrorCode::kInvalidArgument, "MISMATCH",
          fmt::format("{} of {} wanted keys differ from what snapshot {} stores: {}; change "
                      "the target, or pass a policy that allows it (dtype, shape, per_rank)",
                      lines.size(), leaves_.size(), catalog_->info().unique_id,
                      fmt::join(lines, "; ")));
    }
    if (!resolution_.missing.empty()) {
      return MakeError(
          ErrorCode::kNotFound, "MISSING_KEYS",
          fmt::format("{} of {} wanted keys are not in snapshot {}: '{}'; add a rename rule, "
                      "or pass strict=false to load the others",
                      resolution_.missing.size(), leaves_.size(), catalog_->info().unique_id,
                      fmt::join(resolution_.missing, "', '")));
    }
    return OkStatus();
  }

  /// The requests of this rank, what they cost to read, and the files they need.
  void PlanOwn() {
    requests_.clear();
    locals_.clear();
    for (const ResolvedTensor& resolved : resolution_.tensors) {
      const auto* tensor = leaves_[resolved.leaf].leaf->get_if<Tensor>();
      const Box stored = WholeBox(catalog_->shape(resolved.tensor));
      for (const TensorShard& shard : tensor->shards) {
        const std::optional<Box> box = Intersect(shard.box, stored);  // smaller with kAllowLarger
        if (!box || IsEmpty(*box)) {
          continue;
        }
        LoadRequest request;
        request.tensor = resolved.tensor;
        request.box = *box;
        request.staged = shard.sink != nullptr || tensor->dtype != catalog_->dtype(resolved.tensor);
        requests_.push_back(std::move(request));
        locals_.push_back({&shard, tensor->dtype, leaves_[resolved.leaf].key});
      }
    }
    summary_ = {};
    Result<LoadSummary> summary = Summarize(*catalog_, requests_, options_.verify);
    if (summary.ok()) {
      summary_ = std::move(*summary);
    } else if (local_.ok()) {
      local_ = Fail(std::move(summary).error());
    }
    if (options_.transfer != Transfer::kExchange) {
      OpenFiles();
    }
    report_.bytes_needed = summary_.bytes_needed;
  }

  /// A missing file may be visible elsewhere; one that does not match may belong to an overwritten
  /// snapshot. Both are for the coordinator to judge.
  void OpenFiles() {
    for (const std::uint32_t file : summary_.files) {
      if (!local_.ok()) {
        return;
      }
      Status status = reader_->Open(file);
      if (!status.ok() && IsFileFault(status.error())) {
        file_fault_ = status;
        return;
      }
      local_ = status;
    }
  }

  /// The coordinator looks at all requests and decides how to load; everybody learns it.
  Status Decide(bool may_read_again) {
    LoadVote vote;
    vote.status = local_;
    vote.file_fault = file_fault_;
    vote.summary = summary_;
    vote.requests = EncodeLoadRequests(requests_);
    vote.asked = AskedBits();
    file_fault_ = OkStatus();
    RESHARD_TRY_ASSIGN(const std::vector<Bytes> votes, group_.Gather(EncodeLoadVote(vote), root_));
    Bytes message;
    LoadJudge judge(*catalog_, group_, options_, all_shared_);
    if (is_root()) {
      message = judge.Judge(votes, may_read_again);
    }
    RESHARD_TRY_ASSIGN(const Bytes told, group_.Broadcast(message, root_));
    RESHARD_TRY_ASSIGN(decision_, DecodeLoadDecision(told));
    if (is_root()) {
      decision_.all_requests = judge.TakeRequests();
    }
    if (decision_.exchange && !decision_.read_again) {
      return ShareVisibility(may_read_again);
    }
    return OkStatus();
  }

  std::vector<bool> AskedBits() const {
    std::vector<bool> bits(catalog_->num_tensors() + catalog_->num_objects(), false);
    for (const std::string& key : resolution_.stored_keys) {
      if (const std::optional<TensorId> tensor = catalog_->Find(key)) {
        bits[*tensor] = true;
      }
      const auto [first, last] = catalog_->FindObjects(key);
      for (std::size_t i = first; i < last; ++i) {
        const bool own = options_.per_rank != PerRankPolicy::kSameRank ||
                         catalog_->object_rank(i) < 0 || catalog_->object_rank(i) == group_.rank();
        bits[catalog_->num_tensors() + i] = own;
      }
    }
    return bits;
  }

  /// What a rank tells the others of one file.
  enum class Sight : std::uint8_t { kNone, kOther, kWhole };

  /// Before an exchange: which rank sees which file, and is there one for each that is needed?
  Status ShareVisibility(bool may_read_again) {
    Status status;
    Bytes sights(catalog_->files().size(), static_cast<std::byte>(Sight::kNone));
    std::map<std::uint32_t, Status> faults;
    for (const std::uint32_t file : decision_.files) {
      Status opened = reader_->Open(file);
      if (opened.ok()) {
        sights[file] = static_cast<std::byte>(Sight::kWhole);
      } else if (IsFileFault(opened.error())) {
        const bool there = opened.error().code != ErrorCode::kNotFound;
        sights[file] = static_cast<std::byte>(there ? Sight::kOther : Sight::kNone);
        faults.emplace(file, std::move(opened));
      } else if (status.ok()) {
        status = std::move(opened);
      }
      group_.Beat();
    }
    RESHARD_TRY(group_.Agree(status));
    RESHARD_TRY_ASSIGN(const std::vector<Bytes> all, group_.AllGather(sights));
    visible_.assign(all.size(), std::vector<bool>(sights.size(), false));
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      for (const std::uint32_t file : decision_.files) {
        visible_[rank][file] = all[rank][file] == static_cast<std::byte>(Sight::kWhole);
      }
    }
    RESHARD_TRY(DecodeAllRequests());
    const std::optional<std::uint32_t> unseen = FirstUnseen();
    if (!unseen) {
      return OkStatus();
    }
    if (may_read_again) {
      decision_.read_again = true;
      return OkStatus();
    }
    // Who sees another file of that name can say more than who sees none.
    const bool own_is_other = sights[*unseen] == static_cast<std::byte>(Sight::kOther);
    RESHARD_TRY(group_.Agree(own_is_other ? faults.at(*unseen) : OkStatus()));
    return NobodySees(*unseen);
  }

  Status DecodeAllRequests() {
    all_requests_.clear();
    for (const Bytes& bytes : decision_.all_requests) {
      RESHARD_TRY_ASSIGN(std::vector<LoadRequest> requests, DecodeLoadRequests(bytes, *catalog_));
      all_requests_.push_back(std::move(requests));
    }
    return OkStatus();
  }

  /// The same on every rank.
  std::optional<std::uint32_t> FirstUnseen() const {
    for (const std::uint32_t file : decision_.files) {
      const bool seen = std::any_of(visible_.begin(), visible_.end(),
                                    [file](const std::vector<bool>& sees) { return sees[file]; });
      if (!seen) {
        return file;
      }
    }
    return std::nullopt;
  }

  Status NobodySees(std::uint32_t file) const {
    return MakeError(ErrorCode::kNotFound, "FILE_MISSING",
                     fmt::format("{}: no rank sees this data file of snapshot {}; restore it, or "
                                 "load an older snapshot",
                                 catalog_->files()[file].name, catalog_->info().unique_id));
  }

  /// Runs the phases; ends with a vote.
  Status MoveAll() {
    const std::uint64_t phase_bytes =
        std::max<std::uint64_t>(options_.memory_bytes / 4, kBlockBytes);
    steps_ = DivideIntoSteps(*catalog_, requests_, phase_bytes);
    if (decision_.exchange) {
      for (const auto& requests : all_requests_) {
        all_steps_.push_back(DivideIntoSteps(*catalog_, requests, phase_bytes));
      }
    }
    parts_ = std::vector<std::atomic<std::uint64_t>>(requests_.size());
    ThreadPool pool(NumThreads());
    const MoveContext context{*catalog_, *reader_, pool,
                              [this](std::uint64_t bytes) { return Advance(bytes); }};
    for (std::uint32_t phase = 0; phase < NumPhases(); ++phase) {
      RESHARD_TRY(MovePhase(context, phase));
    }
    report_.bytes_read = reader_->bytes_read();
    return OkStatus();
  }

  std::size_t NumThreads() const {
    const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
    return options_.threads != 0 ? options_.threads : std::min<std::size_t>(cores, 8);
  }

  /// In an exchange every rank takes part in every phase of any rank.
  std::uint32_t NumPhases() const {
    std::uint32_t last = steps_.empty() ? 0 : steps_.back().phase;
    for (const auto& steps : all_steps_) {
      last = std::max(last, steps.empty() ? 0 : steps.back().phase);
    }
    return last + 1;
  }

  static std::span<const LoadStep> StepsOf(const std::vector<LoadStep>& steps,
                                           std::uint32_t phase) {
    const auto first =
        std::lower_bound(steps.begin(), steps.end(), phase,
                         [](const LoadStep& step, std::uint32_t p) { return step.phase < p; });
    const auto last =
        std::upper_bound(first, steps.end(), phase,
                         [](std::uint32_t p, const LoadStep& step) { return p < step.phase; });
    return {first, last};
  }

  static std::vector<WantedBox> WantedOf(std::span<const LoadStep> steps,
                                         const std::vector<LoadRequest>& requests) {
    std::vector<WantedBox> wanted;
    for (const LoadStep& step : steps) {
      wanted.push_back({requests[step.request].tensor, step.box});
    }
    return wanted;
  }

  Status MovePhase(const MoveContext& context, std::uint32_t phase) {
    const std::span<const LoadStep> steps = StepsOf(steps_, phase);
    std::vector<BoxTarget> targets;
    if (local_.ok()) {
      local_ = phase == 0 ? OkStatus() : AllocateStaging(steps);
    }
    const std::vector<WantedBox> wanted = WantedOf(steps, requests_);
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      targets.push_back(phase == 0 ? DirectTarget(steps[i]) : StagedTarget(steps[i], at));
    }
    if (decision_.exchange) {
      RESHARD_TRY(ExchangePhase(context, phase, targets));
    } else if (local_.ok()) {
      local_ = MoveDirectly(context, wanted, targets);
    }
    if (phase > 0 && local_.ok()) {
      local_ = DeliverSteps(steps);
    }
    return OkStatus();
  }

  Status ExchangePhase(const MoveContext& context, std::uint32_t phase,
                       std::span<const BoxTarget> targets) {
    ExchangeView view;
    for (std::size_t rank = 0; rank < all_steps_.size(); ++rank) {
      view.wanted.push_back(WantedOf(StepsOf(all_steps_[rank], phase), all_requests_[rank]));
    }
    view.sees = visible_;
    view.round_bytes =
        std::clamp<std::uint64_t>(options_.memory_bytes / 8, kBlockBytes, kMostRoundBytes);
    return MoveByExchange(context, group_, view, targets, local_, report_.bytes_received);
  }

  std::atomic<std::uint64_t>* PartOf(const LoadStep& step) {
    return decision_.by_digest[requests_[step.request].tensor] ? &parts_[step.request] : nullptr;
  }

  BoxTarget DirectTarget(const LoadStep& step) {
    const TensorShard& shard = *locals_[step.request].shard;
    const Box whole = ToUnits(shard.box, shard.view.dtype);
    const Box units = ToUnits(step.box, shard.view.dtype);
    BoxTarget target;
    target.stride_bytes = StrideBytes(shard.view);
    target.base = shard.view.data;
    for (std::size_t a = 0; a < units.offset.size(); ++a) {
      target.base +=
          static_cast<std::int64_t>(units.offset[a] - whole.offset[a]) * target.stride_bytes[a];
    }
    target.digest_part = PartOf(step);
    return target;
  }

  Status AllocateStaging(std::span<const LoadStep> steps) {
    std::uint64_t bytes = 0;
    for (const LoadStep& step : steps) {
      bytes += NumBytes(step.box, catalog_->dtype(requests_[step.request].tensor));
    }
    if (staging_.size() < bytes) {
      staging_ = StagingBuffer();
      RESHARD_TRY_ASSIGN(staging_, StagingBuffer::Allocate(bytes));
    }
    return OkStatus();
  }

  BoxTarget StagedTarget(const LoadStep& step, std::uint64_t& at) {
    const DType dtype = catalog_->dtype(requests_[step.request].tensor);
    BoxTarget target;
    target.base = staging_.data() + at;
    target.stride_bytes = DenseStrideBytes(ToUnits(step.box, dtype).extent, Info(dtype).unit_bytes);
    target.digest_part = PartOf(step);
    at += NumBytes(step.box, dtype);
    return target;
  }

  Status DeliverSteps(std::span<const LoadStep> steps) {
    CastCounts counts;
    std::uint64_t at = 0;
    for (const LoadStep& step : steps) {
      const LocalRequest& local = locals_[step.request];
      const DType stored = catalog_->dtype(requests_[step.request].tensor);
      const std::uint64_t bytes = NumBytes(step.box, stored);
      Status status = DeliverStaged(*local.shard, local.wanted, stored, step.box,
                                    ByteSpan(staging_.span()).subspan(at, bytes), counts);
      if (!status.ok()) {
        return Fail(status.error().WithContext(fmt::format("tensor '{}'", local.key)));
      }
      at += bytes;
      group_.Beat();
    }
    report_.cast_overflows += counts.overflowed;
    return OkStatus();
  }

  Status Advance(std::uint64_t bytes) {
    group_.Beat();
    if (!options_.progress) {
      return OkStatus();
    }
    MutexLock lock(progress_mutex_);
    progress_.bytes_total = std::max(report_.bytes_needed, progress_.bytes_done + bytes);
    progress_.bytes_done += bytes;
    return CallGuarded("the progress callback", [this] { return options_.progress(progress_); });
  }

  /// The vote after the data moved, with the digest parts where tensors are checked by digest.
  Status CheckDigests() {
    Bytes message = PackStatus(local_);
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (decision_.by_digest[requests_[i].tensor]) {
        AppendLittle(message, parts_[i].load());
      }
    }
    RESHARD_TRY_ASSIGN(const std::vector<Bytes> all, group_.Gather(message, root_, Wait::kData));
    Bytes verdict;
    if (is_root()) {
      verdict = Compare(all);
    }
    RESHARD_TRY_ASSIGN(const Bytes told, group_.Broadcast(verdict, root_));
    WireReader reader(told);
    RESHARD_TRY(UnpackStatus(reader));
    std::vector<TensorId> bad;
    std::uint64_t tensor = 0;
    while (reader.Read(tensor)) {
      bad.push_back(tensor);
    }
    return bad.empty() ? OkStatus() : FindFault(bad);
  }

  /// The coordinator: XOR of the parts of distinct boxes against the stored digest, replicas
  /// against each other. The status, then the tensors that differ.
  Bytes Compare(const std::vector<Bytes>& all) const {
    std::map<TensorId, std::map<Box, std::uint64_t, BoxLess>> parts;
    std::set<TensorId> bad;
    for (int rank = 0; rank < group_.size(); ++rank) {
      WireReader reader(all[static_cast<std::size_t>(rank)]);
      if (Status status = UnpackStatus(reader, group_.global_rank(rank)); !status.ok()) {
        return PackStatus(status);
      }
      const Result<std::vector<LoadRequest>> requests =
          DecodeLoadRequests(decision_.all_requests[static_cast<std::size_t>(rank)], *catalog_);
      for (const LoadRequest& request : *requests) {
        std::uint64_t part = 0;
        if (!decision_.by_digest[request.tensor]) {
          continue;
        }
        if (!reader.Read(part)) {
          return PackStatus(BadMessage("digest parts"));
        }
        const auto [at, fresh] = parts[request.tensor].emplace(request.box, part);
        if (!fresh && at->second != part) {
          bad.insert(request.tensor);
        }
      }
    }
    for (const auto& [tensor, boxes] : parts) {
      std::uint64_t digest = Crc64Constant(catalog_->num_bytes(tensor));
      for (const auto& [box, part] : boxes) {
        digest ^= part;
      }
      if (digest != catalog_->digest(tensor)) {
        bad.insert(tensor);
      }
    }
    Bytes out = PackStatus(OkStatus());
    for (const TensorId tensor : bad) {
      AppendLittle(out, static_cast<std::uint64_t>(tensor));
    }
    return out;
  }

  struct BoxLess {
    bool operator()(const Box& a, const Box& b) const {
      return std::tie(a.offset, a.extent) < std::tie(b.offset, b.extent);
    }
  };

  /// A digest differs: the blocks are read again, whole, to name file and range.
  Status FindFault(const std::vector<TensorId>& bad) {
    Status status;
    Result<StagingBuffer> staging = StagingBuffer::Allocate(BlockReader::kStagingBytes);
    std::vector<WantedBox> wanted;
    for (const LoadRequest& request : requests_) {
      if (std::find(bad.begin(), bad.end(), request.tensor) != bad.end()) {
        wanted.push_back({request.tensor, request.box});
      }
    }
    Result<std::vector<Piece>> pieces = FindPieces(*catalog_, wanted);
    if (!staging.ok() || !pieces.ok()) {
      status = Fail(staging.ok() ? pieces.error() : staging.error());
    } else {
      for (const Piece& piece : *pieces) {
        ForEachFileRange(piece, kBlockBytes, [&](ByteRange range) {
          if (status.ok()) {
            status = reader_->VerifyBlocks(piece.file, range, wanted[piece.want].tensor,
                                           staging->span());
            group_.Beat();
          }
        });
      }
    }
    RESHARD_TRY(group_.Agree(status, Wait::kData));
    Error error;
    error.code = ErrorCode::kIo;
    error.reason = "TENSOR_DIGEST";
    error.message = fmt::format(
        "tensor '{}' arrived damaged, but its stored bytes are whole on a second "
        "look; load again, and check the memory of this machine if it happens twice",
        catalog_->key(bad[0]));
    error.retryable = true;
    return Fail(std::move(error));
  }

  void SetObjects() {
    for (ResolvedObject& object : resolution_.objects) {
      *leaves_[object.leaf].leaf = std::move(object.value);
    }
  }

  Result<LoadReport> Finish() {
    report_.unique_id = catalog_->info().unique_id;
    report_.missing = std::move(resolution_.missing);
    report_.mismatched = std::move(resolution_.mismatched);
    report_.renamed = std::move(resolution_.renamed);
    report_.unexpected = std::move(decision_.unexpected);
    report_.exchanged = decision_.exchange;
    return std::move(report_);
  }

  StateDict& state_;
  Storage* storage_;
  ProcessGroup& group_;
  const LoadOptions& options_;
  Status local_;
  int root_;

  std::vector<MutableFlatEntry> leaves_;
  std::unique_ptr<Catalog> catalog_;
  bool all_shared_ = true;
  std::vector<ForeignFault> faults_;
  std::unique_ptr<BlockReader> reader_;
  Resolution resolution_;
  std::vector<LoadRequest> requests_;
  std::vector<LocalRequest> locals_;  // per request
  LoadSummary summary_;
  Status file_fault_;
  LoadDecision decision_;
  std::vector<LoadStep> steps_;
  std::vector<std::atomic<std::uint64_t>> parts_;  // per request
  StagingBuffer staging_;
  LoadReport report_;
  Mutex progress_mutex_;
  Progress progress_;

  // Exchange only.
  std::vector<std::vector<LoadRequest>> all_requests_;
  std::vector<std::vector<LoadStep>> all_steps_;
  std::vector<std::vector<bool>> visible_;
};

}  // namespace

Result<LoadReport> Load(StateDict& state, Storage& storage, ProcessGroup& group,
                        const LoadOptions& options) {
  return LoadSession(state, &storage, OkStatus(), group, options).Run();
}

Result<LoadReport> Load(StateDict& state, const std::string& path, ProcessGroup& group,
                        const LoadOptions& options) {
  const PathArgument argument = ParsePath(path);
  const bool named =
      argument.unique_id && (!options.unique_id || options.unique_id == argument.unique_id);
  LoadOptions own = options;
  own.unique_id = named ? argument.unique_id : options.unique_id;
  Result<std::unique_ptr<Storage>> storage = OpenPosixPath(named ? argument.path : path);
  if (!storage.ok()) {
    return LoadSession(state, nullptr, Fail(std::move(storage).error()), group, own).Run();
  }
  return LoadSession(state, storage->get(), OkStatus(), group, own).Run();
}

}  // namespace reshard
