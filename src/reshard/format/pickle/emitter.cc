#include "reshard/format/pickle/emitter.h"

#include <array>
#include <limits>

#include "reshard/base/check.h"

namespace reshard::pickle {
namespace {

/// Opcodes, by their names in Python's pickletools.
enum Opcode : std::uint8_t {
  kOpMark = '(',
  kOpStop = '.',
  kOpNone = 'N',
  kOpReduce = 'R',
  kOpGlobal = 'c',
  kOpBinPersId = 'Q',
  kOpBuild = 'b',
  kOpAppend = 'a',
  kOpAppends = 'e',
  kOpSetItem = 's',
  kOpSetItems = 'u',
  kOpTuple = 't',
  kOpEmptyTuple = ')',
  kOpEmptyList = ']',
  kOpEmptyDict = '}',
  kOpBinPut = 'q',
  kOpLongBinPut = 'r',
  kOpBinGet = 'h',
  kOpLongBinGet = 'j',
  kOpBinInt = 'J',
  kOpBinInt1 = 'K',
  kOpBinInt2 = 'M',
  kOpBinFloat = 'G',
  kOpBinUnicode = 'X',
  kOpShortBinBytes = 'C',
  kOpBinBytes = 'B',
  kOpProto = 0x80,
  kOpNewObj = 0x81,
  kOpTuple1 = 0x85,
  kOpTuple2 = 0x86,
  kOpTuple3 = 0x87,
  kOpNewTrue = 0x88,
  kOpNewFalse = 0x89,
  kOpLong1 = 0x8a,
  kOpShortBinUnicode = 0x8c,
  kOpBinUnicode8 = 0x8d,
  kOpBinBytes8 = 0x8e,
  kOpStackGlobal = 0x93,
  kOpMemoize = 0x94,
};

void Put(Bytes& out, Opcode opcode) { out.push_back(static_cast<std::byte>(opcode)); }

void PutText(Bytes& out, std::string_view text) {
  const ByteSpan bytes = AsBytes(text);
  out.insert(out.end(), bytes.begin(), bytes.end());
}

/// The opcode of a memo number of one or four bytes, and the number.
void PutMemo(Bytes& out, std::uint32_t number, Opcode one, Opcode four) {
  if (number <= std::numeric_limits<std::uint8_t>::max()) {
    Put(out, one);
    AppendLittle(out, static_cast<std::uint8_t>(number));
  } else {
    Put(out, four);
    AppendLittle(out, number);
  }
}

/// The opcode for a length of one, four or eight bytes, and the length.
void PutLength(Bytes& out, std::uint64_t size, Opcode one, Opcode four, Opcode eight) {
  if (size <= std::numeric_limits<std::uint8_t>::max()) {
    Put(out, one);
    AppendLittle(out, static_cast<std::uint8_t>(size));
  } else if (size <= std::numeric_limits<std::uint32_t>::max()) {
    Put(out, four);
    AppendLittle(out, static_cast<std::uint32_t>(size));
  } else {
    Put(out, eight);
    AppendLittle(out, size);
  }
}

}  // namespace

Emitter::Emitter(Bytes& out, int protocol) : out_(out), protocol_(protocol) {
  RESHARD_CHECK(protocol == 2 || protocol == 4);
  Put(out_, kOpProto);
  out_.push_back(static_cast<std::byte>(protocol));
}

void Emitter::None() { Put(out_, kOpNone); }

void Emitter::Bool(bool value) { Put(out_, value ? kOpNewTrue : kOpNewFalse); }

void Emitter::Int(std::int64_t value) {
  if (value >= 0 && value <= std::numeric_limits<std::uint8_t>::max()) {
    Put(out_, kOpBinInt1);
    AppendLittle(out_, static_cast<std::uint8_t>(value));
  } else if (value >= 0 && value <= std::numeric_limits<std::uint16_t>::max()) {
    Put(out_, kOpBinInt2);
    AppendLittle(out_, static_cast<std::uint16_t>(value));
  } else if (value >= std::numeric_limits<std::int32_t>::min() &&
             value <= std::numeric_limits<std::int32_t>::max()) {
    Put(out_, kOpBinInt);
    AppendLittle(out_, static_cast<std::int32_t>(value));
  } else {
    // Two's complement in as few bytes as keep the sign, as Python writes it.
    std::uint8_t size = sizeof(value);
    while (size > 1) {
      const int unused = 64 - 8 * (size - 1);
      if (value << unused >> unused != value) {
        break;
      }
      --size;
    }
    Put(out_, kOpLong1);
    AppendLittle(out_, size);
    const ByteSpan bytes = std::as_bytes(std::span(&value, 1));
    out_.insert(out_.end(), bytes.begin(), bytes.begin() + size);
  }
}

void Emitter::Float(double value) {
  Put(out_, kOpBinFloat);
  std::array<std::byte, sizeof(value)> bytes;
  StoreLittle(bytes.data(), value);
  out_.insert(out_.end(), bytes.rbegin(), bytes.rend());  // big-endian
}

void Emitter::Text(std::string_view text) {
  if (protocol_ < 4) {
    RESHARD_CHECK(text.size() <= std::numeric_limits<std::uint32_t>::max());
    Put(out_, kOpBinUnicode);
    AppendLittle(out_, static_cast<std::uint32_t>(text.size()));
  } else {
    PutLength(out_, text.size(), kOpShortBinUnicode, kOpBinUnicode, kOpBinUnicode8);
  }
  PutText(out_, text);
}

void Emitter::EmptyTuple() { Put(out_, kOpEmptyTuple); }

void Emitter::Mark() { Put(out_, kOpMark); }

void Emitter::Tuple() { Put(out_, kOpTuple); }

void Emitter::TupleOf(int count) {
  RESHARD_CHECK(count >= 1 && count <= 3);
  Put(out_, count == 1 ? kOpTuple1 : count == 2 ? kOpTuple2 : kOpTuple3);
}

void Emitter::EmptyList() { Put(out_, kOpEmptyList); }

void Emitter::Append() { Put(out_, kOpAppend); }

void Emitter::Appends() { Put(out_, kOpAppends); }

void Emitter::EmptyDict() { Put(out_, kOpEmptyDict); }

void Emitter::SetItem() { Put(out_, kOpSetItem); }

void Emitter::SetItems() { Put(out_, kOpSetItems); }

void Emitter::Global(std::string_view module, std::string_view name) {
  if (protocol_ < 4) {
    Put(out_, kOpGlobal);
    for (const std::string_view line : {module, name}) {
      PutText(out_, line);
      out_.push_back(std::byte{'\n'});
    }
    return;
  }
  Text(module);
  Text(name);
  Put(out_, kOpStackGlobal);
}

void Emitter::Reduce() { Put(out_, kOpReduce); }

void Emitter::NewObject() { Put(out_, kOpNewObj); }

void Emitter::Build() { Put(out_, kOpBuild); }

void Emitter::PersistentId() { Put(out_, kOpBinPersId); }

void Emitter::BytesHead(std::uint64_t size) {
  RESHARD_CHECK(protocol_ >= 4);
  PutLength(out_, size, kOpShortBinBytes, kOpBinBytes, kOpBinBytes8);
}

void Emitter::ShortBytes(ByteSpan bytes) {
  BytesHead(bytes.size());
  out_.insert(out_.end(), bytes.begin(), bytes.end());
}

std::uint32_t Emitter::Memoize() {
  if (protocol_ < 4) {
    PutMemo(out_, next_memo_, kOpBinPut, kOpLongBinPut);
  } else {
    Put(out_, kOpMemoize);
  }
  return next_memo_++;
}

void Emitter::Get(std::uint32_t number) { PutMemo(out_, number, kOpBinGet, kOpLongBinGet); }

void Emitter::Stop() { Put(out_, kOpStop); }

}  // namespace reshard::pickle
