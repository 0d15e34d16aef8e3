// Distributed checkpoints: every piece of the metadata is looked up in its data file.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "reshard/catalog/cbor.h"
#include "reshard/format/paddle/assemble_internal.h"
#include "reshard/format/text_index_internal.h"

namespace reshard::paddle {
namespace {

constexpr std::size_t kShownKeys = 5;
constexpr std::uint32_t kNoFile = 0xFFFFFFFF;

/// A data file that could be examined.
struct Known {
  DataFile file;
  std::uint32_t number = kNoFile;  ///< In the catalog.
  TextIndex arrays;
  TextIndex splits;
  std::vector<bool> used;  ///< Arrays that some piece names.
};

std::string_view KeyOf(const StoredArray& array) {
  return array.path.size() == 1 && std::holds_alternative<std::string>(array.path[0])
             ? std::string_view(std::get<std::string>(array.path[0]))
             : std::string_view();
}

/// What the metadata says a tensor is, or what its pieces say.
Shape ShapeOf(const MetadataTensor& tensor) {
  if (tensor.shape) {
    return *tensor.shape;
  }
  Shape shape;
  for (const Piece& piece : tensor.pieces) {
    shape.resize(std::max(shape.size(), piece.local_shape.size()));
    for (std::size_t a = 0; a < piece.local_shape.size(); ++a) {
      shape[a] = std::max(shape[a], piece.global_offset[a] + piece.local_shape[a]);
    }
  }
  return shape;
}

/// Float8 stands in files as int8; a uint16 there is bfloat16 already.
bool Stands(DType in_metadata, DType in_file) {
  const bool float8 = in_metadata == DType::kFloat8E4m3fn || in_metadata == DType::kFloat8E5m2;
  return in_metadata == in_file || (float8 && in_file == DType::kInt8);
}

class Assembler {
 public:
  Assembler(const ForeignRef& ref, const PaddleMetadata& metadata,
            std::span<const ExaminedFile> files)
      : ref_(ref), own_(metadata), examined_(files), metadata_(metadata.metadata()) {}

  Result<Assembled> Run();

 private:
  void OpenFiles();
  CatalogInfo Info() const;
  void FindPaths();
  void AddTensor(const MetadataTensor& tensor);
  std::vector<std::vector<const Piece*>> Copies(const MetadataTensor& tensor) const;
  Status AddPiece(const MetadataTensor& tensor, const Piece& piece, Chunks& chunks);
  Result<std::vector<StoredRun>> Runs(const MetadataTensor& tensor, const Piece& piece,
                                      Known& known);
  Result<DType> TypeOf(const MetadataTensor& tensor, const StoredArray& array) const;
  Result<std::vector<StoredRun>> SplitRuns(const MetadataTensor& tensor, const Piece& piece,
                                           Known& known, const SplitArray& split);
  tl::unexpected<Error> Bad(const MetadataTensor& tensor, const Piece& piece,
                            std::string_view what) const;
  void AddFault(const Error& error, const std::string& file, const std::string& key);
  void AddNameTable(CatalogBuilder& builder);
  void AddNotes();

