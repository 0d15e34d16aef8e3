#include "reshard/engine/commit.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/engine/snapshot.h"

namespace reshard {
namespace {

constexpr int kMostAttempts = 4;

/// The object's bytes; nothing when they cannot be had.
std::optional<Bytes> TryRead(Storage& storage, std::string_view name) {
  Result<Bytes> bytes = ReadWhole(storage, name);
  return bytes.ok() ? std::optional(std::move(*bytes)) : std::nullopt;
}

/// Where an older record of this name waits.
std::string PutAwayName(const CommitRecord& record) { return record.temp_name + ".old"; }

}  // namespace

Committer::Committer(Storage& storage, const SaveFormat& format, bool overwrite,
                     std::function<void()> beat)
    : storage_(storage), format_(format), overwrite_(overwrite), beat_(std::move(beat)) {}

Status Committer::Claim(SaveId& id) {
  claim_.reset();
  for (int i = 0; i < kMostAttempts; ++i) {
    Result<std::unique_ptr<WritableObject>> created =
        storage_.Create(format_.ClaimName(id), {0, true});
    if (created.ok()) {
      claim_ = std::move(*created);
      id_ = id;
      return OkStatus();
    }
    if (created.error().reason != "FILE_EXISTS") {
      return tl::unexpected<Error>(std::move(created).error());
    }
    ++id.attempt;
  }
  return MakeError(
      ErrorCode::kUnavailable, "STRAY_FILES",
      fmt::format("no free attempt of snapshot {} in {}; is another writer at work there?",
                  id.unique_id, storage_.description()));
}

Status Committer::Publish(const std::vector<CommitRecord>& records,
                          const std::vector<std::string>& files, std::vector<std::string>& stale) {
  RESHARD_TRY(WriteSides(records));
  const CommitRecord& main = records.back();
  RESHARD_TRY(WriteMain(main));
  RESHARD_TRY(storage_.SyncNames());
  RESHARD_TRY(main.written_at ? PutOldSidesAway() : PublishSides());
  Result<Published> published = storage_.Publish(
      main.temp_name, main.name, overwrite_ ? PublishMode::kReplace : PublishMode::kNew);
  if (!published.ok()) {
    return PublishFailed(std::move(published).error(), main);
  }
  published_ = true;
  if (Status synced = storage_.SyncNames(); !synced.ok()) {
    return Unknown(synced.error().message);
  }
  RemoveStaleFiles(storage_, format_, id_, stale, beat_);  // what other storages' records list
  if (main.written_at) {
    EndWritten(main);
  } else if (published->replaced) {
    RemoveReplaced(main, files, stale);
  } else {
    RemoveReplacedSides();
  }
  return OkStatus();
}

/// A record that a rank wrote is there already; the claim stays empty.
Status Committer::WriteMain(const CommitRecord& main) {
  if (main.written_at) {
    return OkStatus();
  }
  RESHARD_TRY(claim_->WriteAt(0, main.bytes));
  claim_may_stay_ = true;
  return claim_->Finish(main.bytes.size());
}

/// They wait under another name for what becomes of this save.
Status Committer::PutOldSidesAway() {
  for (Side& side : sides_) {
    side.put_away = true;
    Status moved = storage_.Rename(side.record.name, PutAwayName(side.record));
    if (!moved.ok() && moved.error().code != ErrorCode::kNotFound) {
      return moved;
    }
  }
  return sides_.empty() ? OkStatus() : storage_.SyncNames();
}

/// After the commit of a record that a rank wrote: the records beside it, and what was exchanged
/// for it. Failures here lose nothing but checksums.
void Committer::EndWritten(const CommitRecord& main) {
  static_cast<void>(PublishSides().ok());
  for (const Side& side : sides_) {
    static_cast<void>(storage_.Remove(side.record.temp_name).ok());
    static_cast<void>(storage_.Remove(PutAwayName(side.record)).ok());
  }
  static_cast<void>(storage_.Remove(main.temp_name).ok());
  claim_.reset();  // unfinished: it goes
  static_cast<void>(storage_.SyncNames().ok());
}

Status Committer::WriteSides(const std::vector<CommitRecord>& records) {
  sides_.clear();
  for (std::size_t i = 0; i + 1 < records.size(); ++i) {
    Side& side = sides_.emplace_back();
    side.record = records[i];
    RESHARD_TRY_ASSIGN(side.object, storage_.Create(side.record.temp_name, {}));
    RESHARD_TRY(side.object->WriteAt(0, side.record.bytes));
    side.may_stay = true;
    RESHARD_TRY(side.object->Finish(side.record.bytes.size()));
  }
  return OkStatus();
}

/// What stands there already may be a leftover of a crash, or that of the save to be replaced: both
/// wait under the temporary name for what becomes of this one.
Status Committer::PublishSides() {
  for (Side& side : sides_) {
    RESHARD_TRY_ASSIGN(
        const Published published,
        storage_.Publish(side.record.temp_name, side.record.name, PublishMode::kReplace));
    side.replaced = published.replaced;
  }
  return sides_.empty() ? OkStatus() : storage_.SyncNames();
}

/// A failed publish may have taken effect (a lost reply): read the directory to find out.
Status Committer::PublishFailed(Error error, const CommitRecord& record) {
  if (error.code == ErrorCode::kAlreadyExists) {
    return MakeError(ErrorCode::kAlreadyExists, "LOST_RACE",
                     fmt::format("another writer committed snapshot {} in {} first; save under "
                                 "another id",
                                 id_.unique_id, storage_.description()));
  }
  const Result<bool> committed = format_.IsCommitted(storage_, id_, record);
  if (committed.ok() && !*committed) {
    return tl::unexpected<Error>(std::move(error));
  }
  published_ = true;
  return Unknown(error.message);
}

Status Committer::Unknown(std::string_view why) const {
  return MakeError(ErrorCode::kIndeterminate, "COMMIT_UNKNOWN",
                   fmt::format("snapshot {} was published, but it is not known to be durable ({}); "
                               "check with `reshard verify`",
                               id_.unique_id, why));
}

/// After an exchange the temporary names hold the replaced records: the files that only they list
/// go, then they. Records that do not tell delete nothing. Failures here lose nothing.
void Committer::RemoveReplaced(const CommitRecord& main, const std::vector<std::string>& files,
                               std::vector<std::string>& stale) {
  std::vector<std::optional<Bytes>> replaced;
  for (const Side& side : sides_) {
    replaced.push_back(side.replaced ? TryRead(storage_, side.record.temp_name) : std::nullopt);
  }
  replaced.push_back(TryRead(storage_, main.temp_name));
  if (!replaced.back()) {
    return;
  }
  const auto old = format_.ReplacedFiles(id_, replaced);
  if (!old) {
    return;
  }
  for (const std::string& name : *old) {
    if (std::find(files.begin(), files.end(), name) == files.end()) {
      stale.push_back(name);
      static_cast<void>(storage_.Remove(name).ok());
      beat_();
    }
  }
  RemoveReplacedSides();
  static_cast<void>(storage_.Remove(main.temp_name).ok());
  static_cast<void>(storage_.SyncNames().ok());
}

void Committer::RemoveReplacedSides() {
  for (const Side& side : sides_) {
    if (side.replaced) {
      static_cast<void>(storage_.Remove(side.record.temp_name).ok());
    }
  }
}

void Committer::Discard() {
  if (published_) {
    return;
  }
  for (Side& side : sides_) {
    TakeBack(side);
  }
  sides_.clear();
  if (claim_may_stay_) {
    static_cast<void>(storage_.Remove(format_.ClaimName(id_)).ok());
    claim_may_stay_ = false;
  }
  claim_.reset();
}

/// Puts back what the record was exchanged for, unless another writer has been there since.
void Committer::TakeBack(Side& side) {
  if (!side.may_stay) {
    return;
  }
  const CommitRecord& record = side.record;
  if (side.put_away) {
    static_cast<void>(storage_.Rename(PutAwayName(record), record.name).ok());
  } else if (TryRead(storage_, record.name) == record.bytes) {
    const std::optional<Bytes> before = TryRead(storage_, record.temp_name);
    if (before && before != record.bytes) {
      static_cast<void>(
          storage_.Publish(record.temp_name, record.name, PublishMode::kReplace).ok());
    } else {
      static_cast<void>(storage_.Remove(record.name).ok());
    }
  }
  static_cast<void>(storage_.Remove(record.temp_name).ok());
}

ReplacedRecord::ReplacedRecord(Storage& storage, const SaveFormat& format, std::uint64_t unique_id)
    : storage_(storage), format_(format) {
  Result<CommittedSave> old = format.ReadCommitted(storage, unique_id);
  if (old.ok()) {
    attempt_ = old->attempt;
    is_damaged_ = !attempt_.has_value();
    files_ = std::move(old->files);
  }
}

void ReplacedRecord::Remove(const SaveId& id) {
  if (!attempt_ && !is_damaged_) {
    return;
  }
  const std::string name = format_.RecordName(id.unique_id);
  const Result<CommittedSave> old = format_.ReadCommitted(storage_, id.unique_id);
  if (!old.ok()) {
    return;
  }
  if (old->attempt && old->attempt == attempt_ && *attempt_ < id.attempt) {
    static_cast<void>(storage_.Remove(name).ok());
    for (const std::string& side : format_.SideNames(id.unique_id)) {
      static_cast<void>(storage_.Remove(side).ok());
    }
    static_cast<void>(storage_.SyncNames().ok());
  } else if (is_damaged_ && !old->attempt) {
    static_cast<void>(storage_.Rename(name, format_.ClaimName(id)).ok());
    static_cast<void>(storage_.SyncNames().ok());
  }
}

void RemoveStaleFiles(Storage& storage, const SaveFormat& format, const SaveId& id,
                      const std::vector<std::string>& names, const std::function<void()>& beat) {
  for (const std::string& name : names) {
    if (format.IsOlderFile(name, id)) {
      static_cast<void>(storage.Remove(name).ok());
      beat();
    }
  }
}

}  // namespace reshard
