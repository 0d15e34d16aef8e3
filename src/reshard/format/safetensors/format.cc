#include "reshard/format/safetensors/format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "reshard/format/safetensors/assemble_internal.h"
#include "reshard/format/safetensors/data_file.h"
#include "reshard/format/safetensors/header.h"
#include "reshard/format/safetensors/names.h"

namespace reshard::safetensors {
namespace {

constexpr std::size_t kMostNamed = 4;

std::vector<std::string> AllNames(const ForeignRef& ref) {
  std::vector<std::string> names = {ref.metadata_name};
  names.insert(names.end(), ref.more_names.begin(), ref.more_names.end());
  return names;
}

std::string FewOf(const std::vector<std::string>& names) {
  const auto end = names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kMostNamed));
  return fmt::format("{}{}", fmt::join(names.begin(), end, ", "),
                     names.size() > kMostNamed ? ", ..." : "");
}

/// Whether all names are of one set that lacks none; an error names what it lacks. False: they are
/// no set.
Result<bool> IsWholeSet(const std::vector<std::string>& names, bool& sharded) {
  std::vector<PartName> parts;
  std::uint64_t shards = 0;
  for (const std::string& name : names) {
    const std::optional<PartName> part = ParsePartName(name);
    if (!part) {
      return false;
    }
    shards = std::max(shards, ShardOf(*part).value_or(0));
    parts.push_back(*part);
  }
  sharded = shards > 0;
  std::set<std::string> there(names.begin(), names.end());
  const PartName& first = parts[0];
  for (const PartName& part : parts) {
    const bool same = sharded ? ShardOf(part).has_value()
                              : part.prefix == first.prefix && part.parts == first.parts &&
                                    part.attempt == first.attempt;
    if (!same) {
      return false;
    }
  }
  if (!sharded && names.size() == 1) {  // whole tensors, whatever the others hold
    return true;
  }
  std::vector<std::string> missing;
  const auto look = [&](const PartName& set) {
    for (PartName want{set.prefix, 1, set.parts, set.attempt};
         want.part <= set.parts && missing.size() <= kMostNamed; ++want.part) {
      if (const std::string name = PartFileName(want); there.count(name) == 0) {
        missing.push_back(name);
      }
    }
  };
  if (sharded) {
    std::set<std::uint64_t> seen;
    for (const PartName& part : parts) {
      if (seen.insert(*ShardOf(part)).second) {
        look(part);
      }
    }
    for (std::uint64_t shard = 1; shard <= shards && missing.size() <= kMostNamed; ++shard) {
      if (seen.count(shard) == 0) {
        missing.push_back(fmt::format("shard-{:05}-...", shard));
      }
    }
  } else {
    look(first);
  }
  if (missing.empty()) {
    return true;
  }
  return MakeError(
      ErrorCode::kCorruption, kMissingShard,
      fmt::format("the set of {} is not whole: {} is missing", names[0], FewOf(missing)));
}

/// Whether a file is one of several: alone in a directory it is no checkpoint, but the user may
/// name it.
bool IsPartOfMore(std::string_view name) {
  const std::optional<PartName> part = ParsePartName(name);
  return part && part->parts > 1 && !ShardOf(*part);
}

class SafetensorsFormat final : public ForeignFormat {
 public:
  std::string_view name() const override { return kFormatName; }

  std::vector<ForeignRef> Find(std::span<const std::string> names) const override;
  Result<std::unique_ptr<ForeignMetadata>> ReadMetadata(
      const ForeignRef& ref, std::span<ByteSource* const> sources) const override;

  bool IsDataFileName(const ForeignRef& /*ref*/, std::string_view name) const override {
    const std::optional<PartName> part = ParsePartName(name);  // our own index names no part 0
    return IsDataName(name) && (!part || part->part != 0);
  }

  bool LooksLikeFile(std::string_view name, ByteSpan first_bytes) const override;

