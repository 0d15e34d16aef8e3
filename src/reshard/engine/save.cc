#include "reshard/engine/save.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <system_error>

#include "reshard/base/mutex.h"
#include "reshard/catalog/description.h"
#include "reshard/catalog/wire.h"
#include "reshard/codec/crc64.h"
#include "reshard/engine/commit.h"
#include "reshard/engine/message.h"
#include "reshard/engine/save_format.h"
#include "reshard/engine/snapshot.h"
#include "reshard/engine/write_turns.h"
#include "reshard/storage/directories.h"
#include "reshard/storage/posix_storage.h"

namespace reshard {

/// A plan, and the digests of the descriptions that it was made of.
struct SavePlanCache::Entry {
  std::vector<std::uint64_t> digests;  // per rank
  std::uint64_t min_cut_bytes = 0;
  SavePlan plan;
  std::uint64_t hits = 0;
};

SavePlanCache::SavePlanCache() = default;
SavePlanCache::~SavePlanCache() = default;
SavePlanCache::SavePlanCache(SavePlanCache&&) noexcept = default;
SavePlanCache& SavePlanCache::operator=(SavePlanCache&&) noexcept = default;

std::uint64_t SavePlanCache::hits() const { return entry_ == nullptr ? 0 : entry_->hits; }

namespace {

constexpr int kMostAttempts = 4;
/// Most keys that an error lists.
constexpr std::size_t kMostListed = 20;

/// What the coordinator tells all ranks before they write.
struct Orders {
  SaveId id;
  std::uint64_t bytes_total = 0;
};

void AppendNames(Bytes& out, const std::vector<std::string>& names) {
  AppendLittle(out, static_cast<std::uint32_t>(names.size()));
  for (const std::string& name : names) {
    AppendCounted(out, AsBytes(name));
  }
}

/// Adds the names to `out`.
bool ReadNames(WireReader& reader, std::vector<std::string>& out) {
  std::uint32_t count = 0;
  if (!reader.Read(count)) {
    return false;
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    ByteSpan name;
    if (!reader.ReadCounted(name)) {
      return false;
    }
    out.emplace_back(AsText(name));
  }
  return true;
}

/// One save, on one rank. Each step that talks is reached by every rank, whatever failed locally.
class SaveSession {
 public:
  SaveSession(const StateDict& state, Storage* storage, Status storage_status, ProcessGroup& group,
              const SaveOptions& options)
      : state_(state),
        storage_(storage),
        group_(group),
        options_(options),
        local_(std::move(storage_status)),
        root_(group.FindGlobalRank(options.coordinator_rank)) {}

  Result<SaveResult> Run() {
    RESHARD_TRY(AgreeOnOptions(group_, options_.coordinator_rank, OptionsText()));
    RESHARD_TRY_ASSIGN(format_, FindSaveFormat(options_.format));  // the same on every rank
    DescribeState();
    RESHARD_TRY(Announce());
    RESHARD_TRY(SendDescriptions());
    for (int i = 0; i < kMostAttempts; ++i) {
      RESHARD_TRY(ReceiveOrders());
      WriteFiles();
      RESHARD_TRY_ASSIGN(const bool again, ReportAndCommit());
      if (!again) {
        return Finish();
      }
    }
    return MakeError(
        ErrorCode::kUnavailable, "STRAY_FILES",
        fmt::format("other files kept taking this save's names in {}; is another writer at "
                    "work there?",
                    storage_->description()));
  }

 private:
  bool is_root() const { return group_.rank() == root_; }

  /// What all ranks must pass alike.
  std::string OptionsText() const {
    return fmt::format("unique_id={} overwrite={} format={} skip_unsupported={}",
                       options_.unique_id ? std::to_string(*options_.unique_id) : "next",
                       options_.overwrite, options_.format, options_.skip_unsupported);
  }

