#pragma once

// The catalog of the worked example in docs/format/native.md.

#include "reshard/catalog/catalog.h"

namespace reshard::testing {

/// One uint16 tensor "w" (2, 3), elements 1 to 6, whole in one data file.
inline Catalog DocumentCatalog() {
  CatalogBuilder builder({.unique_id = 5, .world_size = 1});
  const std::vector<std::uint64_t> blocks = {0x0f9dfcc51de381ae};
  builder.AddFile({"0_5.safetensors", 0, 8204, 8192, 0x0123456789abcdef, 0, true}, blocks);
  builder.AddTensor("w", {"w"}, DType::kUint16, Shape{2, 3}, 0x0f9dfcc51de381ae);
  builder.AddChunk(WholeBox(Shape{2, 3}), 0, 8192);
  return std::move(builder).Build().value();
}

}  // namespace reshard::testing
