#pragma once

// One rank's data files of a save in Paddle's format. A file is a dict, which holds one piece of a
// key, so a rank with several pieces of one tensor writes several files.

#include <utility>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/engine/foreign_files.h"
#include "reshard/format/paddle/writer.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// The files of a rank. Errors of Write: those of Storage and WritePayload.
class PaddleFiles final : public ForeignFiles {
 public:
  PaddleFiles(Storage& storage, RankContent content) : ForeignFiles(storage, std::move(content)) {}

  Status Write(const PayloadOptions& options) override;

 private:
  std::vector<std::vector<std::size_t>> Parts() const;
  Status WritePart(std::size_t part, const std::vector<std::size_t>& chunks,
                   const PayloadOptions& options);
};

}  // namespace reshard