  void DescribeState() {
    if (!local_.ok()) {
      return;
    }
    Result<std::vector<FlatEntry>> leaves = Flatten(state_);
    if (!leaves.ok()) {
      local_ = tl::unexpected<Error>(std::move(leaves).error());
      return;
    }
    leaves_ = std::move(*leaves);
    Result<StateDescription> description = Describe(leaves_);
    if (!description.ok()) {
      local_ = tl::unexpected<Error>(std::move(description).error());
      return;
    }
    description_ = std::move(*description);
    unsupported_ = RestrictTo(*format_, description_);
    encoded_ = EncodeTensorDescriptions(description_.tensors);
  }

  /// Every rank's status, objects and (where it looks at other files than the coordinator) view of
  /// its directory go to the coordinator, which says whether to go on and whether it needs
  /// descriptions.
  Status Announce() {
    const std::uint64_t own = storage_ == nullptr ? 0 : storage_->Identity();
    RESHARD_TRY_ASSIGN(const std::uint64_t root_identity, BroadcastNumber(group_, own, root_));
    shared_with_root_ = is_root() || (own != 0 && own == root_identity);
    Bytes view;
    if (local_.ok() && (is_root() || !shared_with_root_)) {
      Result<DirectoryView> seen = format_->View(*storage_);
      if (seen.ok()) {
        LookAtReplaced(*seen);
        view = EncodeDirectoryView(*seen);
      } else {
        local_ = tl::unexpected<Error>(std::move(seen).error());
      }
    }
    Bytes message = PackStatus(local_);
    AppendLittle(message, Crc64(encoded_));
    message.push_back(std::byte{shared_with_root_});
    AppendCounted(message, EncodeObjectDescriptions(description_.objects));
    AppendCounted(message, view);
    const bool tells = replaced_ != nullptr && !is_root();
    AppendNames(message, tells ? replaced_->files() : std::vector<std::string>());
    AppendUnsupported(message);
    RESHARD_TRY_ASSIGN(const std::vector<Bytes> all, group_.Gather(message, root_));
    Status decision;
    if (is_root()) {
      decision = ReadAnnouncements(all);
    }
    return SpreadDecision(decision);
  }

  void AppendUnsupported(Bytes& message) const {
    std::vector<std::string> keys;
    std::vector<std::string> reasons;
    for (const Unsupported& item : unsupported_) {
      keys.push_back(item.key);
      reasons.push_back(item.why);
    }
    AppendNames(message, keys);
    AppendNames(message, reasons);
  }

  /// An overwrite: what is this storage's commit record of the id?
  void LookAtReplaced(DirectoryView& view) {
    const std::optional<std::uint64_t> wanted = format_->WantedId(options_.unique_id);
    const auto known = options_.overwrite && wanted ? view.ids.find(*wanted) : view.ids.end();
    if (known == view.ids.end() || !known->second.committed) {
      return;
    }
    replaced_ = std::make_unique<ReplacedRecord>(*storage_, *format_, known->first);
    if (replaced_->attempt()) {
      known->second.last_attempt =
          std::max(known->second.last_attempt.value_or(0), *replaced_->attempt());
    }
  }

  Status ReadAnnouncements(const std::vector<Bytes>& all) {
    std::vector<std::uint64_t> digests;
    for (int rank = 0; rank < group_.size(); ++rank) {
      WireReader reader(all[static_cast<std::size_t>(rank)]);
      RESHARD_TRY(UnpackStatus(reader, group_.global_rank(rank)));
      std::uint64_t digest = 0;
      std::uint8_t shared = 0;
      ByteSpan objects;
      ByteSpan view;
      if (!reader.Read(digest) || !reader.Read(shared) || !reader.ReadCounted(objects) ||
          !reader.ReadCounted(view) || !ReadNames(reader, stale_) || !ReadUnsupported(reader)) {
        return BadMessage("announcement");
      }
      digests.push_back(digest);
      all_shared_ = all_shared_ && shared != 0;
      RESHARD_TRY_ASSIGN(std::vector<ObjectDescription> decoded, DecodeObjectDescriptions(objects));
      objects_.push_back(std::move(decoded));
      if (!view.empty()) {
        RESHARD_TRY_ASSIGN(const DirectoryView seen, DecodeDirectoryView(view));
        MergeViews(view_, seen);
      }
    }
    RESHARD_TRY(JudgeUnsupported());
    RESHARD_TRY(ChooseId());
    digests_ = std::move(digests);
    SavePlanCache::Entry* cached =
        options_.plan_cache == nullptr ? nullptr : options_.plan_cache->entry().get();
    use_cache_ = cached != nullptr && cached->digests == digests_ &&
                 cached->min_cut_bytes == min_cut_bytes();
    return OkStatus();
  }

