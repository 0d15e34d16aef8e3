// From DCP's metadata and examined data files to a catalog.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "reshard/format/name_parts_internal.h"
#include "reshard/format/torch/assemble_internal.h"

namespace reshard::torch {
namespace {

constexpr std::uint64_t kMostExtraParts = std::uint64_t{1} << 20;

/// Of "__{rank}_{n}.distcp", with whatever in front; else 0.
std::uint64_t RankOf(std::string_view name) {
  const std::size_t at = name.find("__");
  std::uint64_t rank = 0;
  if (at == std::string_view::npos) {
    return 0;
  }
  name.remove_prefix(at + 2);
  return TakeNumber(name, rank) && name.starts_with('_') ? rank : 0;
}

Error Damage(std::string_view reason, std::string message) {
  return {ErrorCode::kCorruption, std::string(reason), std::move(message), false, false};
}

/// A dense part of a tensor and its file.
struct PlacedPart {
  DensePart part;
  std::uint32_t file = 0;
};

class Assembler {
 public:
  Assembler(const ForeignRef& ref, const DcpMetadata& metadata, std::span<const ExaminedFile> files)
      : ref_(ref), own_(metadata), examined_(files), metadata_(metadata.metadata()) {}

  Result<Assembled> Run();

 private:
  void OpenFiles();
  CatalogInfo Info() const;
  void AddTensor(const MetadataTensor& tensor);
  Result<std::vector<PlacedPart>> PartsOf(const MetadataTensor& tensor);
  Status CheckParts(const MetadataTensor& tensor, std::span<const PlacedPart> parts) const;
  void AddValue(const MetadataBytes& value);
  const FoundRecord* RecordAt(const RecordPlace& place) const;
  void AddFault(const Error& error, const std::string& file, const std::string& key);
  void AddMissing(std::uint32_t place, const std::string& key);

