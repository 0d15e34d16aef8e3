#include "reshard/format/torch/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "reshard/base/check.h"
#include "reshard/base/utf8.h"
#include "reshard/format/pickle/emitter.h"
#include "reshard/format/release_internal.h"
#include "reshard/format/torch/tensor_pickle.h"
#include "reshard/format/torch/zip_writer_internal.h"
#include "reshard/tensor/box.h"

namespace reshard::torch {
namespace {

/// torch's reader of untrusted records knows no newer one.
constexpr int kProtocol = 2;

/// The smallest release that has float8_e8m0fnu.
constexpr int kFloat8E8m0Release = 207;

/// Python fills its containers in such batches too; a reader's stack stays small.
constexpr std::size_t kBatch = 1000;

class RecordPickle {
 public:
  explicit RecordPickle(Bytes& out) : emit_(out, kProtocol) {}

  /// _rebuild_tensor_v2(storage, 0, size, stride, False, OrderedDict()), or _v3 with the dtype.
  void Tensor(DType dtype, std::span<const std::uint64_t> shape) {
    const std::string_view storage = StorageClassOf(dtype);
    const bool typed = !storage.empty();
    emit_.Global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    emit_.Mark();
    emit_.Mark();
    emit_.Text("storage");
    emit_.Global(typed ? "torch" : "torch.storage", typed ? storage : "UntypedStorage");
    emit_.Text("0");
    emit_.Text("cpu");
    Number(typed ? NumElements(shape) : NumBytes(shape, dtype));
    emit_.Tuple();
    emit_.PersistentId();
    emit_.Int(0);
    Numbers(shape);
    Numbers(DenseStrides(shape));
    emit_.Bool(false);
    emit_.Global("collections", "OrderedDict");
    emit_.EmptyTuple();
    emit_.Reduce();
    if (!typed) {
      emit_.Global("torch", Info(dtype).name);
    }
    emit_.Tuple();
    emit_.Reduce();
    emit_.Stop();
  }

  void Object(const Value& value) {
    Plain(value);
    emit_.Stop();
  }

 private:
  void Number(std::uint64_t number) {
    RESHARD_CHECK(number <= std::uint64_t{std::numeric_limits<std::int64_t>::max()});
    emit_.Int(static_cast<std::int64_t>(number));
  }

  void Numbers(std::span<const std::uint64_t> numbers) {
    if (numbers.empty()) {
      emit_.EmptyTuple();
      return;
    }
    emit_.Mark();
    for (const std::uint64_t number : numbers) {
      Number(number);
    }
    emit_.Tuple();
  }

  /// In elements; 1 along axes without elements, as torch has it.
  static Shape DenseStrides(std::span<const std::uint64_t> shape) {
    Shape out(shape.size());
    std::uint64_t stride = 1;
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      out[axis] = stride;
      stride *= std::max<std::uint64_t>(shape[axis], 1);
    }
    return out;
  }

  void Plain(const Value& value) {
    if (value.is_null()) {
      emit_.None();
    } else if (const auto* flag = value.get_if<bool>()) {
      emit_.Bool(*flag);
    } else if (const auto* number = value.get_if<std::int64_t>()) {
      emit_.Int(*number);
    } else if (const auto* real = value.get_if<double>()) {
      emit_.Float(*real);
    } else if (const auto* text = value.get_if<std::string>()) {
      emit_.Text(*text);
    } else if (const auto* bytes = value.get_if<Bytes>()) {
      ByteString(*bytes);
    } else if (const auto* list = value.get_if<Value::List>()) {
      List(*list);
    } else {
      const auto* map = value.get_if<Value::Map>();
      RESHARD_CHECK(map != nullptr);
      Map(*map);
    }
  }

  /// Protocol 2 has no bytes: _codecs.encode(text, 'latin1'), and bytes() for none.
  void ByteString(const Bytes& bytes) {
    std::string text;
    text.reserve(bytes.size());
    for (const std::byte byte : bytes) {
      const auto code = std::to_integer<unsigned>(byte);
      if (code < 0x80) {
        text += static_cast<char>(code);
      } else {
        text += static_cast<char>(0xc0 | code >> 6);
        text += static_cast<char>(0x80 | (code & 0x3f));
      }
    }
    emit_.Global("_codecs", "encode");
    emit_.Text(text);
    emit_.Text("latin1");
    emit_.TupleOf(2);
    emit_.Reduce();
  }

  void List(const Value::List& list) {
    emit_.EmptyList();
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (i % kBatch == 0) {
        emit_.Mark();
      }
      Plain(list[i]);
      if ((i + 1) % kBatch == 0 || i + 1 == list.size()) {
        emit_.Appends();
      }
    }
  }