  bool ReadUnsupported(WireReader& reader) {
    std::vector<std::string> keys;
    std::vector<std::string> reasons;
    if (!ReadNames(reader, keys) || !ReadNames(reader, reasons) || keys.size() != reasons.size()) {
      return false;
    }
    for (std::size_t i = 0; i < keys.size(); ++i) {
      all_unsupported_.emplace(keys[i], reasons[i]);
    }
    return true;
  }

  /// What the format cannot hold is an error before anything is written, or left out.
  Status JudgeUnsupported() {
    for (const auto& [key, why] : all_unsupported_) {
      skipped_.push_back(fmt::format("{}: {}", key, why));
    }
    if (skipped_.empty() || options_.skip_unsupported) {
      return OkStatus();
    }
    const std::size_t listed = std::min(skipped_.size(), kMostListed);
    const auto end = skipped_.begin() + static_cast<std::ptrdiff_t>(listed);
    return MakeError(
        ErrorCode::kUnsupported, "UNSUPPORTED_BY_FORMAT",
        fmt::format("{} of the keys cannot be saved in the format {}: {}{}; leave them out, pass "
                    "skip_unsupported{}",
                    skipped_.size(), options_.format, fmt::join(skipped_.begin(), end, "; "),
                    listed < skipped_.size() ? "; ..." : "",
                    options_.format == "native" ? "" : ", or save in the native format"));
  }

  std::uint64_t min_cut_bytes() const { return format_->MinCutBytes(options_.plan.min_cut_bytes); }

  Status ChooseId() {
    RESHARD_TRY_ASSIGN(orders_.id.unique_id,
                       format_->ChooseId(view_, format_->WantedId(options_.unique_id),
                                         options_.overwrite, storage_->description()));
    const auto known = view_.ids.find(orders_.id.unique_id);
    if (known != view_.ids.end() && known->second.last_attempt) {
      orders_.id.attempt = *known->second.last_attempt + 1;
    }
    return OkStatus();
  }

  /// Broadcasts the coordinator's status, whether the plan is known and what is left out.
  Status SpreadDecision(const Status& decision) {
    Bytes message;
    if (is_root()) {
      message = PackStatus(decision);
      message.push_back(std::byte{use_cache_});
      AppendNames(message, skipped_);
    }
    RESHARD_TRY_ASSIGN(const Bytes reply, group_.Broadcast(message, root_));
    WireReader reader(reply);
    RESHARD_TRY(UnpackStatus(reader));
    std::uint8_t use_cache = 0;
    skipped_.clear();
    if (!reader.Read(use_cache) || !ReadNames(reader, skipped_)) {
      return BadMessage("decision");
    }
    use_cache_ = use_cache != 0;
    return OkStatus();
  }

  /// The coordinator plans, from the cache or from everybody's descriptions.
  Status SendDescriptions() {
    std::vector<Bytes> all;
    if (!use_cache_) {
      RESHARD_TRY_ASSIGN(all, group_.Gather(encoded_, root_));
    }
    Status planned;
    if (is_root()) {
      planned = use_cache_ ? PlanFromCache() : PlanAnew(all);
      if (planned.ok()) {
        planned = PlanObjects();
      }
    }
    return SpreadDecision(planned);
  }

