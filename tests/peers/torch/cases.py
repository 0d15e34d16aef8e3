"""What the peers save: tables of tensors and other values. Standard library only."""
import dataclasses
import typing

from tables import cut_boxes, grid_boxes, key, seed, spec, striped_boxes, whole_boxes  # noqa: F401

DTYPES = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "bfloat16",
          "float32", "float64", "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
          "float8_e4m3fnuz", "float8_e5m2fnuz")


def dtypes(release):
    return DTYPES + (("float8_e8m0fnu",) if release >= (2, 7) else ())


@dataclasses.dataclass(frozen=True)
class T:
    """One tensor.

    `path`   text for keys of dicts, numbers for positions in lists
    `cut`    of a DTensor: per mesh axis the tensor axis that it cuts, or None: replicated.
             Without `cut` an ordinary tensor, on every rank the same.
    `memory` how it lies in memory: "" dense, "transposed", "channels_last", "sliced" (a part of a
             larger storage)
    `boxes`  of what reshard saves: per rank a list of [offset, extent]
    """
    path: tuple
    dtype: str
    shape: tuple
    cut: typing.Optional[tuple] = None
    memory: str = ""
    boxes: typing.Optional[list] = None
    stored_path: typing.Optional[tuple] = None


@dataclasses.dataclass(frozen=True)
class Case:
    """One directory that torch saves on `ranks` ranks."""
    name: str
    ranks: int
    tensors: tuple
    mesh: tuple = ()       # shape; empty: one axis
    objects: tuple = ()    # (path, value) pairs
    writer: tuple = ()     # more arguments of FileSystemWriter
    salt: int = 0


# Values that come back equal from either side. Without dicts in lists: torch takes such lists apart, so that it stores
# several keys where we store one.
OBJECTS = (
    (("step",), 1200), (("optimizer", "param_groups", "lr"), -0.125), (("optimizer", "param_groups", "none"), None),
    (("optimizer", "param_groups", "betas"), [0.5, 0.25]), (("name",), "r\u00e9sum\u00e9"), (("flag",), True),
    (("blob",), {"bytes": "00ff80417f"}), (("large",), [-70000, 2**40, -2**63, 2**63 - 1]),
    (("deep",), [[], [1, [3, "three"], ["x", None]]]))
# torch itself would take a list with dicts apart; it loads one that was kept whole.
KEPT_WHOLE = ((("kept_whole",), [1, {"items": [[3, "three"], ["x", []]]}]),)


def objects_spec(objects):
    return [{"path": list(path), "value": value} for path, value in objects]


def plain(value):
    """A value of a table as Python has it."""
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return bytes.fromhex(value["bytes"]) if "bytes" in value else {k: plain(v) for k, v in value["items"]}
    return value


def every_dtype(release):
    return [T(("dtypes", d), d, (3, 5)) for d in dtypes(release)] + [
        T(("scalars", d), d, ()) for d in ("float32", "bfloat16", "uint16", "int64")]


def memories():
    return [T(("transposed",), "float32", (4, 6), memory="transposed"),
            T(("channels_last",), "bfloat16", (2, 3, 4, 5), memory="channels_last"),
            T(("sliced",), "int32", (5, 3), memory="sliced"),
            T(("empty",), "float32", (0, 3)), T(("empty_mid",), "int8", (2, 0, 2)), T(("one",), "uint8", (1,)),
            T(("list", 0), "int64", (4,)), T(("list", 1, "w"), "float32", (2, 2)), T(("dotted.key", "x.y"), "int16", (3,)),
            T(("na\u00efve",), "float16", (6,)), T(("wide",), "float32", (300, 257))]


