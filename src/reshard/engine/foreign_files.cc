#include "reshard/engine/foreign_files.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace reshard {

Status ForeignFiles::WriteFile(WriteReport report, const std::vector<PayloadSegment>& segments,
                               const PayloadOptions& options) {
  OwnedFile& file = files_.emplace_back(storage_);
  RESHARD_TRY(file.Create(report.file_name, report.file_size));
  RESHARD_TRY_ASSIGN(PayloadChecksums sums, WritePayload(file.object(), 0, segments, options));
  RESHARD_TRY(file.Finish(report.file_size));
  report.block_checksums = std::move(sums.blocks);
  report.digest_parts = std::move(sums.digest_parts);
  reports_.push_back(std::move(report));
  return OkStatus();
}

Status ForeignFiles::FinishFiles() {
  RESHARD_TRY(storage_.SyncNames());
  for (WriteReport& report : reports_) {  // as readers will see it
    RESHARD_TRY_ASSIGN(const std::unique_ptr<ReadableObject> object,
                       storage_.Open(report.file_name));
    report.mtime_ns = object->mtime_ns();
  }
  return OkStatus();
}

bool ForeignFiles::met_stray() const {
  return std::any_of(files_.begin(), files_.end(),
                     [](const OwnedFile& file) { return file.met_stray(); });
}

void ForeignFiles::Keep() {
  for (OwnedFile& file : files_) {
    file.Keep();
  }
}

void ForeignFiles::Discard() {
  for (OwnedFile& file : files_) {
    file.Discard();
  }
}

}  // namespace reshard