  Status PlanFromCache() {
    ++options_.plan_cache->entry()->hits;
    plan_ = &options_.plan_cache->entry()->plan;
    return OkStatus();
  }

  Status PlanAnew(const std::vector<Bytes>& all) {
    const std::vector<ByteSpan> descriptions(all.begin(), all.end());
    SavePlanOptions plan_options = options_.plan;
    plan_options.min_cut_bytes = min_cut_bytes();
    RESHARD_TRY_ASSIGN(SavePlan plan, PlanSave(descriptions, GlobalRanks(group_), plan_options));
    if (options_.plan_cache == nullptr) {
      own_plan_ = std::move(plan);
      plan_ = &own_plan_;
      return OkStatus();
    }
    auto& entry = options_.plan_cache->entry();
    const std::uint64_t hits = entry == nullptr ? 0 : entry->hits;
    entry = std::make_unique<SavePlanCache::Entry>();
    *entry = {digests_, min_cut_bytes(), std::move(plan), hits};
    plan_ = &entry->plan;
    return OkStatus();
  }

  Status PlanObjects() {
    RESHARD_TRY_ASSIGN(merged_objects_, MergeObjects(objects_, *plan_, GlobalRanks(group_)));
    for (const PlannedTensor& tensor : plan_->tensors) {
      orders_.bytes_total += tensor.num_chunks == 0 ? 0 : NumBytes(tensor.shape, tensor.dtype);
    }
    return OkStatus();
  }

  /// The coordinator claims an attempt, then tells every rank its part of the plan.
  Status ReceiveOrders() {
    Bytes message;
    std::vector<Bytes> parts;
    if (is_root()) {
      const Status claimed = Claim();
      message = PackStatus(claimed);
      AppendNumbers(message,
                    std::array{orders_.id.unique_id, orders_.id.attempt, orders_.bytes_total});
      for (int rank = 0; claimed.ok() && rank < group_.size(); ++rank) {
        parts.push_back(plan_->EncodeFor(static_cast<std::uint32_t>(rank)));
        AppendLittle(message, static_cast<std::uint64_t>(parts.back().size()));
      }
    }
    RESHARD_TRY_ASSIGN(const Bytes reply, group_.Broadcast(message, root_));
    WireReader reader(reply);
    RESHARD_TRY(UnpackStatus(reader));
    std::vector<std::uint64_t> sizes(static_cast<std::size_t>(group_.size()));
    if (!reader.Read(orders_.id.unique_id) || !reader.Read(orders_.id.attempt) ||
        !reader.Read(orders_.bytes_total) || !reader.ReadNumbers(sizes)) {
      return BadMessage("orders");
    }
    Bytes own(sizes[static_cast<std::size_t>(group_.rank())]);
    std::vector<ByteSpan> send(sizes.size());
    std::vector<MutableByteSpan> receive(sizes.size());
    std::copy(parts.begin(), parts.end(), send.begin());
    receive[static_cast<std::size_t>(root_)] = own;
    if (Status sent = group_.AllToAllV(send, receive, Wait::kControl); !sent.ok()) {
      parts.push_back(std::move(own));
      KeepForGood(std::move(parts));
      return sent;
    }
    Result<RankPlan> plan = DecodeRankPlan(own, description_.tensors);
    local_ = plan.ok() ? OkStatus() : Status(tl::unexpected<Error>(plan.error()));
    rank_plan_ = plan.ok() ? std::move(*plan) : RankPlan();
    return OkStatus();
  }

  Status Claim() {
    if (committer_ == nullptr) {
      committer_ = std::make_unique<Committer>(*storage_, *format_, options_.overwrite,
                                               [this] { group_.Beat(); });
    }
    return committer_->Claim(orders_.id);
  }

  CatalogInfo Info() const {
    CatalogInfo info;
    info.unique_id = orders_.id.unique_id;
    info.attempt = orders_.id.attempt;
    info.world_size = static_cast<std::uint64_t>(group_.size());
    info.coordinator_rank = static_cast<std::uint64_t>(options_.coordinator_rank);
    return info;
  }

