#pragma once

// Reading and writing of messages between ranks: little-endian integers and counted byte strings.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/bytes.h"
#include "reshard/base/result.h"

namespace reshard {

/// Appends counted bytes (32-bit length).
inline void AppendCounted(Bytes& out, ByteSpan bytes) {
  AppendLittle(out, static_cast<std::uint32_t>(bytes.size()));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

/// Appends 64-bit numbers without a count.
inline void AppendNumbers(Bytes& out, std::span<const std::uint64_t> numbers) {
  const ByteSpan bytes = std::as_bytes(numbers);
  out.insert(out.end(), bytes.begin(), bytes.end());
}

/// A cursor over a message; every read is bounds-checked.
class WireReader {
 public:
  explicit WireReader(ByteSpan bytes) : bytes_(bytes) {}

  bool AtEnd() const { return at_ == bytes_.size(); }

  std::size_t remaining() const { return bytes_.size() - at_; }

  template <typename T>
  bool Read(T& value) {
    if (sizeof(T) > remaining()) {
      return false;
    }
    value = LoadLittle<T>(bytes_.data() + at_);
    at_ += sizeof(T);
    return true;
  }

  bool ReadBytes(std::size_t size, ByteSpan& out) {
    if (size > remaining()) {
      return false;
    }
    out = bytes_.subspan(at_, size);
    at_ += size;
    return true;
  }

  bool ReadCounted(ByteSpan& out) {
    std::uint32_t size = 0;
    return Read(size) && ReadBytes(size, out);
  }

  /// Fills `out` with 64-bit numbers.
  bool ReadNumbers(std::span<std::uint64_t> out) {
    ByteSpan bytes;
    if (out.size() > remaining() / 8 || !ReadBytes(out.size() * 8, bytes)) {
      return false;
    }
    if (!out.empty()) {
      std::memcpy(out.data(), bytes.data(), bytes.size());
    }
    return true;
  }

 private:
  ByteSpan bytes_;
  std::size_t at_ = 0;
};

/// Appends a counted list of counted texts.
inline void AppendTexts(Bytes& out, std::span<const std::string> texts) {
  AppendLittle(out, static_cast<std::uint32_t>(texts.size()));
  for (const std::string& text : texts) {
    AppendCounted(out, AsBytes(text));
  }
}

/// The opposite of AppendTexts.
inline bool ReadTexts(WireReader& reader, std::vector<std::string>& out) {
  std::uint32_t count = 0;
  if (!reader.Read(count)) {
    return false;
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    ByteSpan text;
    if (!reader.ReadCounted(text)) {
      return false;
    }
    out.emplace_back(AsText(text));
  }
  return true;
}

/// The error for a message that does not decode: ranks run different versions, or a bug.
inline tl::unexpected<Error> BadMessage(std::string_view what) {
  return MakeError(ErrorCode::kInternal, "BAD_MESSAGE",
                   "a message between ranks does not decode (" + std::string(what) +
                       "); do all ranks run the same version of reshard?");
}

}  // namespace reshard
