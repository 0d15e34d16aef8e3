#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>

#include "reshard/base/checked.h"
#include "reshard/catalog/tiling.h"
#include "reshard/format/safetensors/assemble_internal.h"
#include "reshard/format/safetensors/data_file.h"
#include "reshard/format/safetensors/format.h"
#include "reshard/format/safetensors/header.h"
#include "reshard/format/safetensors/names.h"

namespace reshard::safetensors {
namespace {

constexpr std::size_t kMostNamed = 3;

/// A tensor of one file.
struct Piece {
  const StoredTensor* tensor = nullptr;
  std::uint32_t file = 0;
};

std::string FewOf(const std::vector<std::string>& names) {
  const auto end = names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kMostNamed));
  return fmt::format("'{}'{}", fmt::join(names.begin(), end, "', '"),
                     names.size() > kMostNamed ? ", ..." : "");
}

/// Whether a catalog needs the file: nothing is read of one that has only tensors without elements.
bool HasElements(const DataFile& file) {
  return std::any_of(file.tensors.begin(), file.tensors.end(),
                     [](const StoredTensor& tensor) { return NumElements(tensor.shape) != 0; });
}

class Assembler {
 public:
  Assembler(const ForeignRef& ref, const SetMetadata& metadata,
            std::span<const ExaminedFile> examined)
      : metadata_(metadata), examined_(examined), builder_(InfoOf(ref)) {}

  Result<Assembled> Run() {
    RESHARD_TRY(DecodeFiles());
    CollectPieces();
    std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
      return std::tie(a.tensor->name, a.file) < std::tie(b.tensor->name, b.file);
    });
    for (std::size_t i = 0; i < pieces_.size();) {
      std::size_t end = i + 1;
      while (end < pieces_.size() && pieces_[end].tensor->name == pieces_[i].tensor->name) {
        ++end;
      }
      AddTensor(std::span(pieces_).subspan(i, end - i));
      i = end;
    }
    AddNotes();
    RESHARD_TRY_ASSIGN(Catalog catalog, std::move(builder_).Build());
    return Assembled{std::move(catalog), std::move(faults_), std::move(notes_)};
  }

 private:
  static CatalogInfo InfoOf(const ForeignRef& ref) {
    CatalogInfo info;
    info.kind = CatalogKind::kIndex;
    info.format = ref.format;
    info.unique_id = ref.unique_id;
    return info;
  }

  const std::string& FileName(std::size_t file) const { return metadata_.files()[file]; }

  Status DecodeFiles();
  void CollectPieces();
  void CollectIndexed();
  void AddTensor(std::span<const Piece> pieces);
  Status PlaceTensor(std::span<const Piece> pieces);
  void AddNotes();

  const SetMetadata& metadata_;
  std::span<const ExaminedFile> examined_;
  CatalogBuilder builder_;
  std::vector<DataFile> files_;
  std::vector<bool> readable_;
  std::vector<std::uint32_t> numbers_;  // in the catalog
  std::vector<Piece> pieces_;
  std::uint64_t bytes_ = 0;
  std::vector<std::string> unnamed_;  // tensors that the index does not name
  std::vector<ForeignFault> faults_;
  std::vector<std::string> notes_;
};

/// A file that cannot be read is a fault of the tensors that the index says are in it. Without an
/// index nobody knows what it holds, so that nothing is certain.
Status Assembler::DecodeFiles() {
  files_.resize(examined_.size());
  readable_.resize(examined_.size());
  numbers_.resize(examined_.size());
  for (std::size_t i = 0; i < examined_.size(); ++i) {
    FileEntry entry;
    entry.name = FileName(i);
    entry.rank = 0;
    entry.size = examined_[i].size;
    entry.mtime_ns = examined_[i].mtime_ns;
    entry.has_blocks = false;
    if (examined_[i].found.ok()) {
      RESHARD_TRY_ASSIGN(files_[i], DecodeDataFile(*examined_[i].found));
      const std::optional<PartName> part = ParsePartName(entry.name);
      const std::optional<std::uint64_t> shard = part ? ShardOf(*part) : std::nullopt;
      entry.rank = shard ? *shard - 1 : 0;
      readable_[i] = true;
      if (HasElements(files_[i])) {
        numbers_[i] = builder_.AddFile(std::move(entry), {});
      }
      continue;
    }
    if (metadata_.index() == nullptr) {
      return tl::unexpected<Error>(examined_[i].found.error());
    }
    faults_.push_back({examined_[i].found.error(), FileName(i), {}});
  }
  return OkStatus();
}

void Assembler::CollectPieces() {
  if (metadata_.index() != nullptr) {
    CollectIndexed();
    return;
  }
  for (std::uint32_t i = 0; i < files_.size(); ++i) {
    for (const StoredTensor& tensor : files_[i].tensors) {
      pieces_.push_back({&tensor, i});
    }
  }
}

