"""One rank of a job in which real Paddle saves cases: save.py OUT [--golden] [--only NAME]

Writes OUT/<case>/ for every case (cases.py) of this number of ranks that the release can save.
"""
import argparse
import pathlib

import cases
import content
import real_paddle
from real_paddle import dist, paddle


def value_of(t, salt, rank, mesh):
    """What this rank's state dict holds for a tensor; None: nothing."""
    array = content.values(t.dtype, t.shape, cases.seed(t.key, salt))
    if t.flat or t.blocks:
        part = (t.flat or t.blocks)[rank]
        return part and real_paddle.sharded_weight(t, array, part[0], part[1], part[2:] if t.flat else None)
    if t.cut is not None:
        own = mesh if t.on is None else dist.ProcessMesh([t.on], dim_names=["x"])
        return real_paddle.distributed(t.dtype, array, own, t.cut)
    if t.on is not None and t.on != rank:
        return None
    made = real_paddle.tensor(t.dtype, array)
    if t.named:
        made.name = t.path[-1]
    return made


def state_dict(tensors, salt, rank, mesh, nested=real_paddle.RELEASE >= (3, 0, 0)):
    """Nested by path; flat for save_state_dict of 2.6, which takes nothing else."""
    root = {}
    for t in tensors:
        value = value_of(t, salt, rank, mesh)
        if value is None:
            continue
        if not nested:
            root[t.key] = value
            continue
        node = root
        for part in t.path[:-1]:
            node = node.setdefault(part, {})
        node[t.path[-1]] = value
    return root


def save_file(case, out):
    """One file of paddle.save, with a value that is no tensor where a state dict has them."""
    (out / case.name).mkdir(parents=True)
    (_, salt, tensors), = case.steps
    state = state_dict(tensors, salt, 0, None, nested=True)
    if "LR_Scheduler" in state:
        state["LR_Scheduler"]["last_epoch"] = 3
    paddle.save(state, str(out / case.name / case.file))


def save(case, out, rank):
    if len(case.mesh) == 2:
        rows, columns = case.mesh
        mesh = dist.ProcessMesh([[r * columns + c for c in range(columns)] for r in range(rows)],
                                dim_names=["a", "b"])
    else:
        mesh = dist.ProcessMesh(list(range(case.ranks)), dim_names=["x"])
    for uid, salt, tensors in case.steps:
        options = dict(case.options)
        if uid is not None and real_paddle.RELEASE >= (3, 0, 0):
            options["unique_id"] = uid
        dist.save_state_dict(state_dict(tensors, salt, rank, mesh), str(out / case.name), **options)
        if case.ranks > 1:
            dist.barrier()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--golden", action="store_true")
    parser.add_argument("--only")
    options = parser.parse_args()
    rank, ranks = real_paddle.join()
    for case in cases.paddle_cases():
        if (case.ranks == ranks and case.runs_on(real_paddle.RELEASE)
                and (case.golden or not options.golden) and options.only in (None, case.name)):
            print("case", case.name, flush=True)
            if case.file:
                save_file(case, options.out)
            else:
                save(case, options.out, rank)


if __name__ == "__main__":
    main()
