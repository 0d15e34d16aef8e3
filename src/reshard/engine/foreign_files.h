#pragma once

// One rank's data files of a save in a foreign format: what these formats have alike. Blocks count
// from the start of a file, and modification times are reported, for the index.

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/engine/rank_files.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// Each format derives its own.
class ForeignFiles : public RankFiles {
 public:
  const std::vector<WriteReport>& reports() const override { return reports_; }

  bool met_stray() const override;
  void Keep() override;
  void Discard() override;

 protected:
  ForeignFiles(Storage& storage, RankContent content)
      : storage_(storage), content_(std::move(content)) {}

  const RankContent& content() const { return content_; }

  /// Creates, writes and syncs one file. `report` says its name and size, which chunks it holds and
  /// where; the checksums are added. Errors: those of Storage and WritePayload.
  Status WriteFile(WriteReport report, const std::vector<PayloadSegment>& segments,
                   const PayloadOptions& options);

  /// After the last file: makes the names durable. Errors: those of Storage.
  Status FinishFiles();

 private:
  Storage& storage_;
  RankContent content_;
  std::vector<OwnedFile> files_;
  std::vector<WriteReport> reports_;
};

}  // namespace reshard
