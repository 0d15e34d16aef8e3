#include "reshard/engine/data_file_opener.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "reshard/codec/crc64.h"
#include "reshard/engine/snapshot.h"
#include "reshard/format/native/data_file.h"
#include "reshard/format/paddle/data_file.h"
#include "reshard/format/torch/zstd_records.h"

namespace reshard {
namespace {

/// A file whose bytes are decoded as they are read.
class DecodedObject final : public ReadableObject {
 public:
  static Result<std::unique_ptr<ReadableObject>> Open(std::unique_ptr<ReadableObject> file,
                                                      const FileEntry& entry) {
    auto out = std::make_unique<DecodedObject>(std::move(file));
    if (entry.encoding == FileEncoding::kPickleText) {
      RESHARD_TRY_ASSIGN(out->decoded_, paddle::DecodePickleText(*out->file_));
    } else {
      RESHARD_TRY_ASSIGN(out->decoded_, torch::ZstdRecords::Open(*out->file_, entry.size));
    }
    return std::unique_ptr<ReadableObject>(std::move(out));
  }

  explicit DecodedObject(std::unique_ptr<ReadableObject> file) : file_(std::move(file)) {}

  const std::string& name() const override { return file_->name(); }

  std::uint64_t size() const override { return decoded_->size(); }

  std::int64_t mtime_ns() const override { return file_->mtime_ns(); }

  Status ReadAt(std::uint64_t offset, MutableByteSpan out) override {
    return decoded_->ReadAt(offset, out);
  }

 private:
  std::unique_ptr<ReadableObject> file_;
  std::unique_ptr<ByteSource> decoded_;  // reads from file_
};

Status CheckHead(ReadableObject& object, const FileEntry& file, std::string_view place) {
  std::array<std::byte, native::kHeadBytes> head;
  const std::size_t size = std::min<std::uint64_t>(head.size(), file.size);
  RESHARD_TRY(object.ReadAt(0, MutableByteSpan(head).first(size)));
  if (Crc64(ByteSpan(head).first(size)) != file.head_checksum) {
    return MakeError(
        ErrorCode::kCorruption, "FILE_HEAD",
        fmt::format("{}: the first {} bytes are not those that the catalog records; it is "
                    "damaged, or the file of another save: load an older snapshot, or restore it "
                    "from a copy",
                    place, size));
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<ReadableObject>> OpenDataFile(Storage& storage, const Catalog& catalog,
                                                     std::uint32_t file) {
  const FileEntry& entry = catalog.files()[file];
  const bool foreign = catalog.info().kind == CatalogKind::kIndex;
  const std::string place = PlaceOf(storage, entry.name);
  Result<std::unique_ptr<ReadableObject>> opened =
      foreign ? storage.OpenForeign(entry.name) : storage.Open(entry.name);
  if (!opened.ok() && opened.error().code == ErrorCode::kNotFound) {
    opened.error().message += "; load another snapshot, or restore it from a copy";
  }
  RESHARD_TRY_ASSIGN(std::unique_ptr<ReadableObject> object, std::move(opened));
  if (entry.encoding != FileEncoding::kRaw) {
    RESHARD_TRY_ASSIGN(object, DecodedObject::Open(std::move(object), entry));
  }
  if (object->size() != entry.size) {
    return MakeError(
        ErrorCode::kCorruption, "FILE_SIZE",
        fmt::format("{}: the file has {} bytes, the catalog says {}; it is truncated, {}", place,
                    object->size(), entry.size,
                    foreign ? "or was written again after it was indexed: then `reshard index` "
                              "takes it anew"
                            : "or another file of that name: load an older snapshot, or restore "
                              "it from a copy"));
  }
  if (!foreign) {
    RESHARD_TRY(CheckHead(*object, entry, place));
  }
  return object;
}

std::string_view DamageAdvice(const Catalog& catalog) {
  return catalog.info().kind == CatalogKind::kIndex
             ? "the file was changed after it was indexed, or is damaged: if it was written again "
               "on purpose, run `reshard index`, else restore it from a copy"
             : "the file is damaged: load an older snapshot, or restore it from a copy";
}

}  // namespace reshard
