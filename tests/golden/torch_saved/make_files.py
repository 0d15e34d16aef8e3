#!/usr/bin/env python3
"""Writes the files of this folder with the torch that runs it: make_files.py DIR. Committed: torch 2.13.0 on CPU."""
import argparse
import json
import pathlib
import sys
import warnings
from collections import OrderedDict

import torch


def state():
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    weights = OrderedDict(
        w=base, w_again=base, rows=base[1:3], cols=base[:, 1:4], t=base.t(), step=torch.tensor(7),
        bf=torch.arange(5, dtype=torch.bfloat16), expand=torch.tensor([1.5, 2.5]).reshape(1, 2).expand(3, 2),
        empty=torch.empty(0, 3), flag=torch.tensor([True, False]),
        conv=torch.arange(120, dtype=torch.int16).reshape(2, 3, 4, 5).contiguous(memory_format=torch.channels_last))
    optimizer = {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.ones(2, 2)}, 1: {"exp_avg": torch.zeros(3)}},
                 "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0, 1]}]}
    return {"state_dict": weights, "optimizer": optimizer, "epoch": 3, "name": "run \u00e9", "none": None, "yes": True,
            "hyper": argparse.Namespace(a=1, b="x"), "lists": [1, 2, {"k": torch.tensor([9, 8])}],
            "dtype": torch.float16, "raw": b"\x00\xff\x80", "size": torch.Size([2, 3]),
            "param": torch.nn.Parameter(torch.full((2,), 4.0))}


def dtypes():
    small = torch.arange(4, dtype=torch.float32)
    return {"f8": small.to(torch.float8_e4m3fn), "f8_5": small.to(torch.float8_e5m2), "u16": small.to(torch.uint16),
            "u32": small.to(torch.uint32), "u64": small.to(torch.uint64), "f64": small.double(), "f16": small.half(),
            "i8": small.to(torch.int8), "u8": small.to(torch.uint8), "i32": small.int(), "i64": small.long(),
            "c64": torch.tensor([1 + 2j]), "c128": torch.tensor([1 + 2j], dtype=torch.complex128),
            "c32": torch.tensor([1 + 2j]).to(torch.complex32), "lazy": torch.tensor([1 + 2j]).conj()}


class Marked(torch.Tensor):
    pass


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(6, dtype=torch.float32).reshape(2, 3))


def odd():
    """Tensors with more to them than elements, tensors that are not dense, and integers beyond 64 bits."""
    noted, tagged = torch.arange(4), torch.nn.Parameter(torch.arange(2, dtype=torch.float32))
    noted.note, tagged.tag = 7, "x"
    small = torch.arange(4, dtype=torch.float32)
    return {"noted": noted, "tagged": tagged, "buffer": torch.nn.Buffer(torch.ones(2)), "marked": small.as_subclass(Marked),
            "quantized": torch.quantize_per_tensor(small, 0.5, 1, torch.qint8),
            "quantized32": torch.quantize_per_tensor(small, 0.5, 1, torch.qint32),
            "sparse": torch.eye(2).to_sparse(), "csr": torch.eye(2).to_sparse_csr(), "meta": torch.ones(2, device="meta"),
            "f4": torch.zeros(2, 3, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
            "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "neg": torch.tensor([1 + 2j]).conj().imag,
            "big": 2**70, "rng": {"state": -(2**127), "has": 1}, "seed": 2**63, "last": torch.arange(3)}


ODD = ("quantized", "quantized32", "sparse", "csr", "meta", "f4", "nested", "neg")  # that are not read


def leaves(value, path=""):
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for key, item in enumerate(value):
            yield from leaves(item, f"{path}.{key}" if path else str(key))


def described(tensor):
    tensor = tensor.detach().resolve_conj().contiguous()
    data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), "hex": data.hex()}


def main():
    warnings.simplefilter("ignore")
    folder = pathlib.Path(sys.argv[1])
    values = {"new.pt": state(), "old.pt": state(), "dtypes.pt": dtypes(), "list.pt": [torch.arange(3), torch.arange(2)],
              "bare.pt": torch.arange(3), "module.pt": torch.nn.Linear(2, 3), "odd.pt": odd(), "odd-old.pt": odd(),
              "module-old.pt": {"model": Tiny(), "epoch": 3}}
    torch.manual_seed(0)
    expected = {}
    for name, value in values.items():
        torch.save(value, folder / name, _use_new_zipfile_serialization="old" not in name)
        flat = value.state_dict() if name == "module.pt" else value
        flat = value["model"].state_dict() if name == "module-old.pt" else flat
        expected[name] = {key: described(tensor) for key, tensor in leaves(flat) if name[:3] != "odd" or key not in ODD}
    torch.jit.script(torch.nn.Linear(2, 3)).save(str(folder / "script.pt"))
    (folder / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
