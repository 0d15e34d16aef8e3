#include "reshard/format/torch/saved_format.h"

#include <map>
#include <memory>
#include <set>

#include "reshard/catalog/cbor.h"
#include "reshard/catalog/wire.h"
#include "reshard/format/native/catalog_codec.h"
#include "reshard/format/torch/saved_file.h"

namespace reshard::torch {
namespace {

constexpr std::string_view kName = "torch.save";

class SavedMetadata final : public ForeignMetadata {
 public:
  explicit SavedMetadata(std::string file) : files_{std::move(file)} {}

  std::span<const std::string> files() const override { return files_; }

 private:
  std::vector<std::string> files_;
};

class TorchSaveFormat final : public ForeignFormat {
 public:
  std::string_view name() const override { return kName; }

  // Told by content alone: any name is possible.
  std::vector<ForeignRef> Find(std::span<const std::string> /*names*/) const override { return {}; }

  Result<std::unique_ptr<ForeignMetadata>> ReadMetadata(
      const ForeignRef& ref, std::span<ByteSource* const> /*sources*/) const override {
    return std::unique_ptr<ForeignMetadata>(std::make_unique<SavedMetadata>(ref.metadata_name));
  }

  bool IsDataFileName(const ForeignRef& /*ref*/, std::string_view /*name*/) const override {
    return false;
  }

  bool LooksLikeFile(std::string_view /*name*/, ByteSpan first_bytes) const override {
    return LooksSaved(first_bytes);
  }

  Result<Bytes> Examine(std::string_view name, ByteSource& file, ByteSpan request) const override;
  Result<Assembled> Assemble(const ForeignRef& ref, const ForeignMetadata& metadata,
                             std::span<const ExaminedFile> files) const override;
};

Result<Catalog> MakeCatalog(const SavedFile& saved, std::string_view name, std::uint64_t size) {
  CatalogInfo info;
  info.kind = CatalogKind::kIndex;
  info.format = kName;
  CatalogBuilder builder(info);
  FileEntry entry;
  entry.name = std::string(name);
  entry.size = size;
  entry.has_blocks = false;
  const std::uint32_t file = builder.AddFile(std::move(entry), {});
  for (const SavedTensor& tensor : saved.tensors) {
    builder.AddTensor(FlatKey(tensor.path), tensor.path, tensor.dtype, tensor.shape, std::nullopt,
                      tensor.alias_of);
    for (const DensePart& part : tensor.parts) {
      builder.AddChunk(part.box, file, part.byte_offset, part.order);
    }
  }
  for (const auto& [path, value] : saved.objects) {
    builder.AddObject(FlatKey(path), path, -1, EncodeObject(value));
  }
  return std::move(builder).Build();
}

Result<Bytes> TorchSaveFormat::Examine(std::string_view name, ByteSource& file,
                                       ByteSpan /*request*/) const {
  RESHARD_TRY_ASSIGN(const SavedFile saved, ReadSavedFile(file));
  RESHARD_TRY_ASSIGN(const Catalog catalog, MakeCatalog(saved, name, file.size()));
  Bytes out;
  AppendTexts(out, saved.notes);
  AppendLittle(out, static_cast<std::uint32_t>(saved.faults.size()));
  for (const SavedFault& fault : saved.faults) {
    AppendLittle(out, static_cast<std::uint8_t>(fault.error.code));
    AppendTexts(out, std::vector<std::string>{fault.error.reason, fault.error.message, fault.key});
  }
  const Bytes encoded = native::EncodeCatalog(catalog);
  out.insert(out.end(), encoded.begin(), encoded.end());
  return out;
}

Result<Assembled> TorchSaveFormat::Assemble(const ForeignRef& /*ref*/,
                                            const ForeignMetadata& metadata,
                                            std::span<const ExaminedFile> files) const {
  if (!files[0].found.ok()) {
    return tl::unexpected<Error>(files[0].found.error());
  }
  WireReader reader(*files[0].found);
  std::vector<std::string> notes;
  std::uint32_t count = 0;
  if (!ReadTexts(reader, notes) || !reader.Read(count)) {
    return BadMessage("an examined file");
  }
  std::vector<ForeignFault> faults;
  for (std::uint32_t i = 0; i < count; ++i) {
    std::uint8_t code = 0;
    std::vector<std::string> texts;
    if (!reader.Read(code) || !ReadTexts(reader, texts) || texts.size() != 3) {
      return BadMessage("an examined file");
    }
    const Error error{static_cast<ErrorCode>(code), texts[0], texts[1], false, false};
    faults.push_back({error, metadata.files()[0], {texts[2]}});
  }
  ByteSpan encoded;
  reader.ReadBytes(reader.remaining(), encoded);
  RESHARD_TRY_ASSIGN(const Catalog catalog, native::DecodeCatalog(encoded));
  CatalogColumns columns = catalog.columns();
  columns.files[0].mtime_ns = files[0].mtime_ns;
  RESHARD_TRY_ASSIGN(Catalog out, Catalog::Create(std::move(columns)));
  return Assembled{std::move(out), std::move(faults), std::move(notes)};
}

}  // namespace

const ForeignFormat& SavedFormat() {
  static const TorchSaveFormat format;
  return format;
}

}  // namespace reshard::torch