  Result<Bytes> Examine(std::string_view /*name*/, ByteSource& file,
                        ByteSpan /*request*/) const override {
    RESHARD_TRY_ASSIGN(const DataFile found, ReadDataFile(file));
    return EncodeDataFile(found);
  }

  Result<Assembled> Assemble(const ForeignRef& ref, const ForeignMetadata& metadata,
                             std::span<const ExaminedFile> files) const override {
    return AssembleSet(ref, dynamic_cast<const SetMetadata&>(metadata), files);
  }
};

/// An index if there is one, else all data files together; what they are to each other is found out
/// when they are read.
std::vector<ForeignRef> SafetensorsFormat::Find(std::span<const std::string> names) const {
  std::vector<std::string> indexes;
  std::vector<std::string> data;
  bool unfinished = false;
  for (const std::string& name : names) {
    if (IsIndexName(name)) {
      indexes.push_back(name);
    } else if (IsDataName(name)) {
      data.push_back(name);
    } else if (AttemptOfTemp(name)) {
      unfinished = true;
    }
  }
  if (unfinished) {  // a save of ours that has not committed: parts of a set may not be whole
    std::erase_if(data, [](const std::string& name) { return ParsePartName(name).has_value(); });
  }
  if (data.size() == 1 && IsPartOfMore(data[0])) {
    data.clear();
  }
  if (std::find(indexes.begin(), indexes.end(), kIndexName) != indexes.end()) {
    indexes = {std::string(kIndexName)};
  }
  std::vector<std::string>& found = indexes.empty() ? data : indexes;
  if (found.empty()) {
    return {};
  }
  ForeignRef ref{std::string(kFormatName), found[0], 0};
  ref.more_names.assign(found.begin() + 1, found.end());
  return {ref};
}

Result<std::unique_ptr<ForeignMetadata>> SafetensorsFormat::ReadMetadata(
    const ForeignRef& ref, std::span<ByteSource* const> sources) const {
  std::vector<std::string> names = AllNames(ref);
  const bool index = IsIndexName(ref.metadata_name);
  if (index && names.size() == 1) {
    RESHARD_TRY_ASSIGN(SetIndex decoded, DecodeIndex(*sources[0]));
    return std::unique_ptr<ForeignMetadata>(std::make_unique<SetMetadata>(std::move(decoded)));
  }
  bool sharded = false;
  bool set = false;
  if (!index) {
    RESHARD_TRY_ASSIGN(set, IsWholeSet(names, sharded));
  }
  if (!set && !index && names.size() > 1) {
    RESHARD_TRY_ASSIGN(const DataFile first, ReadDataFile(*sources[0]));
    set = sharded = first.has_sharding;
  }
  if (!set && names.size() > 1) {
    return MakeError(
        ErrorCode::kUnsupported, kSeveralFiles,
        fmt::format("the directory holds several safetensors checkpoints: {}; name the file that "
                    "is meant, as in DIRECTORY/{}",
                    FewOf(names), names[0]));
  }
  return std::unique_ptr<ForeignMetadata>(std::make_unique<SetMetadata>(std::move(names), sharded));
}

bool SafetensorsFormat::LooksLikeFile(std::string_view /*name*/, ByteSpan first_bytes) const {
  constexpr std::size_t kLengthBytes = 8;
  if (first_bytes.size() <= kLengthBytes) {
    return false;
  }
  const auto length = LoadLittle<std::uint64_t>(first_bytes.data());
  if (length < 2 || length > kMaxHeaderBytes) {
    return false;
  }
  const std::string_view text = AsText(first_bytes.subspan(kLengthBytes));
  const std::size_t at = text.find_first_not_of(" \t\r\n");
  return at != std::string_view::npos && text[at] == '{';
}

}  // namespace

const ForeignFormat& Format() {
  static const SafetensorsFormat format;
  return format;
}

}  // namespace reshard::safetensors
