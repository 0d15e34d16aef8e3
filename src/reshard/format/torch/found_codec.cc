// Requests and what was found, as bytes that travel between ranks of one job.

#include "reshard/catalog/wire.h"
#include "reshard/format/torch/assemble_internal.h"

namespace reshard::torch {
namespace {

enum RecordKind : std::uint8_t { kTensor, kValue, kError };

void AppendShape(Bytes& out, const Shape& shape) {
  AppendLittle(out, static_cast<std::uint8_t>(shape.size()));
  AppendNumbers(out, shape);
}

bool ReadShape(WireReader& reader, Shape& shape) {
  std::uint8_t axes = 0;
  if (!reader.Read(axes) || axes > kMaxAxes) {
    return false;
  }
  shape.resize(axes);
  return reader.ReadNumbers(shape);
}

bool ReadTensor(WireReader& reader, TensorRecord& tensor) {
  std::uint8_t dtype = 0;
  if (!reader.Read(dtype) || !IsDType(dtype) || !ReadShape(reader, tensor.shape) ||
      !ReadShape(reader, tensor.stride) || !reader.Read(tensor.byte_offset)) {
    return false;
  }
  tensor.dtype = static_cast<DType>(dtype);
  return tensor.shape.size() == tensor.stride.size() &&
         CheckShape(tensor.shape, tensor.dtype).ok();
}

bool ReadError(WireReader& reader, Error& error) {
  std::uint8_t code = 0;
  std::uint8_t flags = 0;
  ByteSpan reason;
  ByteSpan message;
  if (!reader.Read(code) || !reader.Read(flags) || !reader.ReadCounted(reason) ||
      !reader.ReadCounted(message) || code == 0 ||
      code > static_cast<std::uint8_t>(ErrorCode::kInternal)) {
    return false;
  }
  error = {static_cast<ErrorCode>(code), std::string(AsText(reason)), std::string(AsText(message)),
           (flags & 1) != 0, (flags & 2) != 0};
  return true;
}

bool ReadRecord(WireReader& reader, FoundRecord& record) {
  std::uint8_t kind = 0;
  if (!reader.Read(kind)) {
    return false;
  }
  if (kind == kTensor) {
    return ReadTensor(reader, record.emplace<TensorRecord>());
  }
  if (kind == kValue) {
    ByteSpan bytes;
    const bool good = reader.ReadCounted(bytes);
    record = Bytes(bytes.begin(), bytes.end());
    return good;
  }
  return kind == kError && ReadError(reader, record.emplace<Error>());
}

void AppendRecord(Bytes& out, const FoundRecord& record) {
  if (const auto* tensor = std::get_if<TensorRecord>(&record)) {
    AppendLittle(out, static_cast<std::uint8_t>(kTensor));
    AppendLittle(out, static_cast<std::uint8_t>(tensor->dtype));
    AppendShape(out, tensor->shape);
    AppendShape(out, tensor->stride);
    AppendLittle(out, tensor->byte_offset);
  } else if (const auto* value = std::get_if<Bytes>(&record)) {
    AppendLittle(out, static_cast<std::uint8_t>(kValue));
    AppendCounted(out, *value);
  } else {
    const Error& error = std::get<Error>(record);
    AppendLittle(out, static_cast<std::uint8_t>(kError));
    AppendLittle(out, static_cast<std::uint8_t>(error.code));
    AppendLittle(out, static_cast<std::uint8_t>((error.retryable ? 1 : 0) |
                                                (error.data_loss ? 2 : 0)));
    AppendCounted(out, AsBytes(error.reason));
    AppendCounted(out, AsBytes(error.message));
  }
}

}  // namespace

Bytes EncodeRequest(std::span<const WantedRecord> records) {
  Bytes out;
  AppendLittle(out, static_cast<std::uint64_t>(records.size()));
  for (const WantedRecord& record : records) {
    AppendLittle(out, record.bytes.offset);
    AppendLittle(out, record.bytes.size);
    AppendLittle(out, static_cast<std::uint8_t>((record.value ? 1 : 0) | (record.zstd ? 2 : 0)));
    AppendLittle(out, record.most_decoded);
  }
  return out;
}

Result<std::vector<WantedRecord>> DecodeRequest(ByteSpan bytes) {
  constexpr std::size_t kRecordBytes = 25;
  WireReader reader(bytes);
  std::uint64_t count = 0;
  bool good = reader.Read(count) && count <= reader.remaining() / kRecordBytes;
  std::vector<WantedRecord> out(good ? count : 0);
  for (WantedRecord& record : out) {
    std::uint8_t flags = 0;
    good = good && reader.Read(record.bytes.offset) && reader.Read(record.bytes.size) &&
           reader.Read(flags) && reader.Read(record.most_decoded);
    record.value = (flags & 1) != 0;
    record.zstd = (flags & 2) != 0;
  }
  if (!good || !reader.AtEnd()) {
    return BadMessage("the records of a data file");
  }
  return out;
}

Bytes EncodeFound(const FoundFile& file) {
  Bytes out;
  AppendLittle(out, file.decoded_bytes);
  AppendLittle(out, static_cast<std::uint64_t>(file.records.size()));
  for (const FoundRecord& record : file.records) {
    AppendRecord(out, record);
  }
  return out;
}

Result<FoundFile> DecodeFound(ByteSpan bytes) {
  WireReader reader(bytes);
  FoundFile out;
  std::uint64_t count = 0;
  bool good = reader.Read(out.decoded_bytes) && reader.Read(count) && count <= reader.remaining();
  for (std::uint64_t i = 0; good && i < count; ++i) {
    good = ReadRecord(reader, out.records.emplace_back());
  }
  if (!good || !reader.AtEnd()) {
    return BadMessage("the contents of a data file");
  }
  return out;
}

}  // namespace reshard::torch
