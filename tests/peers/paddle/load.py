"""One rank of a job in which real Paddle loads directories and compares: load.py JOBS.json OUT

JOBS.json: a list of {"dir", "spec", "layouts", "options"}. Layouts of the targets: plain (ordinary
tensors), rep, row (axis 0), col (last axis), grid (a 2 x 2 mesh on the first two axes, 4 ranks).
Appends a line {"job", "layout", "tensors", "bad", "seconds"} to OUT/rank<r>.jsonl for each load.
"""
import json
import pathlib
import sys
import time

import numpy as np

import content
import real_paddle
from real_paddle import dist, paddle

# gloo cannot broadcast these: the process ends with code 255 and no message.
ONE_RANK_ONLY = ("int16", *content.COMPLEX, *content.FLOAT8)


def part(length, parts, index):
    """dist.Shard's rule: all parts as long as the first, the last ones shorter."""
    step = -(-length // parts)
    return min(length, index * step), min(length, (index + 1) * step)


def divides(length, parts, dtype):
    """Whether Paddle can cut so: never into an empty part, and some only into equal ones."""
    if length % parts == 0:
        return length > 0
    return (length > (parts - 1) * -(-length // parts) and dtype in content.EXACT
            and real_paddle.RELEASE >= (3, 0, 0))


class Targets:
    """Zero tensors in one layout, and which box of each tensor this rank holds."""

    def __init__(self, layout, rank, ranks):
        self.layout, self.rank = layout, rank
        self.mesh_shape = (2, 2) if layout == "grid" else (ranks,)
        names = ["a", "b"][:len(self.mesh_shape)]
        self.mesh = dist.ProcessMesh(np.arange(ranks).reshape(self.mesh_shape).tolist(), dim_names=names)

    def cut(self, shape, dtype):
        """Per mesh axis the tensor axis that it cuts, or None."""
        wanted = {"row": (0,), "col": (len(shape) - 1,), "grid": (0, 1)}.get(self.layout, ())
        if dtype in content.COMPLEX or not shape:
            wanted = ()
        fits = all(axis < len(shape) and divides(shape[axis], parts, dtype)
                   for axis, parts in zip(wanted, self.mesh_shape))
        return wanted if wanted and fits else (None,) * len(self.mesh_shape)

    def make(self, dtype, shape):
        """(target, box)"""
        zero = np.zeros(shape, dtype if dtype in content.EXACT else np.float32)
        if self.layout == "plain":
            return real_paddle.tensor(dtype, zero), tuple(slice(0, n) for n in shape)
        cut = self.cut(shape, dtype)
        box = [slice(0, n) for n in shape]
        places = np.unravel_index(self.rank, self.mesh_shape)
        for axis, parts, place in zip(cut, self.mesh_shape, places):
            if axis is not None:
                box[axis] = slice(*part(shape[axis], parts, int(place)))
        return real_paddle.distributed(dtype, zero, self.mesh, cut), tuple(box)


def differences(target, box, entry):
    """What is wrong with a loaded target, or ""."""
    want = content.stored(entry["dtype"], entry["shape"], entry["seed"])[box]
    got = np.array(real_paddle.local_part(target).numpy())
    if got.shape != want.shape:
        return f"shape {got.shape} instead of {want.shape}"
    if got.tobytes() == want.tobytes():
        return ""
    wrong = "of other size" if got.itemsize != want.itemsize else int((got != want).sum())
    return f"{wrong} of {want.size} elements wrong, {got.dtype}"


def load(job, layout, rank, ranks):
    """(number of tensors, {key: what is wrong})"""
    targets = Targets(layout, rank, ranks)
    state, boxes, entries = {}, {}, {}
    for entry in job["spec"]["tensors"]:
        if 0 in entry["shape"] or (ranks > 1 and entry["dtype"] in ONE_RANK_ONLY):
            continue
        key = ".".join(entry["path"])
        state[key], boxes[key] = targets.make(entry["dtype"], entry["shape"])
        entries[key] = entry
    dist.load_state_dict(state, job["dir"], **job.get("options", {}))
    found = {key: differences(state[key], boxes[key], entries[key]) for key in entries}
    return len(entries), {key: text for key, text in found.items() if text}


def main():
    jobs = json.loads(pathlib.Path(sys.argv[1]).read_text())
    rank, ranks = real_paddle.join()
    with open(pathlib.Path(sys.argv[2]) / f"rank{rank}.jsonl", "a", encoding="utf-8") as out:
        for number, job in enumerate(jobs):
            for layout in job["layouts"]:
                print("load", job["dir"], layout, flush=True)
                begin = time.monotonic()
                tensors, bad = load(job, layout, rank, ranks)
                line = {"job": number, "layout": layout, "tensors": tensors, "bad": bad,
                        "seconds": round(time.monotonic() - begin, 2)}
                out.write(json.dumps(line) + "\n")
                out.flush()
    print("done with", paddle.__version__, flush=True)


if __name__ == "__main__":
    main()