  /// Writes this rank's data files; the outcome is in local_ and files_.
  void WriteFiles() {
    RankContent content{leaves_, description_,  rank_plan_,
                        Info(),  group_.rank(), group_.global_rank()};
    if (is_root() && format_->HasObjectFiles()) {
      content.objects = merged_objects_;
    }
    const bool writes = !content.empty();
    files_ = format_->NewFiles(*storage_, std::move(content));
    if (local_.ok() && writes) {
      PayloadOptions payload;
      payload.threads = options_.threads;
      payload.buffer_bytes = options_.buffer_bytes;
      payload.progress = [this](std::uint64_t bytes) { return Advance(bytes); };
      local_ = WriteInTurn(payload);
      group_.Beat();
    }
    if (!local_.ok()) {
      files_->Discard();
    }
  }

  Status WriteInTurn(const PayloadOptions& payload) {
    if (options_.turns == nullptr) {
      return WriteGuarded(payload);
    }
    RESHARD_TRY(options_.turns->Begin(group_.rank(), [this] { group_.Beat(); }));
    Status written = WriteGuarded(payload);
    // After a stray file all ranks try again.
    options_.turns->End(files_->met_stray() ? OkStatus() : written);
    return written;
  }

  /// Writers are threads, which the system may refuse.
  Status WriteGuarded(const PayloadOptions& payload) {
    try {
      return files_->Write(payload);
    } catch (const std::system_error& error) {
      return MakeError(ErrorCode::kUnavailable, "NO_THREADS",
                       fmt::format("no thread to write with: {}; let fewer ranks write at once, or "
                                   "raise the limits of threads and address space",
                                   error.what()));
    }
  }

  /// Progress of the payload: the callback, and a sign of life to the others.
  Status Advance(std::uint64_t bytes) {
    group_.Beat();
    if (!options_.progress) {
      return OkStatus();
    }
    MutexLock lock(progress_mutex_);
    progress_.bytes_total = rank_plan_.payload_bytes;
    // What a format writes beside tensors is no progress.
    progress_.bytes_done = std::min(progress_.bytes_done + bytes, progress_.bytes_total);
    return CallGuarded("the progress callback", [this] { return options_.progress(progress_); });
  }

  /// Every rank reports; the coordinator commits and tells the outcome. True: try again under
  /// another attempt, since a stray file was in the way.
  Result<bool> ReportAndCommit() {
    Bytes report = PackStatus(local_);
    report.push_back(std::byte{files_->met_stray()});
    AppendLittle(report, static_cast<std::uint32_t>(files_->reports().size()));
    for (const WriteReport& file : files_->reports()) {
      AppendCounted(report, EncodeWriteReport(file));
    }
    Result<std::vector<Bytes>> all = group_.Gather(report, root_, Wait::kData);
    if (!all.ok()) {
      return OutcomeUnknown(all.error(), local_);
    }
    bool again = false;
    Status outcome;
    if (is_root()) {
      outcome = Commit(*all, again);
    }
    Bytes message;
    if (is_root()) {
      message = PackStatus(outcome);
      message.push_back(std::byte{again});
      AppendNames(message, stale_);
    }
    Result<Bytes> reply = group_.Broadcast(message, root_);
    if (!reply.ok()) {
      return OutcomeUnknown(reply.error(), is_root() ? outcome : local_);
    }
    WireReader reader(*reply);
    Status told = UnpackStatus(reader);
    std::uint8_t flag = 0;
    std::vector<std::string> stale;
    if (told.ok() && (!reader.Read(flag) || !ReadNames(reader, stale))) {
      told = BadMessage("outcome");
    }
    again = flag != 0;
    if (!told.ok() || again) {
      if (told.ok() || told.error().code != ErrorCode::kIndeterminate) {
        DiscardAll();
      }
      RESHARD_TRY(std::move(told));
      return again;
    }
    files_->Keep();
    if (!shared_with_root_) {
      if (replaced_ != nullptr) {
        replaced_->Remove(orders_.id);
      }
      RemoveStaleFiles(*storage_, *format_, orders_.id, stale, [this] { group_.Beat(); });
    }
    return false;
  }

