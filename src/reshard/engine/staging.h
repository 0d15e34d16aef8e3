#pragma once

// Staged targets: shards that take their bytes through a sink, or in another dtype than the stored
// one.

#include <cstdint>

#include "reshard/base/result.h"
#include "reshard/catalog/catalog.h"
#include "reshard/catalog/value.h"
#include "reshard/tensor/cast.h"

namespace reshard {

/// Hands over one staged box: `bytes` are its elements in the stored dtype, dense and row-major.
/// Casts them to the wanted dtype if that differs, then copies them into the shard's memory or
/// gives them to its sink in runs that are contiguous in the shard. Errors: those of the sink and
/// of CastElements; kCancelled CALLBACK when the sink throws.
Status DeliverStaged(const TensorShard& shard, DType wanted, DType stored, const Box& box,
                     ByteSpan bytes, CastCounts& counts);

}  // namespace reshard
