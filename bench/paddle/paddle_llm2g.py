#!/usr/bin/env python3
"""Paddle's side of `reshard_bench paddle`: saves and loads the workload llm2g with a real PaddlePaddle on CPU.

Usage: paddle_llm2g.py save|load DIR --hidden H --ranks N [--layout row|column|whole]
       paddle_llm2g.py unpickle FILE

Starts the ranks itself and prints one line of JSON: the slowest rank's seconds of the call alone, the growth of its
peak memory during the call in bytes, and after a load whether every byte is right. The values are those of
workload_paddle.cc.
"""
import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

LAYERS = 24
MULTIPLIER = 2654435761
STEP = 40503
MASK = 0xBFFFBFFF  # clears a bit of every exponent: no NaN in float32 or bfloat16


def shapes(hidden):
    """(name, shape) of the parameters."""
    yield "embed.weight", (48 * hidden, hidden)
    for layer in range(LAYERS):
        yield f"layers.{layer}.attn.qkv.weight", (3 * hidden, hidden)
        yield f"layers.{layer}.attn.out.weight", (hidden, hidden)
        yield f"layers.{layer}.mlp.up.weight", (4 * hidden, hidden)
        yield f"layers.{layer}.mlp.down.weight", (hidden, 4 * hidden)
        yield f"layers.{layer}.ln1.weight", (hidden,)
        yield f"layers.{layer}.ln2.weight", (hidden,)
    yield "norm.weight", (hidden,)


def tensors(hidden):
    """(number, key, is_bfloat16, shape) of the state."""
    number = 0
    for group in ("model", "master", "exp_avg", "exp_avg_sq"):
        for name, shape in shapes(hidden):
            yield number, f"{group}.{name}", group == "model", shape
            number += 1


def values(np, number, bf16, shape):
    """The whole tensor as numpy, bfloat16 as uint16."""
    count = int(np.prod(shape))
    words = count // 2 if bf16 else count
    stream = np.arange(words, dtype=np.uint32) * np.uint32(MULTIPLIER) + np.uint32(number * STEP)
    stream &= np.uint32(MASK)
    return stream.view(np.uint16 if bf16 else np.float32).reshape(shape)


def peak_memory():
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def reset_peak_memory():
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def axis_of(layout, shape):
    if layout == "whole" or len(shape) == 1:
        return None
    return 0 if layout == "row" else 1


def part(array, layout, rank, ranks):
    axis = axis_of(layout, array.shape)
    if axis is None or ranks == 1:
        return array
    size = array.shape[axis] // ranks
    cut = [slice(None)] * array.ndim
    cut[axis] = slice(rank * size, (rank + 1) * size)
    return array[tuple(cut)].copy()


def make_state(options, rank, fill):
    import numpy as np
    import paddle
    import paddle.distributed as dist

    mesh = dist.ProcessMesh(list(range(options.ranks)), dim_names=["x"])
    state = {}
    for number, key, bf16, shape in tensors(options.hidden):
        if fill:
            local = part(values(np, number, bf16, shape), options.layout, rank, options.ranks)
        else:
            axis = axis_of(options.layout, shape)
            local_shape = list(shape)
            if axis is not None:
                local_shape[axis] //= options.ranks
            local = np.full(local_shape, 1, np.uint16 if bf16 else np.float32)
        tensor = paddle.to_tensor(local, dtype="bfloat16" if bf16 else "float32")
        if options.ranks > 1:
            axis = axis_of(options.layout, shape)
            placement = dist.Replicate() if axis is None else dist.Shard(axis)
            tensor = dist.auto_parallel.api.dtensor_from_local(tensor, mesh, [placement])
        state[key] = tensor
    return state


def is_right(options, rank, state):
    import numpy as np

    for number, key, bf16, shape in tensors(options.hidden):
        tensor = state[key]
        if options.ranks > 1:
            tensor = tensor._local_value()
        want = part(values(np, number, bf16, shape), options.layout, rank, options.ranks)
        kind = np.uint16 if bf16 else np.uint32
        if not np.array_equal(tensor.numpy().view(kind), want.view(kind)):
            return False
    return True


def run_rank(options):
    import paddle
    import paddle.distributed as dist

    rank = int(os.environ.get("PADDLE_TRAINER_ID", "0"))
    paddle.Tensor.cuda = lambda self, *args, **kwargs: self
    if options.ranks > 1:
        dist.init_parallel_env()
    state = make_state(options, rank, fill=options.work == "save")
    if options.ranks > 1:
        dist.barrier()
    reset_peak_memory()
    before = peak_memory()
    begin = time.perf_counter()
    if options.work == "save":
        dist.save_state_dict(state, options.path)
    else:
        dist.load_state_dict(state, options.path)
    seconds = time.perf_counter() - begin
    extra = peak_memory() - before
    right = options.work == "save" or is_right(options, rank, state)
    print(json.dumps({"seconds": seconds, "extra_bytes": extra, "right": right}), flush=True)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def launch(options):
    ports = free_ports(options.ranks)
    endpoints = [f"127.0.0.1:{port}" for port in ports]
    processes = []
    for rank in range(options.ranks):
        env = dict(os.environ, OMP_NUM_THREADS="1", GLOG_minloglevel="2", RESHARD_BENCH_RANK="1")
        if options.ranks > 1:
            env.update(PADDLE_TRAINER_ID=str(rank), PADDLE_TRAINERS_NUM=str(options.ranks),
                       PADDLE_DISTRI_BACKEND="gloo", PADDLE_TRAINER_ENDPOINTS=",".join(endpoints),
                       PADDLE_CURRENT_ENDPOINT=endpoints[rank])
        processes.append(subprocess.Popen([sys.executable, *sys.argv], env=env, text=True,
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    results = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=600)
            lines = [line for line in out.splitlines() if line.startswith("{")]
            if process.returncode != 0 or not lines:
                sys.exit(f"Paddle failed ({process.returncode}):\n{err[-2000:]}")
            results.append(json.loads(lines[-1]))
    finally:
        for process in processes:
            process.kill()
    print(json.dumps({"seconds": max(r["seconds"] for r in results),
                      "extra_bytes": max(r["extra_bytes"] for r in results),
                      "right": all(r["right"] for r in results)}))


def unpickle(path):
    """What Paddle does to open its metadata."""
    import pickle

    import paddle.distributed  # noqa: F401  the classes that the pickle names

    reset_peak_memory()
    before = peak_memory()
    begin = time.perf_counter()
    with open(path, "rb") as file:
        pickle.load(file, encoding="latin1")
    print(json.dumps({"seconds": time.perf_counter() - begin,
                      "extra_bytes": peak_memory() - before, "right": True}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=["save", "load", "unpickle"])
    parser.add_argument("path")
    parser.add_argument("--hidden", type=int, default=672)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layout", choices=["row", "column", "whole"], default="row")
    options = parser.parse_args()
    if options.work == "unpickle":
        unpickle(options.path)
    elif os.environ.get("RESHARD_BENCH_RANK"):
        run_rank(options)
    else:
        launch(options)


if __name__ == "__main__":
    main()
