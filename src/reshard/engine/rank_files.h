#pragma once

// The data files that one rank writes in one attempt of a save; each format derives its own.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/catalog/description.h"
#include "reshard/catalog/save_plan.h"
#include "reshard/engine/payload_writer.h"
#include "reshard/storage/storage.h"

namespace reshard {

/// What goes into the files. References must outlive the writer.
struct RankContent {
  const std::vector<FlatEntry>& leaves;  ///< Flattened state dict of this rank.
  const StateDescription& description;   ///< Of these leaves, or of some of them.
  const RankPlan& plan;                  ///< Chunks in file order.
  CatalogInfo info;                      ///< Id and attempt; the kind does not matter.
  int rank = 0;                          ///< In the group.
  int global_rank = 0;                   ///< In the file's name.
  /// Of all ranks, where this rank is the one that writes them (SaveFormat::HasObjectFiles).
  std::span<const MergedObject> objects = {};

  bool empty() const { return plan.chunks.empty() && objects.empty(); }

  /// The segment of a chunk. Errors: kInternal BAD_MESSAGE when this rank does not hold it.
  Result<PayloadSegment> SegmentOf(const RankChunk& chunk) const;
};

/// A file under a name of its own, until it is known whether it stays.
class OwnedFile {
 public:
  explicit OwnedFile(Storage& storage) : storage_(storage) {}

  /// Errors: those of Storage::Create; met_stray() then says whether the name was taken.
  Status Create(std::string name, std::uint64_t size);

  bool met_stray() const { return met_stray_; }

  /// Only after Create.
  WritableObject& object() { return *object_; }

  /// Makes it durable. Errors: those of WritableObject::Finish.
  Status Finish(std::uint64_t size);

  /// It stays.
  void Keep();

  /// Removes what was written.
  void Discard();

 private:
  Storage& storage_;
  std::string name_;
  std::unique_ptr<WritableObject> object_;
  bool may_stay_ = false;  // Finish was called
  bool met_stray_ = false;
};

/// Writes once. Discard or Keep before destruction decides what happens to finished files; an
/// unfinished one goes. Not thread-safe.
class RankFiles {
 public:
  virtual ~RankFiles() = default;

  /// Creates, writes and syncs the files and their names; afterwards reports() is complete.
  /// Errors: those of Storage and WritePayload, and of the format.
  virtual Status Write(const PayloadOptions& options) = 0;

  /// What the coordinator has to know, for each file.
  virtual const std::vector<WriteReport>& reports() const = 0;

  /// Whether another file has the name of one of these.
  virtual bool met_stray() const = 0;

  /// The files are part of a snapshot now.
  virtual void Keep() = 0;

  /// Removes what was written.
  virtual void Discard() = 0;
};

}  // namespace reshard
