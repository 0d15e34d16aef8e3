#include "reshard/format/paddle/format.h"

#include "reshard/format/paddle/assemble_internal.h"
#include "reshard/format/paddle/names.h"

namespace reshard::paddle {
namespace {

constexpr std::string_view kName = "paddle";

/// What follows PROTO: EMPTY_DICT, from protocol 4 on behind the head of a frame.
bool BeginsWithDict(ByteSpan bytes) {
  constexpr std::size_t kFrameHead = 9;
  if (bytes.size() < 3 || bytes[0] != std::byte{0x80} || bytes[1] < std::byte{2} ||
      bytes[1] > std::byte{5}) {
    return false;
  }
  const std::size_t at = bytes[2] == std::byte{0x95} ? 2 + kFrameHead : 2;
  return at < bytes.size() && bytes[at] == std::byte{'}'};
}

class PaddleFormat final : public ForeignFormat {
 public:
  std::string_view name() const override { return kName; }

  std::vector<ForeignRef> Find(std::span<const std::string> names) const override;
  Result<std::unique_ptr<ForeignMetadata>> ReadMetadata(
      const ForeignRef& ref, std::span<ByteSource* const> sources) const override;
  bool IsDataFileName(const ForeignRef& ref, std::string_view name) const override;
  bool LooksLikeFile(std::string_view name, ByteSpan first_bytes) const override;
  Result<Bytes> Examine(std::string_view name, ByteSource& file, ByteSpan request) const override;
  Result<Assembled> Assemble(const ForeignRef& ref, const ForeignMetadata& metadata,
                             std::span<const ExaminedFile> files) const override;
};

std::vector<ForeignRef> PaddleFormat::Find(std::span<const std::string> names) const {
  std::vector<ForeignRef> found;
  for (const std::string& text : names) {
    const std::optional<Name> parsed = ParseName(text);
    if (parsed && parsed->kind == NameKind::kMetadata) {
      found.push_back({std::string(kName), text, parsed->unique_id});
    }
  }
  std::sort(found.begin(), found.end(),
            [](const ForeignRef& a, const ForeignRef& b) { return a.unique_id < b.unique_id; });
  return found;
}

Result<std::unique_ptr<ForeignMetadata>> PaddleFormat::ReadMetadata(
    const ForeignRef& ref, std::span<ByteSource* const> sources) const {
  if (!ref.metadata_name.ends_with(".metadata")) {
    return std::unique_ptr<ForeignMetadata>(std::make_unique<PaddleMetadata>(ref.metadata_name));
  }
  RESHARD_TRY_ASSIGN(Metadata metadata, DecodeMetadata(*sources[0]));
  return std::unique_ptr<ForeignMetadata>(std::make_unique<PaddleMetadata>(std::move(metadata)));
}

bool PaddleFormat::IsDataFileName(const ForeignRef& ref, std::string_view name) const {
  const std::optional<Name> parsed = ParseName(name);
  return parsed && parsed->kind == NameKind::kData && parsed->unique_id == ref.unique_id;
}

bool PaddleFormat::LooksLikeFile(std::string_view name, ByteSpan first_bytes) const {
  // A rank's part of a distributed checkpoint is no checkpoint: its metadata says what is missing.
  if (const std::optional<Name> parsed = ParseName(name);
      parsed && parsed->kind == NameKind::kData) {
    return false;
  }
  const bool named = name.ends_with(".pdparams") || name.ends_with(".pdopt");
  const bool pickle = first_bytes.size() >= 2 && first_bytes[0] == std::byte{0x80} &&
                      first_bytes[1] >= std::byte{2} && first_bytes[1] <= std::byte{5};
  return (named && pickle) || BeginsWithDict(first_bytes);
}

Result<Bytes> PaddleFormat::Examine(std::string_view /*name*/, ByteSource& file,
                                    ByteSpan /*request*/) const {
  RESHARD_TRY_ASSIGN(const DataFile found, ReadDataFile(file));
  return EncodeDataFile(found);
}

Result<Assembled> PaddleFormat::Assemble(const ForeignRef& ref, const ForeignMetadata& metadata,
                                         std::span<const ExaminedFile> files) const {
  const auto& own = dynamic_cast<const PaddleMetadata&>(metadata);
  return own.single() ? AssembleSingle(ref, own, files) : AssembleDistributed(ref, own, files);
}

}  // namespace

const ForeignFormat& Format() {
  static const PaddleFormat format;
  return format;
}

}  // namespace reshard::paddle
