#pragma once

// One rank's data file of a save as safetensors: whole tensors, larger elements first.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/engine/rank_files.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// The file of a rank. The only rank of a save writes the checkpoint itself, under a temporary
/// name. Errors of Write: those of Storage and WritePayload; kUnsupported HEADER_TOO_LARGE;
/// kInvalidArgument OTHER_LAYOUT.
class SafetensorsFiles final : public RankFiles {
 public:
  SafetensorsFiles(Storage& storage, RankContent content)
      : storage_(storage), content_(std::move(content)), file_(storage) {}

  Status Write(const PayloadOptions& options) override;

  const std::vector<WriteReport>& reports() const override { return reports_; }

  bool met_stray() const override { return file_.met_stray(); }

  void Keep() override;

  void Discard() override { file_.Discard(); }

 private:
  bool single() const { return content_.info.world_size == 1; }

  std::string FileName() const;
  Status CheckLayout() const;
  Status ReadBack(WriteReport& report) const;

  Storage& storage_;
  RankContent content_;
  OwnedFile file_;
  std::vector<WriteReport> reports_;
};

}  // namespace reshard
