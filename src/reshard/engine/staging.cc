#include "reshard/engine/staging.h"

#include "reshard/engine/message.h"
#include "reshard/tensor/strided.h"

namespace reshard {
namespace {

/// Gives the box to the sink in pieces that are contiguous in the shard.
Status DeliverToSink(const TensorShard& shard, DType dtype, const Box& box, ByteSpan bytes) {
  const std::uint32_t unit = Info(dtype).unit_bytes;
  const Box units = ToUnits(box, dtype);
  const Box whole = ToUnits(shard.box, dtype);
  const std::vector<std::int64_t> strides = DenseStrideBytes(whole.extent, unit);
  const CopyNest nest =
      MakeCopyNest(units.extent, unit, DenseStrideBytes(units.extent, unit), strides);
  std::uint64_t base = 0;
  for (std::size_t a = 0; a < strides.size(); ++a) {
    base += (units.offset[a] - whole.offset[a]) * static_cast<std::uint64_t>(strides[a]);
  }
  for (std::uint64_t run = 0; run < nest.num_runs(); ++run) {
    std::uint64_t offset = base;
    std::uint64_t rest = run;
    for (auto loop = nest.loops.rbegin(); loop != nest.loops.rend(); ++loop) {
      offset += rest % loop->count * static_cast<std::uint64_t>(loop->dst_stride);
      rest /= loop->count;
    }
    RESHARD_TRY(CallGuarded("a tensor sink", [&] {
      return shard.sink(offset, bytes.subspan(run * nest.run_bytes, nest.run_bytes));
    }));
  }
  return OkStatus();
}

void DeliverToView(const TensorShard& shard, const Box& box, ByteSpan bytes) {
  const DType dtype = shard.view.dtype;
  const std::uint32_t unit = Info(dtype).unit_bytes;
  const Box units = ToUnits(box, dtype);
  const Box whole = ToUnits(shard.box, dtype);
  const std::vector<std::int64_t> strides = StrideBytes(shard.view);
  std::byte* base = shard.view.data;
  for (std::size_t a = 0; a < strides.size(); ++a) {
    base += static_cast<std::int64_t>(units.offset[a] - whole.offset[a]) * strides[a];
  }
  RunCopy(MakeCopyNest(units.extent, unit, DenseStrideBytes(units.extent, unit), strides),
          bytes.data(), base);
}

}  // namespace

Status DeliverStaged(const TensorShard& shard, DType wanted, DType stored, const Box& box,
                     ByteSpan bytes, CastCounts& counts) {
  Bytes cast;
  if (wanted != stored) {
    cast.resize(NumBytes(box, wanted));
    RESHARD_TRY(CastElements(stored, bytes, wanted, cast, counts));
    bytes = cast;
  }
  if (shard.sink) {
    return DeliverToSink(shard, wanted, box, bytes);
  }
  DeliverToView(shard, box, bytes);
  return OkStatus();
}

}  // namespace reshard
