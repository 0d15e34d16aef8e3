// Catalogs, as they come and with right checksums: a hostile writer computes them too. What decodes
// can be walked, and encodes to bytes that decode to the same.

#include <cstddef>
#include <cstdint>

#include "reshard/base/check.h"
#include "reshard/catalog/cbor.h"
#include "reshard/format/native/catalog_codec.h"
#include "tests/support/catalog_bytes.h"

namespace {

void Walk(const reshard::Catalog& catalog) {
  for (reshard::TensorId t = 0; t < catalog.num_tensors(); ++t) {
    RESHARD_CHECK(catalog.Find(catalog.key(t)) == t);
    static_cast<void>(catalog.path(t));
    static_cast<void>(catalog.CheckCoverage(t));
    for (std::size_t c = 0; c < catalog.num_chunks(t); ++c) {
      const reshard::Chunk chunk = catalog.chunk(t, c);
      const reshard::FileEntry& file = catalog.files()[chunk.file];
      RESHARD_CHECK(chunk.byte_offset + catalog.chunk_bytes(t, c) <= file.size);
    }
  }
  for (std::uint32_t f = 0; f < catalog.files().size(); ++f) {
    if (const std::uint64_t blocks = catalog.files()[f].num_blocks(); blocks > 0) {
      static_cast<void>(catalog.BlockChecksum(f, blocks - 1));
    }
  }
  for (std::size_t o = 0; o < catalog.num_objects(); ++o) {
    static_cast<void>(catalog.object_path(o));
    static_cast<void>(reshard::DecodeObject(catalog.object_value(o)));
  }
}

void Try(reshard::ByteSpan bytes) {
  const auto catalog = reshard::native::DecodeCatalog(bytes);
  if (!catalog.ok()) {
    return;
  }
  Walk(*catalog);
  const reshard::Bytes encoded = reshard::native::EncodeCatalog(*catalog);
  const auto again = reshard::native::DecodeCatalog(encoded);
  RESHARD_CHECK(again.ok() && reshard::native::EncodeCatalog(*again) == encoded);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  Try({begin, size});
  reshard::Bytes fixed(begin, begin + size);
  reshard::testing::FixChecksums(fixed);
  Try(fixed);
  return 0;
}
