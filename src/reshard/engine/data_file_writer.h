#pragma once

// One rank's data file of a save: the payload, then the header that carries the file's own catalog
// entries, then durable. docs/format/native.md section 3.

#include <cstdint>
#include <memory>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/catalog/description.h"
#include "reshard/catalog/save_plan.h"
#include "reshard/engine/payload_writer.h"
#include "reshard/format/native/data_file.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// What goes into the file. References must outlive the writer.
struct DataFileContent {
  const std::vector<FlatEntry>& leaves;  ///< Flattened state dict of this rank.
  const StateDescription& description;   ///< Of these leaves.
  const RankPlan& plan;                  ///< Chunks in file order.
  CatalogInfo info;                      ///< Id and attempt; the kind does not matter.
  int rank = 0;                          ///< In the group.
  int global_rank = 0;                   ///< In the file's name.
};

/// Writes it once. Discard or Keep before destruction decides what happens to a finished file; an
/// unfinished one goes. Not thread-safe.
class DataFileWriter {
 public:
  DataFileWriter(Storage& storage, DataFileContent content);

  /// Creates, writes and syncs the file and its name; afterwards report() is complete.
  /// Errors: those of Storage and WritePayload; kUnsupported HEADER_TOO_LARGE.
  Status Write(const PayloadOptions& options);

  /// What the coordinator has to know.
  const WriteReport& report() const { return report_; }

  /// Whether another file has the name of this one.
  bool met_stray() const { return met_stray_; }

  /// The file is part of a snapshot now.
  void Keep();

  /// Removes what was written.
  void Discard();

 private:
  const TensorShard* FindShard(const RankChunk& chunk) const;
  const Tensor* TensorOf(std::uint32_t index) const;
  Result<Bytes> EncodeFragment(std::uint64_t payload_offset, const WriteReport& report) const;
  Status WriteHeader(std::span<const native::HeaderEntry> entries);

  Storage& storage_;
  DataFileContent content_;
  WriteReport report_;
  std::unique_ptr<WritableObject> file_;
  bool may_stay_ = false;  // Finish was called
  bool met_stray_ = false;
};

}  // namespace reshard