  void Map(const Value::Map& map) {
    emit_.EmptyDict();
    for (std::size_t i = 0; i < map.size(); ++i) {
      if (i % kBatch == 0) {
        emit_.Mark();
      }
      if (const auto* number = std::get_if<std::int64_t>(&map[i].first)) {
        emit_.Int(*number);
      } else {
        emit_.Text(std::get<std::string>(map[i].first));
      }
      Plain(map[i].second);
      if ((i + 1) % kBatch == 0 || i + 1 == map.size()) {
        emit_.SetItems();
      }
    }
  }

  pickle::Emitter emit_;
};

std::optional<std::string> WhyNoText(std::string_view text) {
  return IsUtf8(text) ? std::nullopt : std::optional<std::string>("a text that is no UTF-8");
}

/// Why a value cannot be pickled.
std::optional<std::string> WhyNotPlain(const Value& value) {
  if (const auto* text = value.get_if<std::string>()) {
    return WhyNoText(*text);
  }
  if (const auto* opaque = value.get_if<Opaque>()) {
    return fmt::format("an object of type {}", opaque->type);
  }
  if (const auto* list = value.get_if<Value::List>()) {
    for (const Value& item : *list) {
      if (std::optional<std::string> why = WhyNotPlain(item)) {
        return why;
      }
    }
  }
  if (const auto* map = value.get_if<Value::Map>()) {
    for (const auto& [key, item] : *map) {
      const auto* text = std::get_if<std::string>(&key);
      std::optional<std::string> why = text == nullptr ? std::nullopt : WhyNoText(*text);
      if (!why) {
        why = WhyNotPlain(item);
      }
      if (why) {
        return why;
      }
    }
  }
  return std::nullopt;
}

std::uint64_t AlignUp(std::uint64_t offset, std::uint64_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

}  // namespace

Result<int> ParseRelease(std::string_view release) {
  const std::optional<int> number = ReleaseNumber(release);
  if (number && *number >= kOldestRelease && *number <= kNewestRelease) {
    return *number;
  }
  return MakeError(ErrorCode::kInvalidArgument, "BAD_RELEASE",
                   fmt::format("'{}' is no release of PyTorch whose format is known; choose one "
                               "from 2.{} to 2.{}",
                               release, kOldestRelease % 100, kNewestRelease % 100));
}

bool HasDType(DType dtype, int release) {
  switch (dtype) {
    case DType::kFloat4E2m1:
    case DType::kFloat6E2m3:
    case DType::kFloat6E3m2:
      return false;
    case DType::kFloat8E8m0fnu:
      return release >= kFloat8E8m0Release;
    default:
      return true;
  }
}

EncodedTensor EncodeTensorRecord(DType dtype, std::span<const std::uint64_t> shape) {
  Bytes pickle;
  RecordPickle(pickle).Tensor(dtype, shape);
  EncodedTensor record;
  record.payload_bytes = NumBytes(shape, dtype);
  ZipWriter zip(record.head);
  zip.Add("data.pkl", pickle);
  zip.Add("byteorder", AsBytes("little"));
  zip.Add("version", AsBytes("3\n"));
  zip.AddHole("data/0", record.payload_bytes);
  zip.Finish(record.tail);
  return record;
}

std::optional<std::string> WhyNoRecord(const Value& value) {
  if (const auto* opaque = value.get_if<Opaque>()) {
    if (IsZip(opaque->bytes)) {
      return std::nullopt;
    }
  }
  return WhyNotPlain(value);
}

Bytes EncodeObjectRecord(const Value& value) {
  if (const auto* opaque = value.get_if<Opaque>()) {
    return opaque->bytes;
  }
  Bytes pickle;
  RecordPickle(pickle).Object(value);
  Bytes out;
  ZipWriter zip(out);
  zip.Add("data.pkl", pickle);
  zip.Add("byteorder", AsBytes("little"));
  zip.Add("version", AsBytes("3\n"));
  zip.Finish(out);
  return out;
}

ByteRange FileLayout::AddObject(std::uint64_t size) {
  const ByteRange range = {size_, size};
  size_ += size;
  return range;
}

ByteRange FileLayout::AddTensor(const EncodedTensor& record) {
  const std::uint64_t alignment =
      record.payload_bytes >= kPayloadAlignment ? kPayloadAlignment : kSmallAlignment;
  const std::uint64_t head = record.head.size();
  const ByteRange range = {AlignUp(size_ + head, alignment) - head, record.size()};
  size_ = range.end();
  return range;
}

}  // namespace reshard::torch
