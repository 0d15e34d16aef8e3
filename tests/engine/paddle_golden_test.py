#!/usr/bin/env python3
"""Reads tests/golden/paddle_handmade as Paddle would, with the standard library alone, and compares every element.

Usage: paddle_golden_test.py REPO_ROOT
"""
import pathlib
import pickle
import pickletools
import sys

from golden_pattern import elements

NAME_TABLE = "StructuredToParameterName@@"
TENSORS = {  # key: (path, dtype, numpy code, bytes per element, shape, salt)
    "model.bf16": (("model", "bf16"), "bfloat16", "u2", 2, (6, 2), 3),
    "model.col": (("model", "col"), "float64", "f8", 8, (2, 6), 2),
    "model.f8": (("model", "f8"), "float8_e5m2", "i1", 1, (5, 2), 4),
    "model.row": (("model", "row"), "float32", "f4", 4, (4, 3), 1),
    "model.scalar": (("model", "scalar"), "int64", "i8", 8, (), 5),
    "optimizer.master_weights.linear_0.w_0": (("optimizer", "master_weights", "linear_0.w_0"), "float32", "f4", 4, (2, 3), 6),
}


class Bag:
    """Takes attributes; equal ones are one dict key, as Paddle's frozen dataclasses are."""

    def __hash__(self):
        return hash(tuple(sorted(self.__dict__.items(), key=str)))

    def __eq__(self, other):
        return self.__dict__ == other.__dict__


class NumpyType:
    def __init__(self, code, align, copy):
        assert (align, copy) == (False, True)
        self.code = code

    def __setstate__(self, state):
        order = "|" if self.code.endswith("1") and len(self.code) == 2 else "<"
        assert state == (3, order, None, None, None, -1, -1, 0), state


class Array:
    def __setstate__(self, state):
        version, self.shape, self.dtype, fortran, self.data = state
        assert (version, fortran) == (1, False)


def reconstruct(kind, shape, letter):
    assert (kind, shape, letter) == (Array, (0,), b"b")
    return Array()


class Reader(pickle.Unpickler):
    def __init__(self, file, names):
        super().__init__(file)
        self.names = names

    def find_class(self, module, name):
        return self.names[module, name]  # a KeyError for any other


def read(path, names):
    data = path.read_bytes()
    opcodes = {opcode.name for opcode, _, _ in pickletools.genops(data)}
    assert data[:2] == b"\x80\x04" and not opcodes & {"GLOBAL", "INST", "OBJ", "EXT1"}, opcodes
    with path.open("rb") as file:
        value = Reader(file, names).load()
        assert file.read() == b""
    return value


def check_array(array, key, offset, shape):
    _, _, code, size, whole, salt = TENSORS[key]
    assert array.shape == shape and array.dtype.code == code, key
    assert array.data == elements(whole, size, salt, offset, shape), key


def check(folder, metadata_name, module):
    classes = {(module, name): type(name, (Bag,), {}) for name in ("Metadata", "LocalTensorMetadata", "LocalTensorIndex")}
    metadata = read(folder / metadata_name, classes)
    assert list(metadata.__dict__) == ["state_dict_metadata", "storage_metadata", "flat_mapping"]
    assert metadata.flat_mapping == {key: entry[0] for key, entry in TENSORS.items()}
    assert set(metadata.state_dict_metadata) == set(TENSORS)
    numpy = {("numpy.core.multiarray", "_reconstruct"): reconstruct, ("numpy", "ndarray"): Array,
             ("numpy", "dtype"): NumpyType}
    files = {name: read(folder / name, numpy) for name in set(metadata.storage_metadata.values())}
    for content in files.values():
        table = content[NAME_TABLE]
        assert list(content) == list(table) + [NAME_TABLE]
        assert all(table[key] == TENSORS[key][0][-1] for key in table)
    pieces = 0
    for index, name in metadata.storage_metadata.items():
        assert index.replica_id is None and not index.is_flattened and index.flattened_range is None
        described = [d for d in metadata.state_dict_metadata[index.tensor_key] if d.global_offset == index.global_offset]
        assert len(described) == 1 and described[0].local_shape == index.local_shape
        assert described[0].dtype == TENSORS[index.tensor_key][1]
        assert described[0].global_shape == TENSORS[index.tensor_key][4]
        check_array(files[name].pop(index.tensor_key), index.tensor_key, index.global_offset, index.local_shape)
        pieces += 1
    assert pieces == 10 and all(list(content) == [NAME_TABLE] for content in files.values())


if __name__ == "__main__":
    golden = pathlib.Path(sys.argv[1]) / "tests/golden/paddle_handmade"
    check(golden, "flex.metadata", "paddle.distributed.flex_checkpoint.dcp.metadata")
    check(golden, "legacy.metadata", "paddle.distributed.checkpoint.metadata")
    print("paddle golden files ok")
