// What a data file holds, as bytes for another rank.

#include "reshard/catalog/cbor.h"
#include "reshard/catalog/wire.h"
#include "reshard/format/paddle/data_file.h"

namespace reshard::paddle {
namespace {

void AppendShape(Bytes& out, const Shape& shape) {
  AppendLittle(out, static_cast<std::uint8_t>(shape.size()));
  AppendNumbers(out, shape);
}

void AppendCount(Bytes& out, std::size_t count) {
  AppendLittle(out, static_cast<std::uint64_t>(count));
}

void AppendArray(Bytes& out, const StoredArray& array) {
  AppendCounted(out, EncodePath(array.path));
  AppendLittle(out, static_cast<std::uint8_t>(array.dtype));
  AppendLittle(out, static_cast<std::uint8_t>(array.order));
  AppendShape(out, array.shape);
  AppendLittle(out, array.bytes.offset);
  AppendLittle(out, array.bytes.size);
}

class Decoder {
 public:
  explicit Decoder(ByteSpan bytes) : reader_(bytes) {}

  Result<DataFile> Decode();

 private:
  bool ReadShape(Shape& shape);
  bool ReadText(std::string& text);
  bool ReadHead(DataFile& file);
  bool ReadArray(StoredArray& array);
  bool ReadSplit(SplitArray& split);
  bool ReadObjects(DataFile& file);

  /// The number of things that follow, each at least one byte.
  bool ReadCount(std::uint64_t& count) {
    return reader_.Read(count) && count <= reader_.remaining();
  }

  WireReader reader_;
};

bool Decoder::ReadShape(Shape& shape) {
  std::uint8_t axes = 0;
  if (!reader_.Read(axes) || axes > kMaxAxes) {
    return false;
  }
  shape.resize(axes);
  return reader_.ReadNumbers(shape);
}

bool Decoder::ReadText(std::string& text) {
  ByteSpan bytes;
  if (!reader_.ReadCounted(bytes)) {
    return false;
  }
  text = AsText(bytes);
  return true;
}

bool Decoder::ReadHead(DataFile& file) {
  std::uint8_t encoding = 0;
  std::uint8_t safetensors = 0;
  if (!reader_.Read(encoding) || !reader_.Read(safetensors) || !reader_.Read(file.decoded_bytes) ||
      encoding > static_cast<std::uint8_t>(FileEncoding::kPickleText)) {
    return false;
  }
  file.encoding = static_cast<FileEncoding>(encoding);
  file.safetensors = safetensors != 0;
  return true;
}

bool Decoder::ReadArray(StoredArray& array) {
  ByteSpan path;
  std::uint8_t dtype = 0;
  std::uint8_t order = 0;
  if (!reader_.ReadCounted(path) || !reader_.Read(dtype) || !reader_.Read(order) ||
      !ReadShape(array.shape) || !reader_.Read(array.bytes.offset) ||
      !reader_.Read(array.bytes.size) || !IsDType(dtype) ||
      !IsValidOrder(static_cast<ChunkOrder>(order), array.shape.size())) {
    return false;
  }
  Result<Path> decoded = DecodePath(path);
  if (!decoded.ok()) {
    return false;
  }
  array.path = std::move(*decoded);
  array.dtype = static_cast<DType>(dtype);
  array.order = static_cast<ChunkOrder>(order);
  return CheckShape(array.shape, array.dtype).ok();
}

bool Decoder::ReadSplit(SplitArray& split) {
  std::uint64_t parts = 0;
  if (!ReadText(split.key) || !ReadShape(split.shape) || !ReadCount(parts)) {
    return false;
  }
  for (std::uint64_t i = 0; i < parts; ++i) {
    if (!ReadText(split.parts.emplace_back())) {
      return false;
    }
  }
  return true;
}

bool Decoder::ReadObjects(DataFile& file) {
  std::uint8_t has_table = 0;
  ByteSpan bytes;
  if (!reader_.Read(has_table)) {
    return false;
  }
  if (has_table != 0) {
    Result<Value> table = reader_.ReadCounted(bytes) ? DecodeObject(bytes) : Value();
    if (!table.ok()) {
      return false;
    }
    file.name_table = std::move(*table);
  }
  std::uint64_t count = 0;
  if (!ReadCount(count)) {
    return false;
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    ByteSpan path;
    if (!reader_.ReadCounted(path) || !reader_.ReadCounted(bytes)) {
      return false;
    }
    Result<Path> decoded = DecodePath(path);
    Result<Value> value = DecodeObject(bytes);
    if (!decoded.ok() || !value.ok()) {
      return false;
    }
    file.objects.emplace_back(std::move(*decoded), std::move(*value));
  }
  return reader_.AtEnd();
}

Result<DataFile> Decoder::Decode() {
  DataFile file;
  std::uint64_t arrays = 0;
  std::uint64_t splits = 0;
  bool good = ReadHead(file) && ReadCount(arrays);
  for (std::uint64_t i = 0; good && i < arrays; ++i) {
    good = ReadArray(file.arrays.emplace_back());
  }
  good = good && ReadCount(splits);
  for (std::uint64_t i = 0; good && i < splits; ++i) {
    good = ReadSplit(file.splits.emplace_back());
  }
  if (!good || !ReadObjects(file)) {
    return BadMessage("the contents of a data file");
  }
  return file;
}

}  // namespace

Bytes EncodeDataFile(const DataFile& file) {
  Bytes out;
  AppendLittle(out, static_cast<std::uint8_t>(file.encoding));
  AppendLittle(out, static_cast<std::uint8_t>(file.safetensors ? 1 : 0));
  AppendLittle(out, file.decoded_bytes);
  AppendCount(out, file.arrays.size());
  for (const StoredArray& array : file.arrays) {
    AppendArray(out, array);
  }
  AppendCount(out, file.splits.size());
  for (const SplitArray& split : file.splits) {
    AppendCounted(out, AsBytes(split.key));
    AppendShape(out, split.shape);
    AppendCount(out, split.parts.size());
    for (const std::string& part : split.parts) {
      AppendCounted(out, AsBytes(part));
    }
  }
  AppendLittle(out, static_cast<std::uint8_t>(file.name_table ? 1 : 0));
  if (file.name_table) {
    AppendCounted(out, EncodeObject(*file.name_table));
  }
  AppendCount(out, file.objects.size());
  for (const auto& [path, value] : file.objects) {
    AppendCounted(out, EncodePath(path));
    AppendCounted(out, EncodeObject(value));
  }
  return out;
}

Result<DataFile> DecodeDataFile(ByteSpan bytes) { return Decoder(bytes).Decode(); }

}  // namespace reshard::paddle
