#include "reshard/engine/save.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>

#include "reshard/base/mutex.h"
#include "reshard/catalog/description.h"
#include "reshard/catalog/wire.h"
#include "reshard/codec/crc64.h"
#include "reshard/engine/data_file_writer.h"
#include "reshard/engine/message.h"
#include "reshard/engine/payload_writer.h"
#include "reshard/engine/snapshot.h"
#include "reshard/format/native/catalog_codec.h"
#include "reshard/format/native/data_file.h"
#include "reshard/format/native/names.h"
#include "reshard/storage/posix_storage.h"
#include "reshard/storage/staging_buffer.h"

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
constexpr std::string_view kFileExists = "FILE_EXISTS";

/// What the coordinator tells all ranks before they write.
struct Orders {
  std::uint64_t unique_id = 0;
  std::uint64_t attempt = 0;
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
    DescribeState();
    RESHARD_TRY(Announce());
    RESHARD_TRY(SendDescriptions());
    for (int i = 0; i < kMostAttempts; ++i) {
      RESHARD_TRY(ReceiveOrders());
      WriteFile();
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
    return fmt::format("unique_id={} overwrite={}",
                       options_.unique_id ? std::to_string(*options_.unique_id) : "next",
                       options_.overwrite);
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
      Result<DirectoryView> seen = ViewDirectory(*storage_);
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
    AppendNames(message, is_root() ? std::vector<std::string>() : replaced_files_);
    RESHARD_TRY_ASSIGN(const std::vector<Bytes> all, group_.Gather(message, root_));
    Status decision;
    if (is_root()) {
      decision = ReadAnnouncements(all);
    }
    return SpreadDecision(decision, use_cache_);
  }

  /// An overwrite: what is this storage's commit record of the id? Its attempt may be in no name (a
  /// snapshot without data files).
  void LookAtReplaced(DirectoryView& view) {
    const auto known = options_.overwrite && options_.unique_id ? view.ids.find(*options_.unique_id)
                                                                : view.ids.end();
    if (known == view.ids.end() || !known->second.committed) {
      return;
    }
    const Result<Catalog> old = ReadCatalog(*storage_, *options_.unique_id);
    if (old.ok()) {
      replaced_attempt_ = old->info().attempt;
      for (const FileEntry& file : old->files()) {
        replaced_files_.push_back(file.name);
      }
      known->second.last_attempt =
          std::max(known->second.last_attempt.value_or(0), old->info().attempt);
    }
    replaced_is_damaged_ = !old.ok() && old.error().code == ErrorCode::kCorruption;
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
          !reader.ReadCounted(view) || !ReadNames(reader, stale_)) {
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
    RESHARD_TRY(ChooseId());
    digests_ = std::move(digests);
    SavePlanCache::Entry* cached =
        options_.plan_cache == nullptr ? nullptr : options_.plan_cache->entry().get();
    use_cache_ = cached != nullptr && cached->digests == digests_ &&
                 cached->min_cut_bytes == options_.plan.min_cut_bytes;
    return OkStatus();
  }

  Status ChooseId() {
    if (!view_.foreign_name.empty()) {
      return MakeError(ErrorCode::kInvalidArgument, "FOREIGN_DIRECTORY",
                       fmt::format("{} holds '{}', a checkpoint of another format; save into a "
                                   "directory of its own",
                                   storage_->description(), view_.foreign_name));
    }
    const std::optional<std::uint64_t> newest = view_.newest();
    if (!options_.unique_id && newest == std::numeric_limits<std::uint64_t>::max()) {
      return MakeError(
          ErrorCode::kAlreadyExists, "SNAPSHOT_EXISTS",
          fmt::format("{} holds snapshot {}, the largest id there is; pass a unique_id",
                      storage_->description(), *newest));
    }
    orders_.unique_id = options_.unique_id.value_or(newest ? *newest + 1 : 0);
    const auto known = view_.ids.find(orders_.unique_id);
    if (known == view_.ids.end()) {
      return OkStatus();
    }
    if (known->second.committed && !options_.overwrite) {
      return MakeError(
          ErrorCode::kAlreadyExists, "SNAPSHOT_EXISTS",
          fmt::format("{} holds a committed snapshot {}; choose another unique_id, leave it "
                      "out to take the next free one, or pass overwrite",
                      storage_->description(), orders_.unique_id));
    }
    if (known->second.last_attempt) {
      orders_.attempt = *known->second.last_attempt + 1;
    }
    return OkStatus();
  }

