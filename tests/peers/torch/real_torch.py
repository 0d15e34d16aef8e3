"""Real torch on one CPU rank: tensors with known bytes, DTensors, nested state dicts."""
import os

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

import content

RELEASE = tuple(int(x) for x in torch.__version__.split("+")[0].split("."))


def join():
    """Enters the job that launch.py started; (rank, number of ranks)."""
    torch.set_num_threads(1)
    ranks = int(os.environ["WORLD_SIZE"])
    if ranks > 1:
        dist.init_process_group("gloo")
    return int(os.environ["RANK"]), ranks


def leave():
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def mesh_of(shape, ranks):
    return init_device_mesh("cpu", tuple(shape or (ranks,))) if ranks > 1 else None


def whole(dtype, shape, seed):
    """The tensor of the formula, dense."""
    if 0 in shape:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    bits = np.ascontiguousarray(content.stored(dtype, tuple(shape), seed))
    flat = torch.frombuffer(bytearray(bits.tobytes()), dtype=torch.uint8)
    return flat.view(getattr(torch, dtype)).reshape(tuple(shape))


def in_memory(dense, how):
    """The same values, lying otherwise in memory."""
    if how == "transposed":
        return dense.t().contiguous().t()
    if how == "channels_last":
        return dense.to(memory_format=torch.channels_last)
    if how == "sliced":
        larger = torch.zeros([n + 3 for n in dense.shape], dtype=dense.dtype)
        view = larger[tuple(slice(2, 2 + n) for n in dense.shape)]
        view.copy_(dense)
        return view
    return dense


def own_box(shape, cut, mesh):
    """Offset and extent of this rank's part: each mesh axis cuts what the ones before it left."""
    offset, extent = [0] * len(shape), list(shape)
    for axis, (parts, place) in zip(cut, zip(mesh.shape, mesh.get_coordinate())):
        if axis is not None:
            step = -(-extent[axis] // parts)
            begin = min(extent[axis], place * step)
            offset[axis] += begin
            extent[axis] = min(extent[axis], begin + step) - begin
    return offset, extent


def part_of(dense, cut, mesh):
    offset, extent = own_box(dense.shape, cut, mesh)
    return dense[tuple(slice(o, o + n) for o, n in zip(offset, extent))].clone()


def distributed(dense, cut, mesh):
    placements = [Replicate() if axis is None else Shard(axis) for axis in cut]
    return DTensor.from_local(part_of(dense, cut, mesh), mesh, placements, run_check=False, shape=dense.shape,
                              stride=dense.stride())


def bytes_of(tensor):
    """The elements of this rank's part, dense and row-major."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def put(state, path, value):
    """Sets a leaf of a nested state dict; lists grow."""
    node = state
    for part, following in zip(path, [*path[1:], None]):
        new = value if following is None else {} if isinstance(following, str) else []
        if isinstance(node, list):
            if part == len(node):
                node.append(new)
        elif following is None or part not in node:
            node[part] = new
        node = node[part]


def get(state, path):
    for part in path:
        state = state[part]
    return state
