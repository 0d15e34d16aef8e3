// Plain paddle.save files: every array is a tensor of one piece.

#include <fmt/format.h>

#include <map>
#include <set>

#include "reshard/catalog/cbor.h"
#include "reshard/format/paddle/assemble_internal.h"

namespace reshard::paddle {
namespace {

class Assembler {
 public:
  Assembler(const std::string& name, CatalogBuilder& builder, std::vector<ForeignFault>& faults)
      : name_(name), builder_(builder), faults_(faults) {}

  void AddAll(const DataFile& file);

 private:
  void AddArray(const StoredArray& array);
  void AddSplit(const SplitArray& split, const DataFile& file);
  void AddObject(const Path& path, const Value& value);

  bool IsNew(const std::string& key);
  void Note(const Status& status, const std::string& key);

  const std::string& name_;
  CatalogBuilder& builder_;
  std::vector<ForeignFault>& faults_;
  std::set<std::string> keys_;
};

void Assembler::Note(const Status& status, const std::string& key) {
  if (!status.ok()) {
    faults_.push_back(
        {status.error().WithContext(fmt::format("file '{}', tensor '{}'", name_, key)),
         name_,
         {key}});
  }
}

bool Assembler::IsNew(const std::string& key) {
  const bool good = !key.empty() && keys_.insert(key).second;
  if (!good) {
    Note(MakeError(ErrorCode::kCorruption, key.empty() ? "BAD_KEY" : "DUPLICATE_FLAT_KEY",
                   key.empty() ? "an empty key" : "two paths of the file give this key"),
         key);
  }
  return good;
}

void Assembler::AddArray(const StoredArray& array) {
  const std::string key = FlatKey(array.path);
  if (!IsNew(key)) {
    return;
  }
  Chunks chunks;
  Status status = chunks.Add(Shape(array.shape.size()), array.shape, array.dtype,
                             {0, 0, array.bytes.offset, array.order, true}, 0);
  Note(status.ok() ? AddTensorTo(builder_, key, array.path, array.dtype, array.shape, chunks)
                   : std::move(status),
       key);
}

void Assembler::AddSplit(const SplitArray& split, const DataFile& file) {
  if (!IsNew(split.key)) {
    return;
  }
  Chunks chunks;
  std::optional<DType> dtype;
  std::uint64_t at = 0;
  std::map<std::string, const StoredArray*> arrays;
  std::set<std::string> used;
  for (const StoredArray& array : file.arrays) {
    arrays.emplace(FlatKey(array.path), &array);
  }
  for (const std::string& name : split.parts) {
    const auto found = arrays.find(name);
    if (found == arrays.end() || found->second->shape.size() > 1 ||
        (dtype && *dtype != found->second->dtype) || !used.insert(name).second) {
      Note(MakeError(ErrorCode::kCorruption, kBadArray,
                     fmt::format("its part '{}' is missing, named twice, or does not fit", name)),
           split.key);
      return;
    }
    const StoredArray& part = *found->second;
    dtype = part.dtype;
    Status status = FromFile(CheckShape(split.shape, *dtype));
    const std::uint64_t count = NumElements(part.shape);
    if (status.ok()) {
      status = chunks.Add(Shape(split.shape.size()), split.shape, *dtype,
                          {at, at + count, part.bytes.offset, ChunkOrder::kRowMajor, false}, 0);
    }
    if (!status.ok()) {
      Note(status, split.key);
      return;
    }
    at += count;
  }
  if (!dtype) {
    Note(MakeError(ErrorCode::kCorruption, kBadArray, "it has no parts"), split.key);
    return;
  }
  Note(AddTensorTo(builder_, split.key, Path{PathPart(split.key)}, *dtype, split.shape, chunks),
       split.key);
}

void Assembler::AddObject(const Path& path, const Value& value) {
  const std::string key = FlatKey(path);
  if (IsNew(key)) {
    builder_.AddObject(key, path, -1, EncodeObject(value));
  }
}

void Assembler::AddAll(const DataFile& file) {
  std::set<std::string> parts;
  for (const SplitArray& split : file.splits) {
    parts.insert(split.parts.begin(), split.parts.end());
  }
  for (const StoredArray& array : file.arrays) {
    if (parts.empty() || !parts.contains(FlatKey(array.path))) {
      AddArray(array);
    }
  }
  for (const SplitArray& split : file.splits) {
    AddSplit(split, file);
  }
  if (file.name_table) {
    AddObject(Path{PathPart(std::string(kNameTableKey))}, *file.name_table);
  }
  for (const auto& [path, value] : file.objects) {
    AddObject(path, value);
  }
}

}  // namespace

Result<Assembled> AssembleSingle(const ForeignRef& ref, const PaddleMetadata& metadata,
                                 std::span<const ExaminedFile> files) {
  const std::string& name = metadata.files()[0];
  if (!files[0].found.ok()) {
    return tl::unexpected<Error>(files[0].found.error());
  }
  RESHARD_TRY_ASSIGN(const DataFile file, DecodeDataFile(*files[0].found));
  CatalogInfo info;
  info.kind = CatalogKind::kIndex;
  info.format = ref.format;
  info.unique_id = ref.unique_id;
  CatalogBuilder builder(info);
  FileEntry entry = MakeFileEntry(name, files[0], file);
  entry.rank = 0;
  builder.AddFile(std::move(entry), {});
  std::vector<ForeignFault> faults;
  Assembler(name, builder, faults).AddAll(file);
  RESHARD_TRY_ASSIGN(Catalog catalog, std::move(builder).Build());
  return Assembled{std::move(catalog), std::move(faults), {}};
}

}  // namespace reshard::paddle
