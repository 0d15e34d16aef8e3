#pragma once

// What one rank tells the coordinator of a save: its tensors (key, dtype, global shape, boxes) and
// its objects. The bytes travel between ranks of one job only; they are no file format.

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/base/bytes.h"
#include "reshard/base/result.h"
#include "reshard/catalog/flatten.h"
#include "reshard/catalog/value.h"
#include "reshard/tensor/box.h"

namespace reshard {

/// One tensor of one rank.
struct TensorDescription {
  std::string key;
  Bytes path;  ///< StoredPath
  DType dtype = DType::kUint8;
  Shape shape;
  std::uint32_t same_as =
      0;                   ///< Index of the first tensor of this rank that lies in the same memory
                           ///< with the same boxes and strides; its own index when none does.
  std::vector<Box> boxes;  ///< Non-empty boxes this rank holds.
};

/// One object of one rank.
struct ObjectDescription {
  std::string key;
  Bytes path;
  bool per_rank = false;
  Bytes value;  ///< EncodeObject
};

/// Everything that one rank has.
struct StateDescription {
  std::vector<TensorDescription> tensors;  ///< Sorted by key.
  std::vector<ObjectDescription> objects;  ///< Sorted by key.
};

/// Checks and describes flattened leaves. Errors: kInvalidArgument BAD_VIEW, BOX_OUT_OF_SHAPE,
/// SHAPE_OVERFLOW, SHARD_SHAPE (view and box differ), LOCAL_OVERLAP (two boxes of one rank
/// overlap), DTYPE_MISMATCH (view and tensor), SINK_ON_SAVE; each names the key. A shard with a
/// source needs no view; sources of equal, non-null `owner` give the same bytes.
Result<StateDescription> Describe(const std::vector<FlatEntry>& leaves);

Bytes EncodeTensorDescriptions(const std::vector<TensorDescription>& tensors);
Bytes EncodeObjectDescriptions(const std::vector<ObjectDescription>& objects);

/// Errors: kInternal BAD_MESSAGE.
Result<std::vector<ObjectDescription>> DecodeObjectDescriptions(ByteSpan bytes);

}  // namespace reshard
