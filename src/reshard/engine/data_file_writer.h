#pragma once

// One rank's data file of a native save: the payload, then the header that carries the file's own
// catalog entries, then durable. docs/format/native.md section 3.

#include <cstdint>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/engine/rank_files.h"
#include "reshard/format/native/data_file.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// The native format's files of a rank: one. Errors of Write: those of Storage and WritePayload;
/// kUnsupported HEADER_TOO_LARGE.
class DataFileWriter final : public RankFiles {
 public:
  DataFileWriter(Storage& storage, RankContent content);

  Status Write(const PayloadOptions& options) override;

  const std::vector<WriteReport>& reports() const override { return reports_; }

  bool met_stray() const override { return file_.met_stray(); }

  void Keep() override { file_.Keep(); }

  void Discard() override { file_.Discard(); }

 private:
  Result<Bytes> EncodeFragment(std::uint64_t payload_offset, const WriteReport& report) const;
  Status WriteHeader(std::span<const native::HeaderEntry> entries, WriteReport& report);

  Storage& storage_;
  RankContent content_;
  OwnedFile file_;
  std::vector<WriteReport> reports_;  // one, when it is written
};

}  // namespace reshard
