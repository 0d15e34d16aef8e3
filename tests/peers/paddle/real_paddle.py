"""Real Paddle on one CPU rank: the patches that it needs there, and tensors with known values."""
import numpy as np
import paddle
import paddle.distributed as dist

import content

RELEASE = tuple(int(x) for x in paddle.__version__.split(".")[:3])


def join():
    """Enters the job that launch.py started; (rank, number of ranks)."""
    make_cpu_work()
    if dist.get_world_size() > 1:
        dist.init_parallel_env()
    return dist.get_rank(), dist.get_world_size()


def make_cpu_work():
    """load_state_dict moves CPU tensors to a GPU that is not there; 2.6 has two more faults."""
    paddle.Tensor.cuda = lambda self, *args, **options: self
    if RELEASE >= (3, 0, 0):
        return
    # A debug message prints all targets, which gathers bfloat16: there is no such kernel on CPU.
    paddle.Tensor.__repr__ = paddle.Tensor.__str__ = lambda self: "tensor"
    # Strided slices are broadcast as if they were contiguous: column shards arrive wrong.
    plain_broadcast = dist.broadcast

    def broadcast(tensor, src, group=None, sync_op=True):
        if tensor.is_contiguous():
            return plain_broadcast(tensor, src, group, sync_op)
        copy = paddle.assign(tensor)  # contiguous() would cut its tie to the tensor
        plain_broadcast(copy, src, group, sync_op)
        paddle.assign(copy, tensor)
        return None
    dist.broadcast = broadcast


def tensor(dtype, array):
    """An ordinary tensor; the dtypes that numpy lacks come as float32, which holds their values."""
    made = paddle.to_tensor(array)
    return made if str(made.dtype).endswith("." + dtype) else made.astype(dtype)


def distributed(dtype, array, mesh, cut):
    """A distributed tensor. There are no CPU kernels that cut small floats: cut float32, then cast."""
    placements = [dist.Replicate() if axis is None else dist.Shard(axis) for axis in cut]
    direct = dtype in content.EXACT
    whole = paddle.to_tensor(array if direct else array.astype(np.float32))
    made = dist.shard_tensor(whole, mesh, placements)
    return made if direct else made.astype(dtype)


def sharded_weight(t, array, offset, shape, flat=None):
    """A block of a tensor given by hand (3.2 and later); `flat`: a range of its elements."""
    from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeight
    block = np.ascontiguousarray(array[tuple(slice(o, o + n) for o, n in zip(offset, shape))])
    if flat:
        block = block.ravel()[flat[0]:flat[1]].copy()
    options = {"is_flattened": True, "flattened_range": slice(*flat)} if flat else {}
    return ShardedWeight(key=t.key, local_tensor=tensor(t.dtype, block), local_shape=shape,
                         global_shape=t.shape, global_offset=offset, **options)


def local_part(value):
    """What this rank holds of a loaded target."""
    if hasattr(value, "local_tensor"):
        return value.local_tensor
    return value._local_value() if value.is_dist() else value
