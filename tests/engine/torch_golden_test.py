#!/usr/bin/env python3
"""Reads tests/golden/torch_handmade as torch would, with the standard library alone, and compares every element.

Usage: torch_golden_test.py REPO_ROOT
"""
import codecs
import collections
import io
import pathlib
import pickle
import sys
import zipfile

from golden_pattern import elements

METADATA = "torch.distributed.checkpoint.metadata"
TENSORS = {  # key: (path, dtype, storage class, bytes per element, shape, salt)
    "layers.0.w": (("layers", 0, "w"), "float32", "FloatStorage", 4, (40, 30), 1),
    "layers.1.w": (("layers", 1, "w"), "bfloat16", "BFloat16Storage", 2, (2, 6), 2),
    "fp8": (("fp8",), "float8_e4m3fn", None, 1, (5, 2), 3),
    "u32": (("u32",), "uint32", None, 4, (6,), 4),
    "scalar": (("scalar",), "int64", "LongStorage", 8, (), 5),
    "tied": (("tied",), "float32", "FloatStorage", 4, (40, 30), 1),
    "none": (("none",), "float16", None, 2, (0, 3), 6),
}
OBJECTS = {"opt.5": (("opt", "5"), [1, -2.5, {"a": None, 7: True}]), "blob": (("blob",), b"\x00\xff")}


class Bag:
    """Takes attributes; equal ones are one dict key, as torch's frozen dataclasses are."""

    def __hash__(self):
        return hash(tuple(sorted(self.__dict__.items(), key=str)))

    def __eq__(self, other):
        return self.__dict__ == other.__dict__


class Properties:
    def __setstate__(self, state):
        dtype, layout, requires_grad, memory_format, pinned = state
        assert (layout, requires_grad, memory_format, pinned) == ("torch.strided", False, 0, False)
        self.dtype = dtype


class Reader(pickle.Unpickler):
    def __init__(self, file, names):
        super().__init__(file)
        self.names = names

    def find_class(self, module, name):
        return self.names[module, name]  # a KeyError for any other

    def persistent_load(self, pid):
        return pid


def metadata_names():
    names = {(METADATA, n): type(n, (Bag,), {}) for n in (
        "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "MetadataIndex")}
    names["torch.distributed.checkpoint.filesystem", "_StorageInfo"] = type("_StorageInfo", (Bag,), {})
    names.update({(METADATA, "TensorProperties"): Properties, ("torch", "Size"): tuple,
                  ("torch.serialization", "_get_layout"): str, (METADATA, "_MEM_FORMAT_ENCODING"): int})
    names.update({("torch", entry[1]): entry[1] for entry in TENSORS.values()})
    return names


def record_names():
    names = {("torch._utils", f"_rebuild_tensor_{v}"): lambda *args, v=v: (v, *args) for v in ("v2", "v3")}
    names.update({("torch", entry[1]): entry[1] for entry in TENSORS.values()})
    names.update({("torch", entry[2]): entry[2] for entry in TENSORS.values() if entry[2]})
    names.update({("torch.storage", "UntypedStorage"): "UntypedStorage", ("_codecs", "encode"): codecs.encode,
                  ("collections", "OrderedDict"): collections.OrderedDict})
    return names


def open_record(folder, info):
    """The archive, and where its payload begins in the file."""
    data = (folder / info.relative_path).read_bytes()[info.offset:info.offset + info.length]
    archive = zipfile.ZipFile(io.BytesIO(data))
    assert archive.read("archive/version") == b"3\n" and archive.read("archive/byteorder") == b"little"
    pickled = archive.read("archive/data.pkl")
    assert pickled[:2] == b"\x80\x02"
    return data, archive, Reader(io.BytesIO(pickled), record_names()).load()


def check_tensor(folder, key, chunk, info):
    _, dtype, storage, size, whole, salt = TENSORS[key]
    data, archive, (version, pid, first, shape, strides, grad, hooks, *more) = open_record(folder, info)
    count = 1
    for n, stride in zip(reversed(shape), reversed(strides)):
        assert stride == count
        count *= n
    assert shape == chunk.sizes and (first, grad, hooks) == (0, False, {})
    assert (version, more) == (("v2", []) if storage else ("v3", [dtype]))
    assert pid == ("storage", storage or "UntypedStorage", "0", "cpu", count if storage else count * size)
    member = archive.getinfo("archive/data/0")
    begin = member.header_offset + 30 + len(member.filename)
    assert member.file_size == count * size and member.compress_type == zipfile.ZIP_STORED
    assert (info.offset + begin) % (4096 if count * size >= 4096 else 64) == 0
    assert data[begin:begin + count * size] == elements(whole, size, salt, chunk.offsets, shape), key


def check(folder):
    with (folder / "metadata").open("rb") as file:
        metadata = Reader(file, metadata_names()).load()
        assert file.read() == b""
    paths = {key: entry[0] for key, entry in [*TENSORS.items(), *OBJECTS.items()]}
    assert metadata.planner_data == paths and set(metadata.state_dict_metadata) == set(paths)
    places = {(index.fqn, getattr(index, "offset", None)): (index, info) for index, info in metadata.storage_data.items()}
    for key, entry in TENSORS.items():
        described = metadata.state_dict_metadata[key]
        assert described.properties.dtype == entry[1] and described.size == entry[4], key
        for number, chunk in enumerate(described.chunks):
            index, info = places.pop((key, chunk.offsets))
            assert index.index == number
            check_tensor(folder, key, chunk, info)
    for key, (_, value) in OBJECTS.items():
        index, info = places.pop((key, None))
        assert index.index is None and open_record(folder, info)[2] == value, key
    assert not places


if __name__ == "__main__":
    check(pathlib.Path(sys.argv[1]) / "tests/golden/torch_handmade")
    print("torch golden files ok")