  /// Broadcasts the coordinator's status and one flag.
  Status SpreadDecision(const Status& decision, bool& flag) {
    Bytes message;
    if (is_root()) {
      message = PackStatus(decision);
      message.push_back(std::byte{flag});
    }
    RESHARD_TRY_ASSIGN(const Bytes reply, group_.Broadcast(message, root_));
    WireReader reader(reply);
    RESHARD_TRY(UnpackStatus(reader));
    std::uint8_t value = 0;
    if (!reader.Read(value)) {
      return BadMessage("decision");
    }
    flag = value != 0;
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
    bool unused = false;
    return SpreadDecision(planned, unused);
  }

  Status PlanFromCache() {
    ++options_.plan_cache->entry()->hits;
    plan_ = &options_.plan_cache->entry()->plan;
    return OkStatus();
  }

  Status PlanAnew(const std::vector<Bytes>& all) {
    const std::vector<ByteSpan> descriptions(all.begin(), all.end());
    RESHARD_TRY_ASSIGN(SavePlan plan, PlanSave(descriptions, GlobalRanks(group_), options_.plan));
    if (options_.plan_cache == nullptr) {
      own_plan_ = std::move(plan);
      plan_ = &own_plan_;
      return OkStatus();
    }
    auto& entry = options_.plan_cache->entry();
    const std::uint64_t hits = entry == nullptr ? 0 : entry->hits;
    entry = std::make_unique<SavePlanCache::Entry>();
    *entry = {digests_, options_.plan.min_cut_bytes, std::move(plan), hits};
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
      AppendNumbers(message, std::array{orders_.unique_id, orders_.attempt, orders_.bytes_total});
      for (int rank = 0; claimed.ok() && rank < group_.size(); ++rank) {
        parts.push_back(plan_->EncodeFor(static_cast<std::uint32_t>(rank)));
        AppendLittle(message, static_cast<std::uint64_t>(parts.back().size()));
      }
    }
    RESHARD_TRY_ASSIGN(const Bytes reply, group_.Broadcast(message, root_));
    WireReader reader(reply);
    RESHARD_TRY(UnpackStatus(reader));
    std::vector<std::uint64_t> sizes(static_cast<std::size_t>(group_.size()));
    if (!reader.Read(orders_.unique_id) || !reader.Read(orders_.attempt) ||
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

  /// Creates the temporary catalog exclusively, locked: nobody else writes under this attempt's
  /// names.
  Status Claim() {
    claim_.reset();
    for (int i = 0; i < kMostAttempts; ++i) {
      const std::string name = native::TempCatalogName(orders_.unique_id, orders_.attempt);
      Result<std::unique_ptr<WritableObject>> created = storage_->Create(name, {0, true});
      if (created.ok()) {
        claim_ = std::move(*created);
        return OkStatus();
      }
      if (created.error().reason != kFileExists) {
        return tl::unexpected<Error>(std::move(created).error());
      }
      ++orders_.attempt;
    }
    return MakeError(
        ErrorCode::kUnavailable, "STRAY_FILES",
        fmt::format("no free attempt of snapshot {} in {}; is another writer at work there?",
                    orders_.unique_id, storage_->description()));
  }

  /// Writes this rank's data file; the outcome is in local_ and report_.
  void WriteFile() {
    CatalogInfo info;
    info.unique_id = orders_.unique_id;
    info.attempt = orders_.attempt;
    info.world_size = static_cast<std::uint64_t>(group_.size());
    info.coordinator_rank = static_cast<std::uint64_t>(options_.coordinator_rank);
    file_ = std::make_unique<DataFileWriter>(
        *storage_, DataFileContent{leaves_, description_, rank_plan_, info, group_.rank(),
                                   group_.global_rank()});
    if (local_.ok() && !rank_plan_.chunks.empty()) {
      PayloadOptions payload;
      payload.threads = options_.threads;
      payload.buffer_bytes = options_.buffer_bytes;
      payload.progress = [this](std::uint64_t bytes) { return Advance(bytes); };
      local_ = file_->Write(payload);
      group_.Beat();
    }
    if (!local_.ok()) {
      file_->Discard();
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
    progress_.bytes_done += bytes;
    return CallGuarded("the progress callback", [this] { return options_.progress(progress_); });
  }

  /// Every rank reports; the coordinator commits and tells the outcome. True: try again under
  /// another attempt, since a stray file was in the way.
  Result<bool> ReportAndCommit() {
    Bytes report = PackStatus(local_);
    report.push_back(std::byte{file_->met_stray()});
    const Bytes written = EncodeWriteReport(file_->report());
    report.insert(report.end(), written.begin(), written.end());
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
    file_->Keep();
    if (!shared_with_root_) {
      RemoveReplacedRecord();
      RemoveStale(stale);
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
        reports.emplace_back();
        continue;
      }
      RESHARD_TRY(std::move(status));
      ByteSpan bytes;
      if (!reader.ReadBytes(reader.remaining(), bytes)) {
        return BadMessage("write report");
      }
      RESHARD_TRY_ASSIGN(WriteReport report, DecodeWriteReport(bytes));
      reports.push_back(std::move(report));
    }
    if (stray) {
      again = true;
      ++orders_.attempt;
      return OkStatus();
    }
    RESHARD_TRY(CheckFilesAreVisible(reports));
    CatalogInfo info;
    info.unique_id = orders_.unique_id;
    info.attempt = orders_.attempt;
    info.world_size = static_cast<std::uint64_t>(group_.size());
    info.coordinator_rank = static_cast<std::uint64_t>(options_.coordinator_rank);
    RESHARD_TRY_ASSIGN(const Catalog catalog,
                       MakeCatalog(info, *plan_, reports, merged_objects_, GlobalRanks(group_)));
    if (options_.inspect) {
      RESHARD_TRY(CallGuarded("the inspect callback", [&] { return options_.inspect(catalog); }));
    }
    return Publish(catalog);
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
      if (report.file_name.empty()) {
        continue;
      }
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

  /// reliability order: catalog durable, all names durable, publish, names durable.
  Status Publish(const Catalog& catalog) {
    const std::string temp = native::TempCatalogName(orders_.unique_id, orders_.attempt);
    const Bytes bytes = native::EncodeCatalog(catalog);
    RESHARD_TRY(claim_->WriteAt(0, bytes));
    claim_may_stay_ = true;
    RESHARD_TRY(claim_->Finish(bytes.size()));
    RESHARD_TRY(storage_->SyncNames());
    Result<Published> published =
        storage_->Publish(temp, native::CatalogName(orders_.unique_id),
                          options_.overwrite ? PublishMode::kReplace : PublishMode::kNew);
    if (!published.ok()) {
      return PublishFailed(std::move(published).error());
    }
    published_ = true;
    if (Status synced = storage_->SyncNames(); !synced.ok()) {
      return Unknown(synced.error().message);
    }
    RemoveStale(stale_);  // what other storages' commit records of this id list
    if (published->replaced) {
      RemoveReplaced(temp, catalog);
    }
    return OkStatus();
  }

  /// A failed publish may have taken effect (a lost reply): read the directory to find out.
  Status PublishFailed(Error error) {
    if (error.code == ErrorCode::kAlreadyExists) {
      return MakeError(
          ErrorCode::kAlreadyExists, "LOST_RACE",
          fmt::format("another writer committed snapshot {} in {} first; save under another "
                      "id",
                      orders_.unique_id, storage_->description()));
    }
    const Result<Catalog> there = ReadCatalog(*storage_, orders_.unique_id);
    const bool surely_not = there.ok() ? there->info().attempt != orders_.attempt
                                       : there.error().reason == "NO_SNAPSHOT";
    if (surely_not) {
      return tl::unexpected<Error>(std::move(error));
    }
    published_ = true;
    return Unknown(error.message);
  }

  Status Unknown(std::string_view why) const {
    return MakeError(
        ErrorCode::kIndeterminate, "COMMIT_UNKNOWN",
        fmt::format("snapshot {} was published, but it is not known to be durable ({}); "
                    "check with `reshard verify`",
                    orders_.unique_id, why));
  }

  /// After an exchange the temporary name holds the replaced catalog: the files that only it lists
  /// go, then it. A catalog that does not decode deletes nothing. Failures here lose nothing.
  void RemoveReplaced(const std::string& temp, const Catalog& now) {
    const Result<Bytes> bytes = ReadWhole(*storage_, temp);
    if (!bytes.ok()) {
      return;
    }
    const Result<Catalog> old = DecodeSnapshotCatalog(*bytes, temp);
    if (!old.ok() || old->info().unique_id != orders_.unique_id) {
      return;
    }
    for (const FileEntry& file : old->files()) {
      const bool kept = std::any_of(now.files().begin(), now.files().end(),
                                    [&file](const FileEntry& f) { return f.name == file.name; });
      if (!kept) {
        stale_.push_back(file.name);
        static_cast<void>(storage_->Remove(file.name).ok());
        group_.Beat();
      }
    }
    static_cast<void>(storage_->Remove(temp).ok());
    static_cast<void>(storage_->SyncNames().ok());
  }

  /// Removes data files of older attempts of this id, as far as they are in this storage.
  void RemoveStale(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      const std::optional<native::Name> parsed = native::ParseName(name);
      if (parsed && parsed->kind == native::NameKind::kDataFile &&
          parsed->attempt < orders_.attempt && parsed->unique_id == orders_.unique_id) {
        static_cast<void>(storage_->Remove(name).ok());
        group_.Beat();
      }
    }
  }

  /// Removes this storage's commit record if it is still the one that was there when the save
  /// began: another writer's newer one is not ours to remove. A damaged one, which deletes nothing,
  /// gets out of the way of readers.
  void RemoveReplacedRecord() {
    if (!replaced_attempt_ && !replaced_is_damaged_) {
      return;
    }
    const std::string catalog_name = native::CatalogName(orders_.unique_id);
    const Result<Catalog> old = ReadCatalog(*storage_, orders_.unique_id);
    if (old.ok() && replaced_attempt_ == old->info().attempt &&
        old->info().attempt < orders_.attempt) {
      static_cast<void>(storage_->Remove(catalog_name).ok());
      static_cast<void>(storage_->SyncNames().ok());
    } else if (replaced_is_damaged_ && !old.ok() && old.error().code == ErrorCode::kCorruption) {
      const std::string temp = native::TempCatalogName(orders_.unique_id, orders_.attempt);
      static_cast<void>(storage_->Rename(catalog_name, temp).ok());
      static_cast<void>(storage_->SyncNames().ok());
    }
  }

  /// The group failed after this rank's `outcome`. What the coordinator has not published, or what
  /// lacks this rank's file, never will be; else it may be committed or not, and nothing is deleted
  /// then: the coordinator may have this rank's report though this rank cannot know.
  Result<bool> OutcomeUnknown(const Error& error, const Status& outcome) {
    if (is_root() ? !published_ : !outcome.ok()) {
      DiscardAll();
      return tl::unexpected<Error>(is_root() && !outcome.ok() ? outcome.error() : error);
    }
    if (!outcome.ok()) {
      return tl::unexpected<Error>(outcome.error());
    }
    std::string_view state = "its commit record is not there";
    if (const Result<Catalog> there = ReadCatalog(*storage_, orders_.unique_id);
        there.ok() && there->info().attempt == orders_.attempt) {
      state = "its commit record is there";
    }
    return MakeError(ErrorCode::kIndeterminate, "COMMIT_UNKNOWN",
                     fmt::format("the outcome of snapshot {} did not reach every rank ({}); {}",
                                 orders_.unique_id, error.message, state));
  }

  /// Removes what this save created, before anything was published.
  void DiscardAll() {
    if (published_) {
      return;
    }
    file_->Discard();
    if (claim_may_stay_) {
      static_cast<void>(
          storage_->Remove(native::TempCatalogName(orders_.unique_id, orders_.attempt)).ok());
      claim_may_stay_ = false;
    }
    claim_.reset();
  }

  Result<SaveResult> Finish() const {
    SaveResult result;
    result.unique_id = orders_.unique_id;
    result.attempt = orders_.attempt;
    result.bytes_total = orders_.bytes_total;
    result.bytes_written = file_->report().file_size;
    result.file_name = file_->report().file_name;
    return result;
  }

  const StateDict& state_;
  Storage* storage_;
  ProcessGroup& group_;
  const SaveOptions& options_;
  Status local_;
  int root_;

  std::vector<FlatEntry> leaves_;
  StateDescription description_;
  Bytes encoded_;
  bool shared_with_root_ = false;
  bool use_cache_ = false;
  Orders orders_;
  RankPlan rank_plan_;
  std::unique_ptr<DataFileWriter> file_;  // this attempt's
  Mutex progress_mutex_;
  Progress progress_;
  std::optional<std::uint64_t> replaced_attempt_;  // of the commit record here when we began
  std::vector<std::string> replaced_files_;        // that it lists
  bool replaced_is_damaged_ = false;

  // Coordinator only.
  bool all_shared_ = true;
  DirectoryView view_;
  std::vector<std::uint64_t> digests_;
  std::vector<std::vector<ObjectDescription>> objects_;
  SavePlan own_plan_;
  const SavePlan* plan_ = nullptr;
  std::vector<MergedObject> merged_objects_;
  std::unique_ptr<WritableObject> claim_;
  bool claim_may_stay_ = false;  // Finish was called
  bool published_ = false;
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
  posix.create = true;
  Result<std::unique_ptr<Storage>> storage = OpenPosixStorage(path, posix);
  if (!storage.ok()) {
    return SaveSession(state, nullptr, tl::unexpected<Error>(std::move(storage).error()), group,
                       options)
        .Run();
  }
  return SaveSession(state, storage->get(), OkStatus(), group, options).Run();
}

}  // namespace reshard
