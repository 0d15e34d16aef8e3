// Objects and paths: whatever decodes is canonical, so encoding it gives the input again.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "reshard/base/bytes.h"
#include "reshard/base/check.h"
#include "reshard/catalog/cbor.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const reshard::ByteSpan input(reinterpret_cast<const std::byte*>(data), size);
  if (const auto value = reshard::DecodeObject(input); value.ok()) {
    RESHARD_CHECK(std::ranges::equal(reshard::EncodeObject(*value), input));
  }
  if (const auto path = reshard::DecodePath(input); path.ok()) {
    RESHARD_CHECK(std::ranges::equal(reshard::EncodePath(*path), input));
  }
  return 0;
}