  const ForeignRef& ref_;
  const PaddleMetadata& own_;
  std::span<const ExaminedFile> examined_;
  const Metadata& metadata_;
  std::vector<std::optional<Known>> known_;  // by place in files()
  std::vector<FileEntry> entries_;
  TextIndex path_of_;
  std::optional<CatalogBuilder> builder_;
  std::vector<ForeignFault> faults_;
  std::vector<std::string> notes_;
  std::map<std::string, std::size_t> fault_of_file_;
  std::optional<DType> dtype_;  // of the current tensor
  std::size_t odd_paths_ = 0;
};

void Assembler::OpenFiles() {
  known_.resize(examined_.size());
  for (std::size_t i = 0; i < examined_.size(); ++i) {
    if (!examined_[i].found.ok()) {
      continue;
    }
    Result<DataFile> file = DecodeDataFile(*examined_[i].found);
    if (!file.ok()) {
      continue;
    }
    Known& known = known_[i].emplace();
    known.file = std::move(*file);
    known.number = static_cast<std::uint32_t>(entries_.size());
    known.used.resize(known.file.arrays.size());
    for (std::size_t a = 0; a < known.file.arrays.size(); ++a) {
      known.arrays.Add(KeyOf(known.file.arrays[a]), static_cast<std::uint32_t>(a));
    }
    for (std::size_t s = 0; s < known.file.splits.size(); ++s) {
      known.splits.Add(known.file.splits[s].key, static_cast<std::uint32_t>(s));
    }
    known.arrays.Sort();
    known.splits.Sort();
    entries_.push_back(MakeFileEntry(own_.files()[i], examined_[i], known.file));
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

tl::unexpected<Error> Assembler::Bad(const MetadataTensor& tensor, const Piece& piece,
                                     std::string_view what) const {
  return MakeError(
      ErrorCode::kCorruption, kBadArray,
      fmt::format("file '{}', tensor '{}', piece {}: {}", metadata_.files[piece.file], tensor.key,
                  ToString(Box{piece.global_offset, piece.local_shape}), what));
}

Result<DType> Assembler::TypeOf(const MetadataTensor& tensor, const StoredArray& array) const {
  const DType expected = tensor.dtype.value_or(dtype_.value_or(array.dtype));
  if (!Stands(expected, array.dtype)) {
    return MakeError(ErrorCode::kCorruption, kBadArray,
                     fmt::format("tensor '{}' is {}, but the array in the file is {}", tensor.key,
                                 reshard::Info(expected).name, reshard::Info(array.dtype).name));
  }
  return expected;
}

/// Parts of a split tensor: each continues the row-major block where the one before ended.
Result<std::vector<StoredRun>> Assembler::SplitRuns(const MetadataTensor& tensor,
                                                    const Piece& piece, Known& known,
                                                    const SplitArray& split) {
  const FlatRange range = piece.flat.value_or(FlatRange{0, NumElements(piece.local_shape)});
  std::vector<StoredRun> runs;
  std::uint64_t at = range.begin;
  for (const std::string& name : split.parts) {
    const std::optional<std::uint32_t> found = known.arrays.Find(name);
    if (!found) {
      return Bad(tensor, piece, fmt::format("its part '{}' is not in the file", name));
    }
    const StoredArray& part = known.file.arrays[*found];
    RESHARD_TRY_ASSIGN(dtype_, TypeOf(tensor, part));
    known.used[*found] = true;
    const std::uint64_t count = NumElements(part.shape);
    if (part.shape.size() > 1 || count > range.end - at) {
      return Bad(tensor, piece,
                 fmt::format("its part '{}' of shape {} does not fit", name, ToString(part.shape)));
    }
    runs.push_back({at, at + count, part.bytes.offset, ChunkOrder::kRowMajor, false});
    at += count;
  }
  if (at != range.end) {
    return Bad(tensor, piece,
               fmt::format("its parts have {} elements, not {}", at - range.begin,
                           range.end - range.begin));
  }
  return runs;
}

Result<std::vector<StoredRun>> Assembler::Runs(const MetadataTensor& tensor, const Piece& piece,
                                               Known& known) {
  const std::optional<std::uint32_t> found = known.arrays.Find(tensor.key);
  if (!found) {
    const std::optional<std::uint32_t> split = known.splits.Find(tensor.key);
    return split ? SplitRuns(tensor, piece, known, known.file.splits[*split])
                 : Bad(tensor, piece, "the file holds no array of this name");
  }
  const StoredArray& array = known.file.arrays[*found];
  known.used[*found] = true;
  RESHARD_TRY_ASSIGN(dtype_, TypeOf(tensor, array));
  const Shape expected =
      piece.flat ? Shape{piece.flat->end - piece.flat->begin} : piece.local_shape;
  if (array.shape != expected) {
    return Bad(tensor, piece,
               fmt::format("the array in the file has shape {}, not {}", ToString(array.shape),
                           ToString(expected)));
  }
  const FlatRange range = piece.flat.value_or(FlatRange{});
  return std::vector<StoredRun>{
      {range.begin, range.end, array.bytes.offset, array.order, !piece.flat}};
}

Status Assembler::AddPiece(const MetadataTensor& tensor, const Piece& piece, Chunks& chunks) {
  const std::uint32_t place = own_.place(piece.file);
  if (!known_[place]) {
    const Error error = examined_[place].found.ok()
                            ? Error{ErrorCode::kInternal, "BAD_MESSAGE",
                                    "what was found in the file does not decode", false, false}
                            : examined_[place].found.error();
    return tl::unexpected<Error>(error);
  }
  Known& known = *known_[place];
  RESHARD_TRY_ASSIGN(const std::vector<StoredRun> runs, Runs(tensor, piece, known));
  for (const StoredRun& run : runs) {
    RESHARD_TRY(chunks.Add(piece.global_offset, piece.local_shape, *dtype_, run, known.number));
  }
  return OkStatus();
}

/// The pieces, each with its replicas, the main copy first.
std::vector<std::vector<const Piece*>> Assembler::Copies(const MetadataTensor& tensor) const {
  std::vector<const Piece*> sorted;
  bool replicas = false;
  for (const Piece& piece : tensor.pieces) {
    sorted.push_back(&piece);
    replicas = replicas || piece.replica != 0;
  }
  std::vector<std::vector<const Piece*>> copies;
  using Place = std::tuple<const Shape&, const Shape&, bool, std::uint64_t, std::uint64_t>;
  const auto place = [](const Piece& piece) {
    const FlatRange flat = piece.flat.value_or(FlatRange{});
    return Place(piece.global_offset, piece.local_shape, piece.flat.has_value(), flat.begin,
                 flat.end);
  };
  if (replicas) {
    std::stable_sort(sorted.begin(), sorted.end(), [&](const Piece* a, const Piece* b) {
      const Place left = place(*a);
      const Place right = place(*b);
      return left != right ? left < right : a->replica < b->replica;
    });
  }
  for (const Piece* piece : sorted) {
    const bool copy = replicas && !copies.empty() && piece->replica != 0 &&
                      place(*copies.back().front()) == place(*piece);
    if (copy) {
      copies.back().push_back(piece);
    } else {
      copies.push_back({piece});
    }
  }
  return copies;
}

void Assembler::AddFault(const Error& error, const std::string& file, const std::string& key) {
  const auto [found, is_new] =
      fault_of_file_.try_emplace(file + '\0' + error.message, faults_.size());
  if (is_new) {
    faults_.push_back({error, file, {}});
  }
  faults_[found->second].keys.push_back(key);
}

void Assembler::AddTensor(const MetadataTensor& tensor) {
  dtype_ = tensor.dtype;
  Chunks chunks;
  for (const std::vector<const Piece*>& copies : Copies(tensor)) {
    Status status = AddPiece(tensor, *copies[0], chunks);
    for (std::size_t i = 1; i < copies.size(); ++i) {
      Chunks unused;
      const Status other = AddPiece(tensor, *copies[i], status.ok() ? unused : chunks);
      status = status.ok() || other.ok() ? OkStatus() : std::move(status);
    }
    if (!status.ok()) {
      AddFault(status.error(), metadata_.files[copies[0]->file], tensor.key);
      return;
    }
  }
  if (tensor.pieces.empty()) {
    AddFault(Error{ErrorCode::kCorruption, "COVERAGE", "no data file is named for the tensor",
                   false, false},
             "", tensor.key);
    return;
  }
  Path path{PathPart(tensor.key)};
  if (const std::optional<std::uint32_t> mapped = path_of_.Find(tensor.key)) {
    const Path& other = metadata_.flat_mapping[*mapped].second;
    const bool fits = FlatKey(other) == tensor.key;
    if (fits) {
      path = other;
    }
    odd_paths_ += fits ? 0 : 1;
  }
  const Status status = AddTensorTo(*builder_, tensor.key, path, *dtype_, ShapeOf(tensor), chunks);
  if (!status.ok()) {
    AddFault(status.error().WithContext(fmt::format("tensor '{}'", tensor.key)), "", tensor.key);
  }
}

void Assembler::AddNameTable(CatalogBuilder& builder) {
  std::map<std::string, Value> names;
  for (const std::optional<Known>& known : known_) {
    const Value::Map* table =
        known && known->file.name_table ? known->file.name_table->get_if<Value::Map>() : nullptr;
    for (std::size_t i = 0; table != nullptr && i < table->size(); ++i) {
      if (const auto* key = std::get_if<std::string>(&(*table)[i].first)) {
        names.emplace(*key, (*table)[i].second);
      }
    }
  }
  if (names.empty()) {
    return;
  }
  Value::Map all;
  for (auto& [key, value] : names) {
    all.emplace_back(key, std::move(value));
  }
  builder.AddObject(kNameTableKey, Path{PathPart(std::string(kNameTableKey))}, -1,
                    EncodeObject(Value(std::move(all))));
}

void Assembler::AddNotes() {
  for (std::size_t i = 0; i < known_.size(); ++i) {
    std::vector<std::string> keys;
    for (std::size_t a = 0; known_[i] && a < known_[i]->used.size(); ++a) {
      if (!known_[i]->used[a]) {
        keys.push_back(fmt::format("'{}'", FlatKey(known_[i]->file.arrays[a].path)));
      }
    }
    if (!keys.empty()) {
      const std::size_t shown = std::min(keys.size(), kShownKeys);
      notes_.push_back(fmt::format(
          "{}: the metadata does not name {} of its arrays: {}{}", own_.files()[i], keys.size(),
          fmt::join(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
          shown < keys.size() ? ", ..." : ""));
    }
  }
  TextIndex tensors;
  for (const MetadataTensor& tensor : metadata_.tensors) {
    tensors.Add(tensor.key, 0);
  }
  tensors.Sort();
  for (const auto& [key, path] : metadata_.flat_mapping) {
    if (!tensors.Find(key)) {
      notes_.push_back(
          fmt::format("'{}' is in flat_mapping, but nothing of it is stored (Paddle leaves empty "
                      "tensors out)",
                      key));
    }
  }
  if (odd_paths_ > 0) {
    notes_.push_back(fmt::format("{} paths of flat_mapping do not give their keys and are left out",
                                 odd_paths_));
  }
}

Result<Assembled> Assembler::Run() {
  OpenFiles();
  builder_.emplace(Info());
  for (const FileEntry& entry : entries_) {
    builder_->AddFile(entry, {});
  }
  for (std::size_t i = 0; i < metadata_.flat_mapping.size(); ++i) {
    path_of_.Add(metadata_.flat_mapping[i].first, static_cast<std::uint32_t>(i));
  }
  path_of_.Sort();
  for (const MetadataTensor& tensor : metadata_.tensors) {
    AddTensor(tensor);
  }
  AddNameTable(*builder_);
  AddNotes();
  RESHARD_TRY_ASSIGN(Catalog catalog, std::move(*builder_).Build());
  return Assembled{std::move(catalog), std::move(faults_), std::move(notes_)};
}

}  // namespace

Result<Assembled> AssembleDistributed(const ForeignRef& ref, const PaddleMetadata& metadata,
                                      std::span<const ExaminedFile> files) {
  return Assembler(ref, metadata, files).Run();
}

}  // namespace reshard::paddle
