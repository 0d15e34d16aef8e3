#pragma once

// One rank's data file of a save in PyTorch's DCP format: records one after the other, those of
// objects first.

#include <utility>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/engine/foreign_files.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// The file of a rank. Errors of Write: those of Storage, WritePayload and DecodeObject.
class TorchFiles final : public ForeignFiles {
 public:
  TorchFiles(Storage& storage, RankContent content) : ForeignFiles(storage, std::move(content)) {}

  Status Write(const PayloadOptions& options) override;
};

/// The records of objects, in their order. Errors: those of DecodeObject.
Result<std::vector<Bytes>> TorchObjectRecords(std::span<const MergedObject> objects);

}  // namespace reshard
