#pragma once

// Byte strings and little-endian access. On-disk integers are little-endian whatever the host.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reshard {

static_assert(std::endian::native == std::endian::little,
              "element bytes are moved as they lie in memory; a big-endian port must swap them");

using Bytes = std::vector<std::byte>;
using ByteSpan = std::span<const std::byte>;
using MutableByteSpan = std::span<std::byte>;

/// Half-open range [offset, offset + size) of bytes.
struct ByteRange {
  std::uint64_t offset = 0;
  std::uint64_t size = 0;

  std::uint64_t end() const { return offset + size; }

  bool operator==(const ByteRange&) const = default;
};

/// The bytes of a string, without a copy.
inline ByteSpan AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

/// Bytes as text, without a copy.
inline std::string_view AsText(ByteSpan bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Reads a little-endian T at `p`, which may be unaligned.
template <typename T>
T LoadLittle(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

/// Writes `value` little-endian at `p`, which may be unaligned.
template <typename T>
void StoreLittle(std::byte* p, T value) {
  std::memcpy(p, &value, sizeof(T));
}

/// Appends `value` little-endian.
template <typename T>
void AppendLittle(Bytes& out, T value) {
  const auto* p = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), p, p + sizeof(T));
}

}  // namespace reshard
