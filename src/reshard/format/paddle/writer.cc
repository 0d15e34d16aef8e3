#include "reshard/format/paddle/writer.h"

#include <unordered_map>

#include "reshard/base/check.h"
#include "reshard/format/pickle/emitter.h"
#include "reshard/tensor/box.h"

namespace reshard::paddle {
namespace {

/// Python fills a dict in such batches too.
constexpr std::size_t kBatch = 1000;

/// The first field of numpy's pickled states.
constexpr std::int64_t kArrayVersion = 1;
constexpr std::int64_t kDTypeVersion = 3;

class LayoutWriter {
 public:
  explicit LayoutWriter(std::span<const ArrayEntry> arrays)
      : arrays_(arrays), emit_(out_.literals) {}

  DataFileLayout Run() {
    const std::size_t items = arrays_.size() + 1;  // and the name table
    emit_.EmptyDict();
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      BeginItem(i);
      Array(arrays_[i]);
      EndItem(i, items);
    }
    BeginItem(arrays_.size());
    NameTable();
    EndItem(arrays_.size(), items);
    emit_.Stop();
    out_.literal_ends.push_back(out_.literals.size());
    out_.file_size = payload_bytes_ + out_.literals.size();
    return std::move(out_);
  }

 private:
  void BeginItem(std::size_t index) {
    if (index % kBatch == 0) {
      emit_.Mark();
    }
  }

  void EndItem(std::size_t index, std::size_t count) {
    if ((index + 1) % kBatch == 0 || index + 1 == count) {
      emit_.SetItems();
    }
  }

  /// What stands in the memo once it was emitted.
  template <typename Emit>
  void Once(std::optional<std::uint32_t>& memo, const Emit& emit) {
    if (memo) {
      emit_.Get(*memo);
      return;
    }
    emit();
    memo = emit_.Memoize();
  }

  /// key: _reconstruct(ndarray, (0,), b'b'), with the state (1, shape, dtype, False, payload)
  void Array(const ArrayEntry& array) {
    emit_.Text(array.key);
    keys_.push_back(emit_.Memoize());
    Once(reconstruct_, [this] { emit_.Global("numpy.core.multiarray", "_reconstruct"); });
    Once(ndarray_, [this] { emit_.Global("numpy", "ndarray"); });
    emit_.Int(0);
    emit_.TupleOf(1);
    Once(letter_, [this] { emit_.ShortBytes(AsBytes("b")); });
    emit_.TupleOf(3);
    emit_.Reduce();
    emit_.Mark();
    emit_.Int(kArrayVersion);
    ArrayShape(array.shape);
    ArrayType(array.dtype);
    emit_.Bool(false);  // C order
    const std::uint64_t bytes = NumBytes(array.shape, array.dtype);
    emit_.BytesHead(bytes);
    out_.literal_ends.push_back(out_.literals.size());
    out_.payload_offsets.push_back(out_.literals.size() + payload_bytes_);
    payload_bytes_ += bytes;
    emit_.Tuple();
    emit_.Build();
  }

  void ArrayShape(std::span<const std::uint64_t> shape) {
    if (shape.empty()) {
      emit_.EmptyTuple();
      return;
    }
    emit_.Mark();
    for (const std::uint64_t extent : shape) {
      emit_.Int(static_cast<std::int64_t>(extent));
    }
    emit_.Tuple();
  }

  /// dtype(code, False, True), with the state (3, order, None, None, None, -1, -1, 0)
  void ArrayType(DType dtype) {
    const std::optional<std::string_view> code = NumpyCode(dtype);
    RESHARD_CHECK(code.has_value());
    Once(types_[*code], [this, &code] {
      Once(dtype_, [this] { emit_.Global("numpy", "dtype"); });
      emit_.Text(*code);
      emit_.Bool(false);
      emit_.Bool(true);
      emit_.TupleOf(3);
      emit_.Reduce();
      emit_.Mark();
      emit_.Int(kDTypeVersion);
      emit_.Text(code->back() == '1' ? "|" : "<");
      emit_.None();
      emit_.None();
      emit_.None();
      emit_.Int(-1);
      emit_.Int(-1);
      emit_.Int(0);
      emit_.Tuple();
      emit_.Build();
    });
  }

  void NameTable() {
    emit_.Text(kNameTable);
    emit_.EmptyDict();
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      BeginItem(i);
      emit_.Get(keys_[i]);
      emit_.Text(arrays_[i].name);
      EndItem(i, arrays_.size());
    }
  }

  std::span<const ArrayEntry> arrays_;
  DataFileLayout out_;
  pickle::Emitter emit_;
  std::uint64_t payload_bytes_ = 0;
  std::vector<std::uint32_t> keys_;  // memo numbers
  std::optional<std::uint32_t> reconstruct_;
  std::optional<std::uint32_t> ndarray_;
  std::optional<std::uint32_t> letter_;
  std::optional<std::uint32_t> dtype_;
  std::unordered_map<std::string_view, std::optional<std::uint32_t>> types_;
};

}  // namespace

std::optional<std::string_view> NumpyCode(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return "b1";
    case DType::kUint8:
      return "u1";
    case DType::kInt8:
    case DType::kFloat8E4m3fn:
    case DType::kFloat8E5m2:
      return "i1";
    case DType::kInt16:
      return "i2";
    case DType::kInt32:
      return "i4";
    case DType::kInt64:
      return "i8";
    case DType::kFloat16:
      return "f2";
    case DType::kBfloat16:
      return "u2";
    case DType::kFloat32:
      return "f4";
    case DType::kFloat64:
      return "f8";
    case DType::kComplex64:
      return "c8";
    case DType::kComplex128:
      return "c16";
    default:
      return std::nullopt;
  }
}

ByteSpan DataFileLayout::Literal(std::size_t index) const {
  const std::uint64_t begin = index == 0 ? 0 : literal_ends[index - 1];
  return ByteSpan(literals).subspan(begin, literal_ends[index] - begin);
}

DataFileLayout LayOutDataFile(std::span<const ArrayEntry> arrays) {
  return LayoutWriter(arrays).Run();
}

}  // namespace reshard::paddle
