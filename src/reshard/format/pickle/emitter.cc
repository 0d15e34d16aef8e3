#include "reshard/format/pickle/emitter.h"

#include <limits>

#include "reshard/base/check.h"
#include "reshard/format/pickle/opcodes_internal.h"

namespace reshard::pickle {
namespace {

void Put(Bytes& out, std::uint8_t opcode) { out.push_back(std::byte{opcode}); }

template <typename T>
bool Fits(std::int64_t value) {
  return value >= std::numeric_limits<T>::min() && value <= std::numeric_limits<T>::max();
}

}  // namespace

Emitter::Emitter(Bytes& out) : out_(out) {
  Put(out_, op::kProto);
  Put(out_, 4);
}

void Emitter::None() { Put(out_, op::kNone); }

void Emitter::Bool(bool value) { Put(out_, value ? op::kTrue : op::kFalse); }

void Emitter::Int(std::int64_t value) {
  if (Fits<std::uint8_t>(value)) {
    Put(out_, op::kInt1);
    Put(out_, static_cast<std::uint8_t>(value));
  } else if (Fits<std::uint16_t>(value)) {
    Put(out_, op::kInt2);
    AppendLittle(out_, static_cast<std::uint16_t>(value));
  } else if (Fits<std::int32_t>(value)) {
    Put(out_, op::kInt4);
    AppendLittle(out_, static_cast<std::int32_t>(value));
  } else {  // the shortest two's complement
    int size = 8;
    while (size > 1 && value >> (8 * size - 9) == (value < 0 ? -1 : 0)) {
      --size;
    }
    Put(out_, op::kLong1);
    Put(out_, static_cast<std::uint8_t>(size));
    for (int i = 0; i < size; ++i) {
      Put(out_, static_cast<std::uint8_t>(value >> (8 * i)));
    }
  }
}

void Emitter::Text(std::string_view text) {
  RESHARD_CHECK(text.size() <= std::numeric_limits<std::uint32_t>::max());
  if (text.size() < 256) {
    Put(out_, op::kText1);
    Put(out_, static_cast<std::uint8_t>(text.size()));
  } else {
    Put(out_, op::kText4);
    AppendLittle(out_, static_cast<std::uint32_t>(text.size()));
  }
  const ByteSpan bytes = AsBytes(text);
  out_.insert(out_.end(), bytes.begin(), bytes.end());
}

void Emitter::EmptyTuple() { Put(out_, op::kEmptyTuple); }

void Emitter::Mark() { Put(out_, op::kMark); }

void Emitter::Tuple() { Put(out_, op::kTuple); }

void Emitter::TupleOf(int count) {
  RESHARD_CHECK(count >= 1 && count <= 3);
  Put(out_, static_cast<std::uint8_t>(op::kTuple1 + count - 1));
}

void Emitter::EmptyList() { Put(out_, op::kEmptyList); }

void Emitter::Append() { Put(out_, op::kAppend); }

void Emitter::Appends() { Put(out_, op::kAppends); }

void Emitter::EmptyDict() { Put(out_, op::kEmptyDict); }

void Emitter::SetItem() { Put(out_, op::kSetItem); }

void Emitter::SetItems() { Put(out_, op::kSetItems); }

void Emitter::Global(std::string_view module, std::string_view name) {
  Text(module);
  Text(name);
  Put(out_, op::kStackGlobal);
}

void Emitter::Reduce() { Put(out_, op::kReduce); }

void Emitter::NewObject() { Put(out_, op::kNewObject); }

void Emitter::Build() { Put(out_, op::kBuild); }

void Emitter::BytesHead(std::uint64_t size) {
  if (size < 256) {
    Put(out_, op::kBytes1);
    Put(out_, static_cast<std::uint8_t>(size));
  } else if (size <= std::numeric_limits<std::uint32_t>::max()) {
    Put(out_, op::kBytes4);
    AppendLittle(out_, static_cast<std::uint32_t>(size));
  } else {
    Put(out_, op::kBytes8);
    AppendLittle(out_, size);
  }
}

void Emitter::ShortBytes(ByteSpan bytes) {
  BytesHead(bytes.size());
  out_.insert(out_.end(), bytes.begin(), bytes.end());
}

std::uint32_t Emitter::Memoize() {
  Put(out_, op::kMemoize);
  return next_memo_++;
}

void Emitter::Get(std::uint32_t number) {
  if (number < 256) {
    Put(out_, op::kGet1);
    Put(out_, static_cast<std::uint8_t>(number));
  } else {
    Put(out_, op::kGet4);
    AppendLittle(out_, number);
  }
}

void Emitter::Stop() { Put(out_, op::kStop); }

}  // namespace reshard::pickle