  const ForeignRef& ref_;
  const DcpMetadata& own_;
  std::span<const ExaminedFile> examined_;
  const Metadata& metadata_;
  std::vector<std::optional<FoundFile>> found_;  // by place in files()
  std::vector<std::uint32_t> numbers_;           // in the catalog
  std::vector<FileEntry> entries_;
  std::optional<CatalogBuilder> builder_;
  std::vector<ForeignFault> faults_;
  std::map<std::string, std::size_t> fault_of_;
  std::uint64_t extra_parts_ = kMostExtraParts;
  std::uint32_t bad_place_ = 0;  // file of the last error of PartsOf
};

void Assembler::OpenFiles() {
  found_.resize(examined_.size());
  numbers_.resize(examined_.size());
  for (std::size_t i = 0; i < examined_.size(); ++i) {
    Result<FoundFile> found =
        examined_[i].found.ok() ? DecodeFound(*examined_[i].found) : FoundFile();
    if (!examined_[i].found.ok() || !found.ok()) {
      continue;
    }
    numbers_[i] = static_cast<std::uint32_t>(entries_.size());
    FileEntry entry;
    entry.name = own_.files()[i];
    entry.rank = RankOf(entry.name);
    entry.size = found->decoded_bytes != 0 ? found->decoded_bytes : examined_[i].size;
    entry.mtime_ns = examined_[i].mtime_ns;
    entry.has_blocks = false;
    entry.encoding =
        found->decoded_bytes != 0 ? FileEncoding::kZstdRecords : FileEncoding::kRaw;
    entries_.push_back(std::move(entry));
    found_[i] = std::move(*found);
  }
}

CatalogInfo Assembler::Info() const {
  std::set<std::uint64_t> ranks;
  for (const FileEntry& entry : entries_) {
    ranks.insert(entry.rank);
  }
  CatalogInfo info;
  info.kind = CatalogKind::kIndex;
  info.format = ref_.format;
  info.unique_id = ref_.unique_id;
  info.world_size = std::max<std::uint64_t>(1, ranks.size());
  return info;
}

/// Null when its file could not be examined.
const FoundRecord* Assembler::RecordAt(const RecordPlace& place) const {
  const std::optional<FoundFile>& file = found_[own_.place(place.file)];
  const std::size_t number = own_.RecordNumber(place);
  return file && number < file->records.size() ? &file->records[number] : nullptr;
}

void Assembler::AddFault(const Error& error, const std::string& file, const std::string& key) {
  const auto [found, is_new] = fault_of_.try_emplace(file + '\0' + error.message, faults_.size());
  if (is_new) {
    faults_.push_back({error, file, {}});
  }
  faults_[found->second].keys.push_back(key);
}

void Assembler::AddMissing(std::uint32_t place, const std::string& key) {
  const Error error = examined_[place].found.ok()
                          ? Error{ErrorCode::kInternal, "BAD_MESSAGE",
                                  "what was found in the file does not decode", false, false}
                          : examined_[place].found.error();
  AddFault(error, own_.files()[place], key);
}

Result<std::vector<PlacedPart>> Assembler::PartsOf(const MetadataTensor& tensor) {
  std::vector<PlacedPart> out;
  out.reserve(tensor.chunks.size());
  for (const MetadataChunk& chunk : tensor.chunks) {
    if (IsEmpty(chunk.box)) {
      continue;
    }
    bad_place_ = own_.place(chunk.place.file);
    const FoundRecord* record = RecordAt(chunk.place);
    if (record == nullptr) {
      return MakeError(ErrorCode::kInternal, "BAD_MESSAGE", "");  // AddMissing says what
    }
    if (const auto* error = std::get_if<Error>(record)) {
      return tl::unexpected<Error>(*error);
    }
    const auto* found = std::get_if<TensorRecord>(record);
    if (found == nullptr || found->dtype != tensor.dtype || found->shape != chunk.box.extent) {
      return MakeError(
          ErrorCode::kCorruption, kBadRecord,
          fmt::format("tensor '{}', chunk {}: its record at bytes [{}, {}) holds {}, the metadata "
                      "says {} {}",
                      tensor.key, ToString(chunk.box), chunk.place.bytes.offset,
                      chunk.place.bytes.end(),
                      found == nullptr ? "no tensor"
                                       : fmt::format("{} {}", reshard::Info(found->dtype).name,
                                                     ToString(found->shape)),
                      reshard::Info(tensor.dtype).name, ToString(chunk.box.extent)));
    }
    RESHARD_TRY_ASSIGN(std::vector<DensePart> parts,
                       StridedToChunks(chunk.box, found->stride, found->byte_offset, tensor.dtype,
                                       std::min(kMostParts, extra_parts_ + 1)));
    extra_parts_ -= parts.size() - 1;
    for (DensePart& part : parts) {
      out.push_back({std::move(part), numbers_[bad_place_]});
    }
  }
  return out;
}

/// What Catalog::Create would refuse for the whole checkpoint.
Status Assembler::CheckParts(const MetadataTensor& tensor,
                             std::span<const PlacedPart> parts) const {
  const std::uint64_t total = NumBytes(tensor.shape, tensor.dtype);
  std::uint64_t bytes = 0;
  for (const PlacedPart& placed : parts) {
    const std::uint64_t size = NumBytes(placed.part.box, tensor.dtype);
    const std::uint64_t file_size = entries_[placed.file].size;
    if (placed.part.byte_offset > file_size || size > file_size - placed.part.byte_offset) {
      return tl::unexpected<Error>(
          Damage(kBadRecord, fmt::format("tensor '{}' leaves its file", tensor.key)));
    }
    bytes += size;
    if (bytes > total) {
      break;
    }
  }
  if (bytes != total) {
    return tl::unexpected<Error>(Damage(
        "COVERAGE", fmt::format("tensor '{}': its chunks hold {}{} bytes, its shape {} needs {}",
                                tensor.key, bytes > total ? "more than " : "",
                                std::min(bytes, total), ToString(tensor.shape), total)));
  }
  return OkStatus();
}

void Assembler::AddTensor(const MetadataTensor& tensor) {
  for (const MetadataChunk& chunk : tensor.chunks) {
    if (!IsEmpty(chunk.box) && RecordAt(chunk.place) == nullptr) {
      AddMissing(own_.place(chunk.place.file), tensor.key);
      return;
    }
  }
  const Result<std::vector<PlacedPart>> parts = PartsOf(tensor);
  if (!parts.ok()) {
    AddFault(parts.error(), own_.files()[bad_place_], tensor.key);
    return;
  }
  if (const Status status = CheckParts(tensor, *parts); !status.ok()) {
    AddFault(status.error(), "", tensor.key);
    return;
  }
  builder_->AddTensor(tensor.key, tensor.path.value_or(Path{PathPart(tensor.key)}), tensor.dtype,
                      tensor.shape, std::nullopt);
  for (const PlacedPart& placed : *parts) {
    builder_->AddChunk(placed.part.box, placed.file, placed.part.byte_offset, placed.part.order);
  }
}

void Assembler::AddValue(const MetadataBytes& value) {
  const std::uint32_t place = own_.place(value.place.file);
  const FoundRecord* record = RecordAt(value.place);
  if (record == nullptr) {
    AddMissing(place, value.key);
  } else if (const auto* error = std::get_if<Error>(record)) {
    AddFault(*error, own_.files()[place], value.key);
  } else if (const auto* bytes = std::get_if<Bytes>(record)) {
    builder_->AddObject(value.key, value.path.value_or(Path{PathPart(value.key)}), -1, *bytes);
  } else {
    AddFault(Damage(kBadRecord, "a record that should be a value"), own_.files()[place],
             value.key);
  }
}

Result<Assembled> Assembler::Run() {
  OpenFiles();
  builder_.emplace(Info());
  for (const FileEntry& entry : entries_) {
    builder_->AddFile(entry, {});
  }
  for (const MetadataTensor& tensor : metadata_.tensors) {
    AddTensor(tensor);
  }
  for (const MetadataBytes& value : metadata_.bytes) {
    AddValue(value);
  }
  RESHARD_TRY_ASSIGN(Catalog catalog, std::move(*builder_).Build());
  return Assembled{std::move(catalog), std::move(faults_), {}};
}

}  // namespace

Result<Assembled> Assemble(const ForeignRef& ref, const DcpMetadata& metadata,
                           std::span<const ExaminedFile> files) {
  return Assembler(ref, metadata, files).Run();
}

}  // namespace reshard::torch
