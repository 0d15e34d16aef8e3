#include "reshard/format/torch/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "reshard/format/name_parts_internal.h"
#include "reshard/format/torch/assemble_internal.h"
#include "reshard/format/torch/names.h"
#include "reshard/format/torch/record_internal.h"

namespace reshard::torch {
namespace {

constexpr std::string_view kName = "torch";

/// "__{rank}.metadata"
std::optional<std::uint64_t> RankOfMetadata(std::string_view name) {
  std::uint64_t rank = 0;
  const bool good = TakeText(name, "__") && TakeNumber(name, rank) && name == kMetadataName;
  return good ? std::optional(rank) : std::nullopt;
}

/// Other families' metadata under DCP's name, or a file that has nothing to do with either.
Error NotDcp(const Error& error) {
  const bool other = error.reason == pickle::kGlobalNotAllowed ||
                     error.reason == pickle::kBadProtocol;
  return other ? error.WithContext("this is no metadata of PyTorch DCP") : error;
}

class TorchFormat final : public ForeignFormat {
 public:
  std::string_view name() const override { return kName; }

  std::vector<ForeignRef> Find(std::span<const std::string> names) const override;
  Result<std::unique_ptr<ForeignMetadata>> ReadMetadata(
      const ForeignRef& ref, std::span<ByteSource* const> sources) const override;

  bool IsDataFileName(const ForeignRef& /*ref*/, std::string_view name) const override {
    return name.ends_with(".distcp") && name.find("__") != std::string_view::npos;
  }

  bool LooksLikeFile(std::string_view /*name*/, ByteSpan /*first_bytes*/) const override {
    return false;  // a data file alone is no checkpoint
  }

  Result<Bytes> Examine(std::string_view name, ByteSource& file, ByteSpan request) const override;

  Result<Assembled> Assemble(const ForeignRef& ref, const ForeignMetadata& metadata,
                             std::span<const ExaminedFile> files) const override {
    return torch::Assemble(ref, dynamic_cast<const DcpMetadata&>(metadata), files);
  }
};

std::vector<ForeignRef> TorchFormat::Find(std::span<const std::string> names) const {
  if (std::find(names.begin(), names.end(), kMetadataName) != names.end()) {
    return {{std::string(kName), std::string(kMetadataName), 0}};
  }
  std::vector<std::pair<std::uint64_t, std::string>> ranks;
  for (const std::string& name : names) {
    if (const std::optional<std::uint64_t> rank = RankOfMetadata(name)) {
      ranks.emplace_back(*rank, name);
    }
  }
  if (ranks.empty()) {
    return {};
  }
  std::sort(ranks.begin(), ranks.end());
  ForeignRef ref{std::string(kName), ranks[0].second, 0};
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    ref.more_names.push_back(ranks[i].second);
  }
  return {ref};
}

Result<std::unique_ptr<ForeignMetadata>> TorchFormat::ReadMetadata(
    const ForeignRef& ref, std::span<ByteSource* const> sources) const {
  std::vector<Metadata> ranks;
  ranks.reserve(sources.size());
  for (std::size_t i = 0; i < sources.size(); ++i) {
    Result<Metadata> metadata = DecodeMetadata(*sources[i]);
    if (!metadata.ok()) {
      const Error error = NotDcp(metadata.error());
      return tl::unexpected<Error>(i == 0 ? error : error.WithContext(ref.more_names[i - 1]));
    }
    ranks.push_back(std::move(*metadata));
  }
  Metadata whole;
  if (ranks.size() == 1) {
    whole = std::move(ranks[0]);
  } else {
    RESHARD_TRY_ASSIGN(whole, UniteMetadata(std::move(ranks)));
  }
  RESHARD_TRY_ASSIGN(std::unique_ptr<DcpMetadata> metadata, DcpMetadata::Create(std::move(whole)));
  return std::unique_ptr<ForeignMetadata>(std::move(metadata));
}

FoundRecord ExamineStored(ByteSource& window, const WantedRecord& record) {
  // In the order of the file, so that records side by side share reads.
  const bool inside = record.bytes.end() <= window.size();
  if (inside && record.bytes.size > 0) {
    Bytes head(std::min<std::uint64_t>(record.bytes.size, 4096));
    if (Status status = window.ReadAt(record.bytes.offset, head); !status.ok()) {
      return status.error();
    }
    if (head[0] == std::byte{0x80}) {
      return Error{ErrorCode::kUnsupported, std::string(kBadRecord),
                   fmt::format("byte {}: a pickle begins where a record of torch.save should: the "
                               "file is of another framework, Paddle perhaps",
                               record.bytes.offset),
                   false, false};
    }
  }
  return ExamineRecord(window, record.bytes, record.value);
}

Result<Bytes> TorchFormat::Examine(std::string_view /*name*/, ByteSource& file,
                                   ByteSpan request) const {
  RESHARD_TRY_ASSIGN(const std::vector<WantedRecord> records, DecodeRequest(request));
  if (!records.empty() && records[0].zstd) {
    return ExamineCompressed(file, records);
  }
  FoundFile found;
  found.records.reserve(records.size());
  RecordWindow window(file);
  for (const WantedRecord& record : records) {
    found.records.push_back(ExamineStored(window, record));
  }
  return EncodeFound(found);
}

}  // namespace

const ForeignFormat& DcpFormat() {
  static const TorchFormat format;
  return format;
}

}  // namespace reshard::torch