def training(ranks):
    """A bfloat16 model and its optimizer, cut over all ranks in every way."""
    out = []
    for path, shape, cut in ((("embedding", "weight"), (64, 48), (0,)), (("block.0", "qkv"), (48, 96), (1,)),
                             (("block.0", "norm"), (48,), (None,)), (("uneven",), (4 * ranks - 1, 5), (0,)),
                             (("uneven_column",), (3, 4 * ranks + 1), (1,))):
        out.append(T(("model", *path), "bfloat16", shape, cut))
        out.append(T(("optimizer", "master", *path), "float32", shape, cut))
        out.append(T(("optimizer", "state", *path, "exp_avg"), "float32", shape, cut))
    return out + [T(("optimizer", "step"), "int64", (), (None,)), T(("few",), "float32", (2, 3), (0,)),
                  T(("bytes",), "uint8", (40, 3), (0,)), T(("fp8",), "float8_e4m3fn", (8, 4 * ranks), (1,)),
                  T(("plain",), "float32", (2, 2))]


def grid():
    return [T(("s0s1",), "float32", (4, 6), (0, 1)), T(("s1s0",), "float32", (5, 7), (1, 0)),
            T(("hsdp",), "bfloat16", (9, 3), (None, 0)), T(("s0_r",), "int64", (7, 3), (0, None)),
            T(("s0s0",), "float32", (9, 2), (0, 0)), T(("r_r",), "int32", (5,), (None, None)),
            T(("three_d",), "float64", (3, 4, 6), (1, 2)), T(("scalar",), "float32", (), (None, None))]


def torch_cases(release):
    """Everything that real torch saves, in this order within a number of ranks."""
    each = (("single_file_per_rank", False),)
    return [
        Case("dtypes", 1, tuple(every_dtype(release)), objects=OBJECTS),
        Case("memories", 1, tuple(memories())),
        Case("threads1", 1, tuple(memories()), writer=(("thread_count", 3),), salt=4),
        Case("each_in_a_file", 1, tuple(memories()[:5]), writer=each, salt=5),
        Case("training2", 2, tuple(training(2)), objects=OBJECTS),
        Case("threads2", 2, tuple(training(2)), writer=(("thread_count", 2),), salt=1),
        Case("each_in_a_file2", 2, tuple(training(2)), writer=each, salt=2),
        Case("training4", 4, tuple(training(4)), objects=OBJECTS),
        Case("grid", 4, tuple(grid()), mesh=(2, 2)),
        Case("grid_threads", 4, tuple(grid()), mesh=(2, 2), writer=(("thread_count", 2),), salt=3),
    ]


def reshard_case(ranks, release):
    """What reshard saves on `ranks` ranks, as far as the release knows the dtypes."""
    def cut(path, dtype, shape, axis, edges=None):
        return T(path, dtype, shape, boxes=cut_boxes(shape, axis, ranks, edges))

    def rep(path, dtype, shape, only=None):
        return T(path, dtype, shape, boxes=whole_boxes(shape, ranks, only))
    out = [rep(t.path, t.dtype, t.shape) for t in every_dtype(release) + memories()]
    out += [
        cut(("model", "row"), "float32", (8, 6), 0), cut(("model", "column"), "bfloat16", (4, 12), 1),
        cut(("model", "fp8"), "float8_e4m3fn", (12, 2), 0), cut(("model", "u8_middle"), "uint8", (2, 8, 3), 1),
        cut(("model", "uneven"), "int32", (3, 2 + 2 * ranks), 1, [2 * r + 1 for r in range(ranks - 1)]),
        cut(("model", "fewer_rows_than_ranks"), "float32", (2, 3), 0),
        T(("model", "striped"), "float32", (6, 4), boxes=striped_boxes((6, 4), ranks)),
        rep(("model", "last_rank_only"), "float64", (3, 3), ranks - 1),
        cut(("optimizer", "master", "column"), "float32", (4, 12), 1),
        cut(("optimizer", "state", "column", "exp_avg"), "float32", (4, 12), 1),
        cut(("big",), "float32", (512, 600), 0), rep(("big_replicated",), "float32", (700, 800)),
    ]
    if ranks == 4:
        out += [T(("mesh",), "float32", (4, 6), boxes=grid_boxes((4, 6))),
                T(("mesh_uneven",), "bfloat16", (5, 7), boxes=grid_boxes((5, 7)))]
    return out
