#!/usr/bin/env python3
"""PyTorch's and safetensors' side of `reshard_bench torch`: the workload llm2g with the real packages on CPU.

Usage: torch_llm2g.py save|load DIR --hidden H --ranks N [--layout row|column|whole]     torch.distributed.checkpoint
       torch_llm2g.py save-row DIR              one float32 tensor of (16384, 4096)
       torch_llm2g.py to-safetensors DIR FILE   dcp_to_torch_save's way, then safetensors: a DCP checkpoint as one file
       torch_llm2g.py save-hf DIR --hidden H    sharded safetensors of 2 ranks, by torch's Hugging Face writer
       torch_llm2g.py consolidate DIR OUT       these into one file, with torch's own function, 2 threads
       torch_llm2g.py load-file FILE --hidden H safetensors' load_file, and a copy into tensors that exist

Starts the ranks itself and prints one line of JSON: the slowest rank's seconds of the call alone (to-safetensors: with
the imports, since it is a program), the growth of its peak memory during the call in bytes, and after a load whether
every byte is right. The values are those of llm2g.py.
"""
import time

STARTED = time.perf_counter()

import argparse
import json
import os
import pathlib

from llm2g import array_part, axis_of, launch, peak_memory, reset_peak_memory, tensors, values


class Measured:
    """Seconds and growth of the peak memory of a with block."""

    def __enter__(self):
        reset_peak_memory()
        self.before = peak_memory()
        self.begin = time.perf_counter()
        return self

    def __exit__(self, *_):
        self.seconds = time.perf_counter() - self.begin
        self.extra = peak_memory() - self.before

    def print(self, right=True, seconds=None):
        print(json.dumps({"seconds": seconds or self.seconds, "extra_bytes": self.extra, "right": right}), flush=True)


def to_torch(torch, array, bf16):
    tensor = torch.from_numpy(array.copy())
    return tensor.view(torch.bfloat16) if bf16 else tensor


def make_state(options, rank, fill):
    import numpy as np
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = init_device_mesh("cpu", (options.ranks,)) if options.ranks > 1 else None
    state = {}
    for number, key, bf16, shape in tensors(options.hidden):
        local = array_part(np, number, bf16, shape, options.layout, rank, options.ranks)
        tensor = to_torch(torch, local if fill else np.full_like(local, 1), bf16)
        if mesh is not None:
            axis = axis_of(options.layout, shape)
            placement = Replicate() if axis is None else Shard(axis)
            tensor = DTensor.from_local(tensor, mesh, [placement], run_check=False)
        state[key] = tensor
    return state


def is_right(options, rank, state):
    import numpy as np
    import torch

    for number, key, bf16, shape in tensors(options.hidden):
        tensor = state[key]
        tensor = tensor.to_local() if options.ranks > 1 else tensor
        want = array_part(np, number, bf16, shape, options.layout, rank, options.ranks)
        kind = torch.uint16 if bf16 else torch.uint32
        if not np.array_equal(tensor.contiguous().view(kind).numpy(), want.view(np.uint16 if bf16 else np.uint32)):
            return False
    return True


def run_rank(options):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    rank = int(os.environ["RESHARD_BENCH_RANK"])
    torch.set_num_threads(1)
    if options.ranks > 1:
        dist.init_process_group("gloo", rank=rank, world_size=options.ranks)
    saves = options.work != "load"
    state = make_state(options, rank, fill=saves)
    if options.ranks > 1:
        dist.barrier()
    with Measured() as measured:
        if options.work == "save":
            dcp.save(state, checkpoint_id=options.path, no_dist=options.ranks == 1)
        elif options.work == "save-hf":
            from torch.distributed.checkpoint import HuggingFaceStorageWriter

            dcp.save(state, storage_writer=HuggingFaceStorageWriter(options.path, save_distributed=True))
        else:
            dcp.load(state, checkpoint_id=options.path, no_dist=options.ranks == 1)
    measured.print(saves or is_right(options, rank, state))
    if options.ranks > 1:
        dist.destroy_process_group()


def save_row(options):
    import torch
    import torch.distributed.checkpoint as dcp

    state = {"w": torch.arange(16384 * 4096, dtype=torch.float32).reshape(16384, 4096)}
    with Measured() as measured:
        dcp.save(state, checkpoint_id=options.path, no_dist=True)
    measured.print()


def to_safetensors(options):
    with Measured() as measured:
        import torch
        from safetensors.torch import save_file
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

        temporary = options.out + ".pt"
        dcp_to_torch_save(options.path, temporary)
        state = torch.load(temporary, mmap=True)
        os.unlink(temporary)
        save_file(state, options.out)
    measured.print(seconds=time.perf_counter() - STARTED)


def consolidate(options):
    from safetensors import safe_open
    from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files

    keys = set()
    for file in pathlib.Path(options.path).glob("*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            keys.update(opened.keys())
    pathlib.Path(options.out).mkdir(parents=True, exist_ok=True)
    with Measured() as measured:
        consolidate_safetensors_files(options.path, options.out, dict.fromkeys(keys, 1), num_threads=2)
    measured.print()


def load_file(options):
    import numpy as np
    import torch
    from safetensors.torch import load_file as load

    target = {key: to_torch(torch, np.full_like(values(np, number, bf16, shape), 1), bf16)
              for number, key, bf16, shape in tensors(options.hidden)}
    load(options.path)  # warm
    with Measured() as measured:
        for key, tensor in load(options.path).items():
            target[key].copy_(tensor)
    options.layout, options.ranks = "whole", 1
    measured.print(is_right(options, 0, target))


def environment(rank, ports):
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports[0])}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=["save", "load", "save-row", "save-hf", "to-safetensors", "consolidate", "load-file"])
    parser.add_argument("path")
    parser.add_argument("out", nargs="?")
    parser.add_argument("--hidden", type=int, default=672)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layout", choices=["row", "column", "whole"], default="row")
    options = parser.parse_args()
    alone = {"save-row": save_row, "to-safetensors": to_safetensors, "consolidate": consolidate, "load-file": load_file}
    if options.work in alone:
        alone[options.work](options)
    elif "RESHARD_BENCH_RANK" in os.environ:
        run_rank(options)
    else:
        launch(options.ranks, environment)


if __name__ == "__main__":
    main()
