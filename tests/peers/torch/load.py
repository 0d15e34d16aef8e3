"""One rank of a job in which real torch loads directories and compares: load.py JOBS.json OUT

JOBS.json: a list of {"dir", "spec", "layouts"}. Layouts of the targets: plain (ordinary tensors),
rep, row (axis 0), col (last axis) as DTensors, grid (a 2 x 2 mesh, 4 ranks), torch_save (one rank:
dcp_to_torch_save, then torch.load). Appends a line {"job", "layout", "tensors", "bad", "seconds"} to
OUT/rank<r>.jsonl for each load.
"""
import json
import pathlib
import sys
import time

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import cases
import real_torch


def cut_of(layout, shape):
    """Per mesh axis the tensor axis that it cuts, or None; nothing for an ordinary tensor."""
    if layout == "plain":
        return None
    wanted = {"rep": (None,), "row": (0,), "col": (len(shape) - 1,), "grid": (0, 1)}[layout]
    return tuple(axis if axis is not None and axis < len(shape) and shape else None for axis in wanted)


def dense_of(entry):
    return real_torch.whole(entry["dtype"], entry["shape"], entry["seed"])


def targets(spec, layout, mesh):
    """Zeroed tensors in one layout, other values as 0."""
    state = {}
    for entry in spec["tensors"]:
        zero = torch.zeros(entry["shape"], dtype=torch.uint8).to(getattr(torch, entry["dtype"]))
        cut = cut_of(layout, entry["shape"])
        real_torch.put(state, entry["path"], zero if cut is None else real_torch.distributed(zero, cut, mesh))
    for entry in spec.get("objects", []):
        real_torch.put(state, entry["path"], 0)
    return state


def by_torch_save(folder, out):
    file = out / "converted.pt"
    dcp_to_torch_save(folder, file)
    return torch.load(file, weights_only=True)


def differences(state, spec, layout, mesh):
    """{key: what is wrong}"""
    bad = {}
    for entry in spec["tensors"]:
        want = dense_of(entry)
        cut = None if layout == "torch_save" else cut_of(layout, entry["shape"])
        if cut is not None:
            want = real_torch.part_of(want, cut, mesh)
        got = real_torch.get(state, entry["path"])
        if got.dtype != want.dtype or real_torch.bytes_of(got) != real_torch.bytes_of(want):
            bad[cases.key(entry["path"])] = f"{got} instead of {want}"[:200]
    for entry in spec.get("objects", []):
        want, got = cases.plain(entry["value"]), real_torch.get(state, entry["path"])
        if type(got) is not type(want) or got != want:
            bad[cases.key(entry["path"])] = f"{got!r} instead of {want!r}"[:200]
    return bad


def load(job, layout, ranks, out):
    mesh = None if layout == "torch_save" else real_torch.mesh_of((2, 2) if layout == "grid" else (), ranks)
    if layout == "torch_save":
        state = by_torch_save(job["dir"], out)
    else:
        state = targets(job["spec"], layout, mesh)
        dcp.load(state, checkpoint_id=job["dir"])
    return differences(state, job["spec"], layout, mesh)


def main():
    jobs, out = json.loads(pathlib.Path(sys.argv[1]).read_text()), pathlib.Path(sys.argv[2])
    rank, ranks = real_torch.join()
    with open(out / f"rank{rank}.jsonl", "a", encoding="utf-8") as lines:
        for number, job in enumerate(jobs):
            for layout in job["layouts"]:
                print("load", job["dir"], layout, flush=True)
                begin = time.monotonic()
                bad = load(job, layout, ranks, out)
                line = {"job": number, "layout": layout, "tensors": len(job["spec"]["tensors"]), "bad": bad,
                        "seconds": round(time.monotonic() - begin, 2)}
                lines.write(json.dumps(line) + "\n")
                lines.flush()
    real_torch.leave()


if __name__ == "__main__":
    main()