  /// The coordinator's part: reads the reports, writes and publishes the catalog.
  Status Commit(const std::vector<Bytes>& all, bool& again) {
    std::vector<WriteReport> reports;
    bool stray = false;
    for (int rank = 0; rank < group_.size(); ++rank) {
      WireReader reader(all[static_cast<std::size_t>(rank)]);
      Status status = UnpackStatus(reader, group_.global_rank(rank));
      std::uint8_t met_stray = 0;
      if (!reader.Read(met_stray)) {
        return BadMessage("write report");
      }
      if (met_stray != 0) {
        stray = true;
        continue;
      }
      RESHARD_TRY(std::move(status));
      RESHARD_TRY(ReadReports(reader, static_cast<std::uint32_t>(rank), reports));
    }
    if (stray) {
      again = true;
      ++orders_.id.attempt;
      return OkStatus();
    }
    RESHARD_TRY(CheckFilesAreVisible(reports));
    const CatalogInfo info = Info();
    const std::vector<int> global_ranks = GlobalRanks(group_);
    RESHARD_TRY_ASSIGN(
        const std::vector<CommitRecord> records,
        format_->MakeRecords({info, *plan_, reports, merged_objects_, global_ranks, Inspect()}));
    std::vector<std::string> files;
    files.reserve(reports.size());
    for (const WriteReport& report : reports) {
      files.push_back(report.file_name);
    }
    return committer_->Publish(records, files, stale_);
  }

  /// What looks at the catalog before the commit.
  std::function<Status(const Catalog&)> Inspect() const {
    return [this](const Catalog& catalog) {
      return options_.inspect
                 ? CallGuarded("the inspect callback", [&] { return options_.inspect(catalog); })
                 : OkStatus();
    };
  }

  static Status ReadReports(WireReader& reader, std::uint32_t rank,
                            std::vector<WriteReport>& reports) {
    std::uint32_t count = 0;
    if (!reader.Read(count)) {
      return BadMessage("write report");
    }
    for (std::uint32_t i = 0; i < count; ++i) {
      ByteSpan bytes;
      if (!reader.ReadCounted(bytes)) {
        return BadMessage("write report");
      }
      RESHARD_TRY_ASSIGN(WriteReport report, DecodeWriteReport(bytes));
      report.writer = rank;
      reports.push_back(std::move(report));
    }
    return OkStatus();
  }

  /// On shared storage the coordinator sees every file, whole, before it refers to it.
  Status CheckFilesAreVisible(const std::vector<WriteReport>& reports) {
    if (!all_shared_) {
      return OkStatus();
    }
    RESHARD_TRY_ASSIGN(const std::vector<ObjectInfo> objects, storage_->List());
    for (const WriteReport& report : reports) {
      const auto at = std::lower_bound(
          objects.begin(), objects.end(), report.file_name,
          [](const ObjectInfo& object, const std::string& name) { return object.name < name; });
      if (at == objects.end() || at->name != report.file_name || at->size != report.file_size) {
        return MakeError(
            ErrorCode::kIo, "FILE_MISSING",
            fmt::format("{}: the coordinator does not see it with its {} bytes; was it "
                        "removed during the save?",
                        report.file_name, report.file_size));
      }
    }
    return OkStatus();
  }

