#include "reshard/format/torch/record.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/format/torch/record_internal.h"

namespace reshard::torch {
namespace {

constexpr std::uint64_t kFirstWindow = 4096;
constexpr std::uint64_t kLargestWindow = std::uint64_t{64} * 1024;
constexpr std::uint64_t kNear = std::uint64_t{16} * 1024;

tl::unexpected<Error> Bad(std::string_view reason, ByteRange record, std::string_view what,
                          ErrorCode code = ErrorCode::kCorruption) {
  return MakeError(code, reason,
                   fmt::format("the record at bytes [{}, {}): {}", record.offset, record.end(),
                               what));
}

Result<Bytes> ReadPickle(const zip::Archive& archive, ByteRange record, std::uint64_t most) {
  const zip::Member* member = archive.Find("data.pkl");
  if (member == nullptr) {
    return Bad(kBadRecord, record, "the archive holds no data.pkl");
  }
  return archive.Read(*member, most);
}

/// Errors of well-formed pickles that hold more than a Value can.
bool IsBeyondUs(const Error& error) {
  return error.code == ErrorCode::kUnsupported || error.reason == pickle::kBadInteger ||
         error.reason == pickle::kCycle || error.reason == pickle::kDepth ||
         error.reason == pickle::kBadString || error.reason == pickle::kBadKey;
}

std::string NameOfBeyond(const Error& error) {
  return error.reason == pickle::kBadInteger  ? "int"
         : error.reason == pickle::kBadString ? "str"
                                              : "object";
}

Result<Value> Keep(ByteSource& source, ByteRange record, std::string type) {
  Opaque opaque{std::move(type), Bytes(record.size)};
  RESHARD_TRY(source.ReadAt(record.offset, opaque.bytes));
  return Value(std::move(opaque));
}

}  // namespace

Result<zip::Archive> OpenRecord(ByteSource& source, ByteRange record) {
  Result<zip::Archive> archive = zip::Archive::Open(source, record);
  if (!archive.ok()) {
    return tl::unexpected<Error>(archive.error().WithContext(
        fmt::format("the record at bytes [{}, {})", record.offset, record.end())));
  }
  if (archive->Find("constants.pkl") != nullptr || archive->HasPrefix("code/")) {
    return Bad(kRecordKind, record,
               "this is a TorchScript archive, a program; only tensors and values are read",
               ErrorCode::kUnsupported);
  }
  if (const zip::Member* order = archive->Find("byteorder")) {
    RESHARD_TRY_ASSIGN(const Bytes text, archive->Read(*order, 16));
    if (AsText(text) != "little") {
      return Bad(kByteOrder, record,
                 "it was written on a big-endian machine; load and save it there with torch's "
                 "set_default_load_endianness",
                 ErrorCode::kUnsupported);
    }
  }
  return archive;
}

Result<TensorRecord> ReadTensorRecord(ByteSource& source, ByteRange record) {
  RESHARD_TRY_ASSIGN(const zip::Archive archive, OpenRecord(source, record));
  RESHARD_TRY_ASSIGN(const Bytes bytes, ReadPickle(archive, record, kMaxTensorPickle));
  MemorySource pickle_source(bytes);
  Result<pickle::Parsed> parsed =
      pickle::Parse(pickle_source, {.globals = TensorGlobals(), .persistent_ids = true});
  if (!parsed.ok()) {
    return tl::unexpected<Error>(parsed.error().WithContext(
        fmt::format("data.pkl of the record at byte {}", record.offset)));
  }
  const pickle::Document& document = parsed->document;
  if (!IsTensor(document, document.root())) {
    return Bad(kBadRecord, record, "the metadata says that it holds a tensor, but it does not");
  }
  RESHARD_TRY_ASSIGN(TensorRef tensor, ReadTensor(document, document.root()));
  RESHARD_TRY(CheckNotLazy(tensor));
  const zip::Member* member = archive.Find(fmt::format("data/{}", tensor.storage.key));
  if (member == nullptr) {
    return Bad(kStorageMissing, record,
               fmt::format("the archive does not hold the storage '{}'", tensor.storage.key));
  }
  if (member->size != tensor.storage.bytes) {
    return Bad(kStorageSize, record,
               fmt::format("storage '{}' has {} bytes, the tensor says {}", tensor.storage.key,
                           member->size, tensor.storage.bytes));
  }
  RESHARD_TRY_ASSIGN(const ByteRange payload, archive.Locate(*member));
  return TensorRecord{tensor.dtype, std::move(tensor.size), std::move(tensor.stride),
                      payload.offset + tensor.byte_offset()};
}

Result<Value> ReadValueRecord(ByteSource& source, ByteRange record) {
  if (record.size > kMaxValueBytes) {
    return Bad(pickle::kLimit, record,
               fmt::format("a value of {} bytes, more than {}", record.size, kMaxValueBytes),
               ErrorCode::kUnsupported);
  }
  RESHARD_TRY_ASSIGN(const zip::Archive archive, OpenRecord(source, record));
  RESHARD_TRY_ASSIGN(const Bytes bytes, ReadPickle(archive, record, kMaxValueBytes));
  MemorySource pickle_source(bytes);
  const Result<pickle::Parsed> parsed =
      pickle::Parse(pickle_source,
                    {.globals = TensorGlobals(), .persistent_ids = true, .keep_unknown = true});
  if (!parsed.ok()) {
    return IsBeyondUs(parsed.error())
               ? Keep(source, record, NameOfBeyond(parsed.error()))
               : Result<Value>(tl::unexpected<Error>(parsed.error().WithContext(
                     fmt::format("data.pkl of the record at byte {}", record.offset))));
  }
  RESHARD_TRY_ASSIGN(PlainValue plain, ReadPlain(parsed->document, pickle_source));
  return plain.odd.empty() ? Result<Value>(std::move(plain.value))
                           : Keep(source, record, std::move(plain.odd));
}

Status RecordWindow::ReadAt(std::uint64_t offset, MutableByteSpan out) {
  const std::uint64_t end = begin_ + bytes_.size();
  if (offset < begin_ || offset > end || out.size() > end - offset) {
    const std::uint64_t size = source_.size();
    if (out.size() >= kLargestWindow || offset > size || out.size() > size - offset) {
      return source_.ReadAt(offset, out);
    }
    const bool near = offset >= begin_ && offset <= end + kNear;
    next_size_ = near ? std::min(2 * next_size_, kLargestWindow) : kFirstWindow;
    bytes_.resize(std::min(std::max<std::uint64_t>(next_size_, out.size()), size - offset));
    if (Status status = source_.ReadAt(offset, bytes_); !status.ok()) {
      bytes_.clear();
      return status;
    }
    begin_ = offset;
  }
  std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset - begin_), out.size(),
              out.begin());
  return OkStatus();
}

}  // namespace reshard::torch
