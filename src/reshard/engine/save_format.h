#pragma once

// What a format decides of a save: which names it uses and which ids are free, what it cannot hold,
// how a rank's files look, and what the coordinator publishes in the end. The rest of a save is the
// same for all (save.cc, commit.h).

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/catalog/description.h"
#include "reshard/catalog/save_plan.h"
#include "reshard/engine/rank_files.h"
#include "reshard/engine/snapshot.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// Id and attempt of a save.
struct SaveId {
  std::uint64_t unique_id = 0;
  std::uint64_t attempt = 0;
};

/// Something that the format cannot hold.
struct Unsupported {
  std::string key;
  std::string why;
};

/// What is known of a save that is committed.
struct CommittedSave {
  std::optional<std::uint64_t> attempt;  ///< Nothing: its records are damaged, or do not tell.
  std::vector<std::string> files;        ///< Its data files, as far as they are known to be ours.
};

/// A file that the coordinator publishes.
struct CommitRecord {
  std::string temp_name;
  std::string name;
  Bytes bytes;
  /// Set when a rank wrote the file already, under temp_name: its modification time. Only of the
  /// commit record, which then has no bytes here and stands under a name other than ClaimName.
  std::optional<std::int64_t> written_at = {};
};

/// The outcome of all ranks' writing, for the commit.
struct SaveOutcome {
  const CatalogInfo& info;
  const SavePlan& plan;
  std::span<const WriteReport> reports;  ///< One per file.
  std::span<const MergedObject> objects;
  std::span<const int> global_ranks;
  std::function<Status(const Catalog&)> inspect;  ///< To be called with the finished catalog.
};

class SaveFormat;

/// Takes out of a rank's description what cannot be saved in the format, and says what that was:
/// what the format does not hold, and in any format objects of which only the type is known.
std::vector<Unsupported> RestrictTo(const SaveFormat& format, StateDescription& description);

/// A format to save in. Stateless and thread-safe.
class SaveFormat {
 public:
  virtual ~SaveFormat() = default;

  /// What a rank's directory holds, by names alone. Errors: those of Storage::List.
  virtual Result<DirectoryView> View(Storage& storage) const = 0;

  /// The id that the caller asks for; nothing for the next free one.
  virtual std::optional<std::uint64_t> WantedId(std::optional<std::uint64_t> wanted) const = 0;

  /// The id of this save, given what all ranks see; an existing one only with `overwrite`. `wanted`
  /// is of WantedId, `place` for messages. Errors: kAlreadyExists SNAPSHOT_EXISTS; kInvalidArgument
  /// FOREIGN_DIRECTORY; those of the format.
  virtual Result<std::uint64_t> ChooseId(const DirectoryView& view,
                                         std::optional<std::uint64_t> wanted, bool overwrite,
                                         std::string_view place) const = 0;

  /// Takes out of a rank's description what cannot be held, and says what that was.
  virtual std::vector<Unsupported> Restrict(StateDescription& description) const = 0;

  /// Whether a tensor may be cut over ranks; otherwise each is saved whole by one rank.
  virtual bool HoldsCutTensors() const { return true; }

  /// Whether tensors that share their bytes are stored once.
  virtual bool HoldsAliases() const { return false; }

  /// Whether it holds values that differ by rank, one for each of them.
  virtual bool HoldsPerRankValues() const { return false; }

  /// Whether this name, which belongs to no checkpoint that can be read, is what a save that died
  /// left behind: a new save takes other names.
  virtual bool IsLeftover(std::string_view /*name*/) const { return false; }

  /// The smallest piece of a replicated box, given the caller's wish.
  virtual std::uint64_t MinCutBytes(std::uint64_t wanted) const = 0;

  /// Whether objects lie in data files, which the coordinator writes.
  virtual bool HasObjectFiles() const { return false; }

  /// The files of this rank; they are written unless `content` is empty.
  virtual std::unique_ptr<RankFiles> NewFiles(Storage& storage, RankContent content) const = 0;

  /// The commit record: the snapshot is there when a file of this name is.
  virtual std::string RecordName(std::uint64_t unique_id) const = 0;

  /// Its temporary name, which claims the attempt.
  virtual std::string ClaimName(const SaveId& id) const = 0;

  /// What stands beside the commit record; may be nothing.
  virtual std::vector<std::string> SideNames(std::uint64_t unique_id) const = 0;

  /// What to publish, in this order; the last is the commit record, under ClaimName unless a rank
  /// wrote it. Errors: of the format; that of `outcome.inspect`.
  virtual Result<std::vector<CommitRecord>> MakeRecords(const SaveOutcome& outcome) const = 0;

  /// Errors: kNotFound NO_SNAPSHOT; kIo.
  virtual Result<CommittedSave> ReadCommitted(Storage& storage, std::uint64_t unique_id) const = 0;

  /// Whether the commit record in the directory is this one. Errors: it could not be found out.
  virtual Result<bool> IsCommitted(Storage& storage, const SaveId& id,
                                   const CommitRecord& record) const = 0;

  /// The data files of the save that this one replaced, from what was exchanged for its records (in
  /// their order; nothing where there was none), that may be removed if the new one does not list
  /// them. Nothing: not known, so that none may.
  virtual std::optional<std::vector<std::string>> ReplacedFiles(
      const SaveId& id, std::span<const std::optional<Bytes>> replaced) const = 0;

  /// Whether that is a data file of an earlier attempt of this id.
  virtual bool IsOlderFile(std::string_view name, const SaveId& id) const = 0;
};

/// "native", "paddle", "paddle:3.1", "torch", "torch:2.13", "safetensors". Errors: kInvalidArgument
/// BAD_FORMAT, BAD_RELEASE.
Result<std::unique_ptr<SaveFormat>> FindSaveFormat(std::string_view name);

std::unique_ptr<SaveFormat> NativeSaveFormat();

/// Nothing for the newest release. Errors: kInvalidArgument BAD_RELEASE.
Result<std::unique_ptr<SaveFormat>> PaddleSaveFormat(std::optional<std::string_view> release);

/// PyTorch DCP. Nothing for the newest release. Errors: kInvalidArgument BAD_RELEASE.
Result<std::unique_ptr<SaveFormat>> TorchSaveFormat(std::optional<std::string_view> release);

std::unique_ptr<SaveFormat> SafetensorsSaveFormat();

}  // namespace reshard
