"""One rank of a job in which real torch saves cases: save.py OUT

Writes OUT/<case>/ for every case (cases.py) of this number of ranks.
"""
import pathlib
import sys

import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import cases
import real_torch


def state_dict(case, mesh):
    state = {}
    for t in case.tensors:
        dense = real_torch.whole(t.dtype, t.shape, cases.seed(cases.key(t.path), case.salt))
        if t.cut is not None:
            value = real_torch.distributed(dense, t.cut, mesh)
        else:
            value = real_torch.in_memory(dense, t.memory)
        real_torch.put(state, t.path, value)
    for path, value in case.objects:
        real_torch.put(state, path, cases.plain(value))
    return state


def main():
    out = pathlib.Path(sys.argv[1])
    rank, ranks = real_torch.join()
    for case in cases.torch_cases(real_torch.RELEASE):
        if case.ranks != ranks:
            continue
        print("case", case.name, flush=True)
        state = state_dict(case, real_torch.mesh_of(case.mesh, ranks))
        dcp.save(state, storage_writer=dcp.FileSystemWriter(out / case.name, **dict(case.writer)))
        if ranks > 1:
            dist.barrier()
    real_torch.leave()


if __name__ == "__main__":
    main()
