// Paddle's metadata: what decodes can be written and decodes to the same again.

#include <cstddef>
#include <cstdint>

#include "reshard/base/check.h"
#include "reshard/format/paddle/metadata.h"

namespace {

using reshard::paddle::Flavour;
using reshard::paddle::Metadata;

/// Fills in what old releases leave out, so that it can be written.
void Complete(Metadata& metadata) {
  for (auto& tensor : metadata.tensors) {
    tensor.dtype = tensor.dtype.value_or(reshard::DType::kUint8);
    tensor.shape = tensor.shape.value_or(reshard::Shape{});
    for (const auto& piece : tensor.pieces) {
      RESHARD_CHECK(piece.file < metadata.files.size());
      RESHARD_CHECK(piece.global_offset.size() == piece.local_shape.size());
      RESHARD_CHECK(!piece.flat || piece.flat->end <= reshard::NumElements(piece.local_shape));
    }
    // Copies of a piece whose main copy is missing have no description of their own.
    std::erase_if(tensor.pieces, [](const auto& piece) { return piece.replica != 0; });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  reshard::MemorySource source({reinterpret_cast<const std::byte*>(data), size});
  auto metadata = reshard::paddle::DecodeMetadata(source);
  if (!metadata.ok()) {
    return 0;
  }
  Complete(*metadata);
  const reshard::Bytes bytes = reshard::paddle::EncodeMetadata(*metadata, Flavour::kFlex);
  reshard::MemorySource encoded(bytes);
  const auto again = reshard::paddle::DecodeMetadata(encoded);
  RESHARD_CHECK(again.ok());
  RESHARD_CHECK(again->tensors.size() == metadata->tensors.size());
  RESHARD_CHECK(again->flat_mapping == metadata->flat_mapping);
  for (std::size_t t = 0; t < again->tensors.size(); ++t) {
    RESHARD_CHECK(again->tensors[t].key == metadata->tensors[t].key);
    RESHARD_CHECK(again->tensors[t].pieces.size() == metadata->tensors[t].pieces.size());
  }
  return 0;
}
