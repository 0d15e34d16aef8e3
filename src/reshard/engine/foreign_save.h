#pragma once

// Saving in a foreign format: what these formats have alike. The commit record is the format's own
// metadata; our index, published before it, says which metadata it belongs to.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/engine/save_format.h"
#include "reshard/format/foreign.h"

namespace reshard {

/// Each format derives its own.
class ForeignSaveFormat : public SaveFormat {
 public:
  Result<DirectoryView> View(Storage& storage) const override;
  std::string RecordName(std::uint64_t unique_id) const override;
  std::vector<std::string> SideNames(std::uint64_t unique_id) const override;
  Result<std::vector<CommitRecord>> MakeRecords(const SaveOutcome& outcome) const override;
  Result<CommittedSave> ReadCommitted(Storage& storage, std::uint64_t unique_id) const override;
  Result<bool> IsCommitted(Storage& storage, const SaveId& id,
                           const CommitRecord& record) const override;
  std::optional<std::vector<std::string>> ReplacedFiles(
      const SaveId& id, std::span<const std::optional<Bytes>> replaced) const override;

 protected:
  /// What a checkpoint of that id is to readers.
  virtual ForeignRef RefOf(std::uint64_t unique_id) const = 0;

  /// What one name says of the directory.
  virtual void LookAtName(const std::string& name, DirectoryView& view) const = 0;

  /// Under which the index is written.
  virtual std::string IndexClaimName(const SaveId& id) const = 0;

  /// Whether the format's metadata names tensors without elements.
  virtual bool HasEmptyTensors() const = 0;

  /// The format's own metadata of a catalog.
  virtual Result<Bytes> EncodeMetadata(const Catalog& catalog,
                                       const SaveOutcome& outcome) const = 0;

 private:
  std::optional<std::vector<std::string>> FilesOf(const ForeignRef& ref, ByteSpan metadata,
                                                  const std::optional<Bytes>& index) const;
};

/// The names of a catalog's data files.
std::vector<std::string> FileNames(const Catalog& catalog);

}  // namespace reshard
