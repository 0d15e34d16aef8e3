#pragma once

// Writes pickles of protocol 4, or of 2 for readers that know no other: exactly the opcodes that a
// closed-world reader accepts, without frames. A byte string's payload can be left out, so that a
// file becomes literals with holes.

#include <cstdint>
#include <string_view>

#include "reshard/base/bytes.h"

namespace reshard::pickle {

/// Appends opcodes to a buffer. What each call leaves on the (virtual) stack is the caller's
/// business. Not thread-safe.
class Emitter {
 public:
  /// Begins with PROTO. `protocol` is 2 or 4.
  explicit Emitter(Bytes& out, int protocol = 4);

  void None();
  void Bool(bool value);
  void Int(std::int64_t value);
  void Float(double value);
  void Text(std::string_view text);
  void EmptyTuple();
  void Mark();
  void Tuple();             ///< Everything since the mark.
  void TupleOf(int count);  ///< 1, 2 or 3 topmost.
  void EmptyList();
  void Append();
  void Appends();
  void EmptyDict();
  void SetItem();
  void SetItems();
  void Global(std::string_view module, std::string_view name);
  void Reduce();
  void NewObject();
  void Build();
  void PersistentId();  ///< Of the topmost.

  /// The head of a bytes object of `size` bytes; the caller puts the payload after it. Protocol 4
  /// only, as ShortBytes.
  void BytesHead(std::uint64_t size);

  /// A short bytes object, payload included.
  void ShortBytes(ByteSpan bytes);

  /// Puts the topmost into the memo and returns its number, for Get.
  std::uint32_t Memoize();
  void Get(std::uint32_t number);
  void Stop();

 private:
  Bytes& out_;
  int protocol_;
  std::uint32_t next_memo_ = 0;
};

}  // namespace reshard::pickle
