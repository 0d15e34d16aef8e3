#pragma once

// From examined safetensors files to a catalog.

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "reshard/format/foreign.h"
#include "reshard/format/safetensors/index.h"

namespace reshard::safetensors {

/// What ReadMetadata gives.
class SetMetadata final : public ForeignMetadata {
 public:
  /// A set with an index.
  explicit SetMetadata(SetIndex index) : files_(index.files), index_(std::move(index)) {}

  /// Files without one. `sharded`: what has a place in a larger tensor is part of that.
  SetMetadata(std::vector<std::string> files, bool sharded)
      : files_(std::move(files)), sharded_(sharded) {}

  std::span<const std::string> files() const override { return files_; }

  /// Null: there is none.
  const SetIndex* index() const { return index_ ? &*index_ : nullptr; }

  bool sharded() const { return sharded_; }

 private:
  std::vector<std::string> files_;
  std::optional<SetIndex> index_;
  bool sharded_ = false;
};

/// As ForeignFormat::Assemble.
Result<Assembled> AssembleSet(const ForeignRef& ref, const SetMetadata& metadata,
                              std::span<const ExaminedFile> files);

}  // namespace reshard::safetensors
