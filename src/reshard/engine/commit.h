#pragma once

// The end of a save: the coordinator claims an attempt, publishes the commit record and removes
// what it replaced; ranks with disks of their own remove what they have of that.
//
// Order: every record durable, all names durable, the records beside the commit record published,
// durable, the commit record published, durable; only then is anything removed. Where a data file
// is the commit record itself, an index of an older one must not stand beside it even for a moment:
// it goes before, and the new one comes after (a crash in between costs the checksums only).

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/engine/save_format.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// The coordinator's part. Not thread-safe. References must outlive it.
class Committer {
 public:
  /// `beat` is called between removals.
  Committer(Storage& storage, const SaveFormat& format, bool overwrite, std::function<void()> beat);

  /// Creates the temporary commit record of `id` exclusively, locked: nobody else writes under this
  /// attempt's names. Takes a higher attempt where a name is taken. Errors: those of Create;
  /// kUnavailable STRAY_FILES.
  Status Claim(SaveId& id);

  /// Publishes the records under the claimed id and removes what they replaced, and what of `stale`
  /// is here: data files of older attempts. What was removed is added to `stale`. `files` are those
  /// of this save.
  /// Errors: those of Storage; kAlreadyExists LOST_RACE; kIndeterminate COMMIT_UNKNOWN.
  Status Publish(const std::vector<CommitRecord>& records, const std::vector<std::string>& files,
                 std::vector<std::string>& stale);

  /// Whether the commit record is, or may be, in its place.
  bool published() const { return published_; }

  /// Takes back what is not published.
  void Discard();

 private:
  /// A record beside the commit record.
  struct Side {
    CommitRecord record;
    std::unique_ptr<WritableObject> object;
    bool may_stay = false;  // Finish was called
    bool replaced = false;  // the temporary name holds what it was exchanged for
    bool put_away = false;  // what stood under its name may wait under another
  };

  Status WriteSides(const std::vector<CommitRecord>& records);
  Status PublishSides();
  Status WriteMain(const CommitRecord& main);
  Status PutOldSidesAway();
  void EndWritten(const CommitRecord& main);
  Status PublishFailed(Error error, const CommitRecord& record);
  Status Unknown(std::string_view why) const;
  void RemoveReplaced(const CommitRecord& main, const std::vector<std::string>& files,
                      std::vector<std::string>& stale);
  void RemoveReplacedSides();
  void TakeBack(Side& side);

  Storage& storage_;
  const SaveFormat& format_;
  bool overwrite_;
  std::function<void()> beat_;
  SaveId id_;
  std::unique_ptr<WritableObject> claim_;
  bool claim_may_stay_ = false;  // Finish was called
  std::vector<Side> sides_;
  bool published_ = false;
};

/// What a rank remembers of the commit record in its own storage, which an overwrite replaces.
class ReplacedRecord {
 public:
  /// Looks at the record of `unique_id`, which is there; its attempt may be in no name (a snapshot
  /// without data files).
  ReplacedRecord(Storage& storage, const SaveFormat& format, std::uint64_t unique_id);

  std::optional<std::uint64_t> attempt() const { return attempt_; }

  /// The data files that it lists.
  const std::vector<std::string>& files() const { return files_; }

  /// After a commit of `id` elsewhere: removes the record if it is still the one that was there
  /// when the save began (another writer's newer one is not ours to remove). One that is damaged,
  /// which deletes nothing, gets out of the way of readers.
  void Remove(const SaveId& id);

 private:
  Storage& storage_;
  const SaveFormat& format_;
  std::optional<std::uint64_t> attempt_;
  bool is_damaged_ = false;
  std::vector<std::string> files_;
};

/// Removes those of `names` that are data files of older attempts of `id`, as far as they are here.
void RemoveStaleFiles(Storage& storage, const SaveFormat& format, const SaveId& id,
                      const std::vector<std::string>& names, const std::function<void()>& beat);

}  // namespace reshard
