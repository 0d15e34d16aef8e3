"""The workload llm2g for the peers of reshard_bench: names, shapes and values (as in ../llm2g.cc), memory, ranks."""
import json
import os
import pathlib
import socket
import subprocess
import sys

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


def array_part(np, number, bf16, shape, layout, rank, ranks):
    """What `rank` holds of a tensor, as numpy."""
    return part(values(np, number, bf16, shape), layout, rank, ranks)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def launch(ranks, environment):
    """Starts this script once per rank with environment(rank, ports) set and prints what the slowest says."""
    ports = free_ports(ranks)
    processes = []
    for rank in range(ranks):
        env = dict(os.environ, OMP_NUM_THREADS="1", RESHARD_BENCH_RANK=str(rank), **environment(rank, ports))
        processes.append(subprocess.Popen([sys.executable, *sys.argv], env=env, text=True,
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    results = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=600)
            lines = [line for line in out.splitlines() if line.startswith("{")]
            if process.returncode != 0 or not lines:
                sys.exit(f"a rank failed ({process.returncode}):\n{err[-2000:]}")
            results.append(json.loads(lines[-1]))
    finally:
        for process in processes:
            process.kill()
    print(json.dumps({"seconds": max(r["seconds"] for r in results),
                      "extra_bytes": max(r["extra_bytes"] for r in results),
                      "right": all(r["right"] for r in results)}))
