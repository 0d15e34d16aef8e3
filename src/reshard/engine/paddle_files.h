#pragma once

// One rank's data files of a save in Paddle's format. A file is a dict, which holds one piece of a
// key, so a rank with several pieces of one tensor writes several files.

#include <memory>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/engine/rank_files.h"
#include "reshard/format/paddle/writer.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// The files of a rank. Errors of Write: those of Storage and WritePayload.
class PaddleFiles final : public RankFiles {
 public:
  PaddleFiles(Storage& storage, RankContent content);

  Status Write(const PayloadOptions& options) override;

  const std::vector<WriteReport>& reports() const override { return reports_; }

  bool met_stray() const override;
  void Keep() override;
  void Discard() override;

 private:
  std::vector<std::vector<std::size_t>> Parts() const;
  Status WritePart(std::size_t part, const std::vector<std::size_t>& chunks,
                   const PayloadOptions& options);

  Storage& storage_;
  RankContent content_;
  std::vector<OwnedFile> files_;
  std::vector<WriteReport> reports_;
};

}  // namespace reshard