  /// The group failed after this rank's `outcome`. What the coordinator has not published, or what
  /// lacks this rank's file, never will be; else it may be committed or not, and nothing is deleted
  /// then: the coordinator may have this rank's report though this rank cannot know.
  Result<bool> OutcomeUnknown(const Error& error, const Status& outcome) {
    if (is_root() ? !committer_->published() : !outcome.ok()) {
      DiscardAll();
      return tl::unexpected<Error>(is_root() && !outcome.ok() ? outcome.error() : error);
    }
    if (!outcome.ok()) {
      return tl::unexpected<Error>(outcome.error());
    }
    std::string_view state = "its commit record is not there";
    if (const Result<CommittedSave> there = format_->ReadCommitted(*storage_, orders_.id.unique_id);
        there.ok() && there->attempt == orders_.id.attempt) {
      state = "its commit record is there";
    }
    return MakeError(ErrorCode::kIndeterminate, "COMMIT_UNKNOWN",
                     fmt::format("the outcome of snapshot {} did not reach every rank ({}); {}",
                                 orders_.id.unique_id, error.message, state));
  }

  /// Removes what this save created, before anything was published.
  void DiscardAll() {
    if (committer_ != nullptr && committer_->published()) {
      return;
    }
    files_->Discard();
    if (committer_ != nullptr) {
      committer_->Discard();
    }
  }

  Result<SaveResult> Finish() {
    SaveResult result;
    result.unique_id = orders_.id.unique_id;
    result.attempt = orders_.id.attempt;
    result.bytes_total = orders_.bytes_total;
    for (const WriteReport& report : files_->reports()) {
      result.bytes_written += report.file_size;
    }
    result.file_name = files_->reports().empty() ? "" : files_->reports()[0].file_name;
    result.skipped = std::move(skipped_);
    return result;
  }

  const StateDict& state_;
  Storage* storage_;
  ProcessGroup& group_;
  const SaveOptions& options_;
  std::unique_ptr<SaveFormat> format_;
  Status local_;
  int root_;

  std::vector<FlatEntry> leaves_;
  StateDescription description_;
  Bytes encoded_;
  bool shared_with_root_ = false;
  bool use_cache_ = false;
  Orders orders_;
  RankPlan rank_plan_;
  std::unique_ptr<RankFiles> files_;  // this attempt's
  Mutex progress_mutex_;
  Progress progress_;
  std::unique_ptr<ReplacedRecord> replaced_;  // of the commit record here when we began
  std::vector<Unsupported> unsupported_;
  std::vector<std::string> skipped_;  // of all ranks

  // Coordinator only.
  bool all_shared_ = true;
  DirectoryView view_;
  std::vector<std::uint64_t> digests_;
  std::vector<std::vector<ObjectDescription>> objects_;
  SavePlan own_plan_;
  const SavePlan* plan_ = nullptr;
  std::vector<MergedObject> merged_objects_;
  std::map<std::string, std::string> all_unsupported_;
  std::unique_ptr<Committer> committer_;
  std::vector<std::string> stale_;
};

}  // namespace

Result<SaveResult> Save(const StateDict& state, Storage& storage, ProcessGroup& group,
                        const SaveOptions& options) {
  return SaveSession(state, &storage, OkStatus(), group, options).Run();
}

Result<SaveResult> Save(const StateDict& state, const std::string& path, ProcessGroup& group,
                        const SaveOptions& options) {
  PosixStorageOptions posix;
  posix.foreign_names = true;  // PyTorch's ".metadata"
  Result<std::unique_ptr<Storage>> storage = OpenPosixStorage(path, posix);
  const bool missing = !storage.ok() && storage.error().reason == "DIRECTORY_MISSING";
  if (missing) {
    posix.create = true;
    storage = OpenPosixStorage(path, posix);
  }
  if (!storage.ok()) {
    return SaveSession(state, nullptr, tl::unexpected<Error>(std::move(storage).error()), group,
                       options)
        .Run();
  }
  Result<SaveResult> saved = SaveSession(state, storage->get(), OkStatus(), group, options).Run();
  if (missing && !saved.ok() && saved.error().code == ErrorCode::kInvalidArgument) {
    // Refused before anything was written: no empty directory stays. It may be in use by now.
    static_cast<void>(RemoveDirectoryIfEmpty(path));
  }
  return saved;
}

}  // namespace reshard
