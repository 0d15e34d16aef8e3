#!/usr/bin/env python3
"""Paddle's side of `reshard_bench paddle`: saves and loads the workload llm2g with a real PaddlePaddle on CPU.

Usage: paddle_llm2g.py save|load DIR --hidden H --ranks N [--layout row|column|whole]
       paddle_llm2g.py unpickle FILE

Starts the ranks itself and prints one line of JSON: the slowest rank's seconds of the call alone, the growth of its
peak memory during the call in bytes, and after a load whether every byte is right. The values are those of
llm2g.py.
"""
import argparse
import json
import os
import time

from llm2g import array_part, axis_of, launch, peak_memory, reset_peak_memory, tensors

def make_state(options, rank, fill):
    import numpy as np
    import paddle
    import paddle.distributed as dist

    mesh = dist.ProcessMesh(list(range(options.ranks)), dim_names=["x"])
    state = {}
    for number, key, bf16, shape in tensors(options.hidden):
        if fill:
            local = array_part(np, number, bf16, shape, options.layout, rank, options.ranks)
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
        want = array_part(np, number, bf16, shape, options.layout, rank, options.ranks)
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


def environment(ranks):
    def of_rank(rank, ports):
        if ranks == 1:
            return {"GLOG_minloglevel": "2"}
        endpoints = [f"127.0.0.1:{port}" for port in ports]
        return {"GLOG_minloglevel": "2", "PADDLE_TRAINER_ID": str(rank), "PADDLE_TRAINERS_NUM": str(ranks),
                "PADDLE_DISTRI_BACKEND": "gloo", "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
                "PADDLE_CURRENT_ENDPOINT": endpoints[rank]}

    return of_rank


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
        launch(options.ranks, environment(options.ranks))


if __name__ == "__main__":
    main()