/// Each tensor from the file that the index names.
void Assembler::CollectIndexed() {
  const SetIndex& index = *metadata_.index();
  std::vector<bool> found(index.tensors.size());
  for (std::uint32_t i = 0; i < files_.size(); ++i) {
    for (const StoredTensor& tensor : files_[i].tensors) {
      const IndexEntry* entry = index.Find(tensor.name);
      if (entry == nullptr) {
        unnamed_.push_back(tensor.name);
      } else if (entry->file == i) {
        found[static_cast<std::size_t>(entry - index.tensors.data())] = true;
        pieces_.push_back({&tensor, i});
      }
    }
  }
  std::vector<std::vector<std::string>> missing(files_.size());
  for (std::size_t t = 0; t < found.size(); ++t) {
    if (!found[t]) {
      missing[index.tensors[t].file].push_back(index.tensors[t].name);
    }
  }
  for (ForeignFault& fault : faults_) {
    const auto at = std::lower_bound(index.files.begin(), index.files.end(), fault.file);
    fault.keys = std::move(missing[static_cast<std::size_t>(at - index.files.begin())]);
  }
  for (std::size_t i = 0; i < files_.size(); ++i) {
    if (readable_[i] && !missing[i].empty()) {
      Error error{ErrorCode::kCorruption, std::string(kMissingTensor),
                  fmt::format("{}: the index says that it holds {}, and it does not", FileName(i),
                              FewOf(missing[i])),
                  false, false};
      faults_.push_back({std::move(error), FileName(i), std::move(missing[i])});
    }
  }
}

void Assembler::AddTensor(std::span<const Piece> pieces) {
  const std::string& name = pieces[0].tensor->name;
  if (Status status = PlaceTensor(pieces); !status.ok()) {
    status.error().code = ErrorCode::kCorruption;
    faults_.push_back({status.error().WithContext(fmt::format("tensor '{}'", name)),
                       pieces.size() == 1 ? FileName(pieces[0].file) : std::string(),
                       {name}});
  }
}

/// Its pieces must tile the smallest shape that holds them: the format does not store the shape.
Status Assembler::PlaceTensor(std::span<const Piece> pieces) {
  const StoredTensor& first = *pieces[0].tensor;
  Shape shape(first.shape.size());
  std::vector<Box> boxes;
  boxes.reserve(pieces.size());
  if (pieces.size() > 1 && !metadata_.sharded()) {
    return MakeError(
        ErrorCode::kCorruption, kDuplicateName,
        fmt::format("{} and {} both hold it", FileName(pieces[0].file), FileName(pieces[1].file)));
  }
  for (const Piece& piece : pieces) {
    const StoredTensor& stored = *piece.tensor;
    if (stored.dtype != first.dtype || stored.shape.size() != first.shape.size()) {
      return MakeError(ErrorCode::kCorruption, kBadMetadata,
                       fmt::format("{} and {} disagree on its dtype or axes",
                                   FileName(pieces[0].file), FileName(piece.file)));
    }
    Box box{stored.place.value_or(Index(stored.shape.size())), stored.shape};
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      const auto end = CheckedAdd(box.offset[axis], box.extent[axis]);
      if (!end) {
        return MakeError(ErrorCode::kCorruption, kBadMetadata, "its place is outside any tensor");
      }
      shape[axis] = std::max(shape[axis], *end);
    }
    boxes.push_back(std::move(box));
  }
  RESHARD_TRY(CheckShape(shape, first.dtype));
  for (const Box& box : boxes) {
    RESHARD_TRY(CheckBox(box, shape, first.dtype));
  }
  const std::vector<BoxView> views(boxes.begin(), boxes.end());
  if (!TilesExactly(WholeBox(shape), views)) {
    const TilingFault fault = FindTilingFault(views);
    return fault.overlap
               ? MakeError(ErrorCode::kCorruption, kOverlap,
                           fmt::format("{} and {} hold the same part of it",
                                       FileName(pieces[fault.first].file),
                                       FileName(pieces[fault.second].file)))
               : MakeError(ErrorCode::kCorruption, "COVERAGE",
                           fmt::format("{} file(s) hold parts of it, but not all of {}: is a file "
                                       "missing?",
                                       pieces.size(), ToString(shape)));
  }
  builder_.AddTensor(first.name, Path{PathPart(first.name)}, first.dtype, shape, std::nullopt);
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    if (!IsEmpty(boxes[i])) {
      builder_.AddChunk(boxes[i], numbers_[pieces[i].file], pieces[i].tensor->offset);
    }
  }
  bytes_ += NumBytes(shape, first.dtype);
  return OkStatus();
}

void Assembler::AddNotes() {
  if (metadata_.sharded() && metadata_.index() == nullptr) {
    notes_.push_back(fmt::format(
        "written by {} rank(s) as far as the files tell: PyTorch's sharded safetensors record "
        "neither how many there were nor the shapes of the whole tensors",
        files_.size()));
  }
  const bool alone = files_.size() == 1 && metadata_.index() == nullptr;
  if (const auto part = alone ? ParsePartName(FileName(0)) : std::nullopt;
      part && part->parts > 1) {
    notes_.push_back(fmt::format("{} is one of {} files: the tensors of the others are not here",
                                 FileName(0), part->parts));
  }
  if (!unnamed_.empty()) {
    notes_.push_back(fmt::format("{} tensor(s) that the index does not name are left out: {}",
                                 unnamed_.size(), FewOf(unnamed_)));
  }
  if (const SetIndex* index = metadata_.index();
      index != nullptr && faults_.empty() && index->total_size && *index->total_size != bytes_) {
    notes_.push_back(fmt::format("the index gives a total size of {} bytes, the tensors have {}",
                                 *index->total_size, bytes_));
  }
  std::vector<std::string> keys;
  for (const DataFile& file : files_) {
    keys.insert(keys.end(), file.metadata_keys.begin(), file.metadata_keys.end());
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  if (!keys.empty()) {
    notes_.push_back(
        fmt::format("texts in __metadata__ are no part of the checkpoint: {}", FewOf(keys)));
  }
}

}  // namespace

Result<Assembled> AssembleSet(const ForeignRef& ref, const SetMetadata& metadata,
                              std::span<const ExaminedFile> files) {
  return Assembler(ref, metadata, files).Run();
}

}  // namespace reshard::safetensors
