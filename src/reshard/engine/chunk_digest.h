#pragma once

// The part that a chunk's bytes contribute to its tensor's digest, computed piece by piece.
//
// Source: docs/format/checksums.md.

#include <cstdint>
#include <span>
#include <vector>

#include "reshard/base/bytes.h"
#include "reshard/codec/crc64.h"
#include "reshard/tensor/box.h"

namespace reshard {

/// Where the bytes of a box, laid out dense and row-major, lie in the row-major bytes of the
/// tensor.
class ChunkDigest {
 public:
  /// `box` must have passed CheckBox for `shape`.
  ChunkDigest(BoxView box, std::span<const std::uint64_t> shape, DType dtype);

  /// Whether the box is one contiguous piece of the tensor.
  bool contiguous() const { return loops_.empty(); }

  /// Linear part, shifted to the end of the tensor, of the box's bytes [window.offset,
  /// window.end()), which `data` holds. The parts of all windows of all boxes of a tensor XOR to
  /// the linear part of the tensor.
  std::uint64_t Part(ByteRange window, const std::byte* data) const;

  /// The same for a contiguous box from the linear part of the window's bytes alone.
  std::uint64_t PartFromLinear(ByteRange window, std::uint64_t linear) const;

 private:
  std::uint64_t Walk(std::size_t level, std::uint64_t begin, std::uint64_t end,
                     const std::byte* data, std::uint64_t string_base) const;

  std::vector<Crc64Loop> loops_;  // outermost first; data strides of the dense box
  std::uint64_t run_bytes_ = 0;
  std::uint64_t string_begin_ = 0;   // of the box's first byte
  std::uint64_t string_bytes_ = 0;   // of the whole tensor
  std::vector<std::uint64_t> span_;  // per level: string bytes from its first to its last byte
};

}  // namespace reshard
