"""What the peers save: tables of tensors. Standard library only.

A case that real Paddle saves is also a golden case (make_golden.py) unless it says otherwise.
"""
import dataclasses
import typing

from tables import cut_boxes, grid_boxes, seed, spec, striped_boxes, whole_boxes  # noqa: F401

ADAM = ("moment1_0", "moment2_0")


@dataclasses.dataclass(frozen=True)
class T:
    """One tensor.

    `cut`    of a distributed tensor: per mesh axis the tensor axis that it cuts, or None: replicated.
             Without `cut` an ordinary tensor, on every rank the same.
    `flat`   per rank (offset, shape, begin, end): a range of the elements of a block, or None
    `blocks` per rank (offset, shape), or None: a block given by hand (ShardedWeight)
    `on`     the only rank that has it: alone on a mesh (`cut`), or in its state dict only
    `boxes`  of what reshard saves: per rank a list of [offset, extent]
    `named`  the tensor's own name is the last part of its path, as a layer's parameters have it
    `stored_path` when it is wanted under another name than it was stored under
    """
    path: tuple
    dtype: str
    shape: tuple
    cut: typing.Optional[tuple] = None
    flat: typing.Optional[tuple] = None
    blocks: typing.Optional[tuple] = None
    on: typing.Optional[int] = None
    boxes: typing.Optional[list] = None
    named: bool = False
    stored_path: typing.Optional[tuple] = None

    @property
    def key(self):
        return ".".join(self.path)


@dataclasses.dataclass(frozen=True)
class Case:
    """One directory that Paddle saves on `ranks` ranks, as steps: (unique id or None, salt, tensors)."""
    name: str
    ranks: int
    steps: tuple
    since: tuple = (0,)            # releases
    before: tuple = (99,)
    options: tuple = ()            # more arguments of save_state_dict
    mesh: tuple = ()               # shape; empty: one axis
    file: str = ""                 # one file by paddle.save instead; then mesh and options do not count
    golden: bool = True

    def runs_on(self, release):
        return self.since <= release < self.before

    def content(self):
        """Unique id -> (salt, tensors) of what is in the directory at the end."""
        return {uid or 0: (salt, tensors) for uid, salt, tensors in self.steps}


def one(name, ranks, tensors, **options):
    return Case(name, ranks, ((None, 0, tuple(tensors)),), **options)


def everything():
    """Nested names, every dtype, tensors without axes, names with dots."""
    shapes = {
        ("model", "linear_0.w_0"): ("float32", (4, 6)), ("model", "linear_0.b_0"): ("bfloat16", (6,)),
        ("model", "block", "0", "w"): ("float16", (5, 3)), ("model", "ids"): ("int64", (7,)),
        ("model", "idx"): ("int32", (2, 3)), ("model", "i16"): ("int16", (3,)),
        ("model", "i8"): ("int8", (5,)), ("model", "u8"): ("uint8", (9,)),
        ("model", "mask"): ("bool", (3, 3)), ("model", "f64"): ("float64", (2, 2)),
        ("model", "c64"): ("complex64", (2, 3)), ("model", "c128"): ("complex128", (2,)),
        ("model", "scalar"): ("float32", ()), ("model", "scalar_i64"): ("int64", ()),
        ("model", "scalar_bf16"): ("bfloat16", ()), ("model", "four_d"): ("float32", (2, 1, 3, 2)),
        ("optimizer", "master_weights", "linear_0.b_0"): ("float32", (6,)),
        ("optimizer", "linear_0.w_0_moment1_0"): ("float32", (4, 6)),
        ("optimizer", "linear_0.w_0_moment2_0"): ("float32", (4, 6)),
        ("optimizer", "linear_0.w_0_beta1_pow_acc_0"): ("float32", (1,)),
        ("optimizer", "linear_0.w_0_beta2_pow_acc_0"): ("float32", (1,)),
        ("optimizer", "LR_Scheduler", "last_epoch"): ("int64", ()),
        ("optimizer", "LR_Scheduler", "last_lr"): ("float64", ()),
    }
    return [T(path, dtype, shape, named=path[-1].startswith("linear"))
            for path, (dtype, shape) in shapes.items()]


WEIGHTS = (("linear_0.w_0", (4, 6)), ("linear_0.b_0", (6,)))


def master_weights(static):
    """A bfloat16 model with float32 master weights under the names of one of Paddle's two modes."""
    def master(weight):
        name = weight + "_fp32_master_0"
        return ("optimizer", name) if static else ("optimizer", "master_weights", weight)
    return ([T(("model", w), "bfloat16", s) for w, s in WEIGHTS] +
            [T(master(w), "float32", s) for w, s in WEIGHTS] +
            [T(("optimizer", f"{w}_fp32_master_0_{m}"), "float32", s) for w, s in WEIGHTS for m in ADAM])


def layer_file():
    """What Layer.state_dict() has: flat keys, although they look like paths."""
    return [T((key,), dtype, shape, named=True) for key, dtype, shape in (
        ("linear.weight", "float32", (4, 6)), ("linear.bias", "bfloat16", (6,)),
        ("norm._mean", "float64", (3,)), ("steps", "int64", ()), ("table", "uint8", (300, 300)))]


def optimizer_file():
    """What Optimizer.state_dict() has: nested, with master weights; numbers come with save.py."""
    return [T((f"linear_0.w_0_{m}",), "float32", (4, 6), named=True) for m in ADAM] + [
        T(("master_weights", "linear_0.b_0"), "float32", (6,), named=True),
        T(("brief",), "bfloat16", (2, 3), named=True),
        T(("LR_Scheduler", "last_lr"), "float64", (), named=True)]


def frames():
    """Payloads just inside, at and just outside what a pickle's frame takes, and a large one."""
    return [T(("w65532",), "float32", (16383,)), T(("b",), "float32", (3,)),
            T(("w65536",), "float32", (128, 128)), T(("w65540",), "float32", (16385,)),
            T(("w307200",), "uint8", (480, 640)), T(("last",), "int32", (2,))]


def two_ranks(uneven):
    model = [T(("model", "row"), "float32", (6, 4), (0,)), T(("model", "col"), "float32", (4, 6), (1,)),
             T(("model", "rep"), "float32", (3,), (None,)),
             T(("model", "bf16_row"), "bfloat16", (4, 4), (0,)),
             T(("model", "f16_col"), "float16", (2, 8), (1,)), T(("model", "i64_row"), "int64", (4,), (0,)),
             T(("model", "u8_mid"), "uint8", (2, 4, 3), (1,)), T(("model", "scalar"), "float32", (), (None,)),
             T(("model", "plain"), "float32", (2, 2))]
    optimizer = [T(("optimizer", "master_weights", "bf16_row"), "float32", (4, 4), (0,)),
                 T(("optimizer", "row_moment1_0"), "float32", (6, 4), (0,)),
                 T(("optimizer", "col_moment1_0"), "float32", (4, 6), (1,)),
                 T(("optimizer", "row_beta1_pow_acc_0"), "float32", (1,), (None,))]
    unequal = [T(("model", "uneven"), "float32", (5, 3), (0,)),
               T(("model", "uneven_col"), "int32", (3, 5), (1,))]
    alone = [T(("model", "submesh1"), "float32", (3,), (None,), on=1)]
    absent = [T(("model", "only_rank1"), "float32", (4,), on=1)]
    # 2.6 cuts into equal parts only, and wants the same keys on all ranks.
    return model + optimizer + (unequal + alone + absent if uneven else alone)


def mesh_2x2(uneven, blocks):
    out = [T(("s0s1",), "float32", (4, 6), (0, 1)), T(("s1s0",), "float32", (4, 6), (1, 0)),
           T(("r_s0",), "float32", (4, 3), (None, 0)), T(("s0_r",), "float32", (4, 3), (0, None)),
           T(("s1_r",), "bfloat16", (3, 4), (1, None)), T(("r_r",), "int32", (5,), (None, None)),
           T(("bf16_s0s1",), "bfloat16", (4, 4), (0, 1)), T(("three_d",), "float32", (2, 4, 6), (1, 2)),
           T(("scalar",), "int64", (), (None, None))]
    if uneven:
        out += [T(("uneven",), "float32", (5, 7), (0, 1)), T(("one_row",), "float32", (1, 4), (None, 1))]
    if blocks:  # both mesh axes cut one tensor axis
        out += [T(("s0s0",), "float32", (8, 2), blocks=tuple(((2 * r, 0), (2, 2)) for r in range(4))),
                T(("s1s1",), "bfloat16", (2, 8), blocks=tuple(((0, 2 * r), (2, 2)) for r in range(4)))]
    return out


def flattened():
    def flat(name, dtype, shape, *pieces):
        return T((name,), dtype, shape, flat=pieces)
    grid, odd = ((0, 0), (4, 6)), ((0, 0), (3, 5))
    return [flat("flat_f32", "float32", (4, 6), (*grid, 0, 13), (*grid, 13, 24)),
            flat("flat_rows", "float32", (4, 6), (*grid, 0, 12), (*grid, 12, 24)),
            flat("flat_bf16", "bfloat16", (3, 5), (*odd, 0, 7), (*odd, 7, 15)),
            flat("flat_block", "float32", (4, 6), ((0, 0), (4, 3), 0, 12), ((0, 3), (4, 3), 0, 12)),
            flat("flat_1d", "float32", (10,), ((0,), (10,), 0, 4), ((0,), (10,), 4, 10)),
            T(("block",), "float32", (6, 4), blocks=(((0, 0), (3, 4)), ((3, 0), (3, 4)))),
            flat("whole_on_1", "float32", (2, 3), None, ((0, 0), (2, 3), 0, 6))]


def mixed():
    return [T(("row",), "float32", (4, 3), (0,)), T(("rep_a",), "float32", (3,), (None,)),
            T(("rep_b",), "int64", (2, 2), (None,)), T(("rep_c",), "bfloat16", (4,), (None,)),
            T(("col_bf16",), "bfloat16", (2, 4), (1,))]


def training(ranks):
    """A model and its optimizer, cut over all ranks in every way; larger than a few elements."""
    model = [T(("model", "embedding", "weight"), "bfloat16", (64, 48), (0,)),
             T(("model", "block", "0", "qkv.weight"), "bfloat16", (48, 96), (1,)),
             T(("model", "block", "0", "norm"), "float32", (48,), (None,)),
             T(("model", "block", "1", "ffn.weight"), "float16", (32, 80), (1,)),
             T(("model", "uneven"), "float32", (4 * ranks - 1, 5), (0,)),
             T(("model", "uneven_col"), "float64", (3, 4 * ranks - 1), (1,))]
    optimizer = [T(("optimizer", "master_weights", "embedding.weight"), "float32", (64, 48), (0,)),
                 T(("optimizer", "master_weights", "qkv.weight"), "float32", (48, 96), (1,)),
                 T(("optimizer", "embedding.weight_moment1_0"), "float32", (64, 48), (0,)),
                 T(("optimizer", "step"), "int64", (), (None,))]
    return model + optimizer


def paddle_cases():
    """Everything that real Paddle saves, in this order within a number of ranks."""
    few = (T(("model", "a"), "float32", (3, 2)), T(("model", "b"), "int64", (4,)))
    ten = few + (T(("model", "only10"), "float32", (2,)),)
    new = few + (T(("model", "new"), "float32", (2,)),)
    return [
        one("single", 1, everything()),
        one("empty", 1, [T(("full",), "float32", (2,)), T(("none",), "float32", (0, 3)),
                         T(("none_mid",), "int64", (2, 0, 2))]),
        one("float8_e4m3fn", 1, [T(("w",), "float8_e4m3fn", (3, 4))], since=(3, 0)),
        one("float8_e5m2", 1, [T(("w",), "float8_e5m2", (3, 4))], since=(3, 0)),
        one("frames", 1, frames()),
        Case("ids", 1, ((0, 0, few), (1, 1, few), (10, 10, ten)), since=(3, 0)),
        Case("ids", 1, ((None, 0, few), (1, 1, few)), before=(3, 0)),  # counts up by itself
        Case("saved_twice", 1, ((None, 0, few), (None, 1, new)), since=(3, 0)),
        one("master_dynamic", 1, master_weights(static=False)),
        one("master_static", 1, master_weights(static=True)),
        one("pdparams", 1, layer_file(), file="model.pdparams", golden=False),
        one("pdopt", 1, optimizer_file(), file="model.pdopt", golden=False),
        one("ranks2", 2, two_ranks(uneven=False), before=(3, 0)),
        one("ranks2", 2, two_ranks(uneven=True), since=(3, 0)),
        one("replicated_only", 2, [T((n,), "float32", (2, 3), (None,)) for n in "ab"]),
        one("flattened", 2, flattened(), since=(3, 2)),
        one("flattened_3d", 2, [T(("flat_3d",), "float32", (2, 3, 4),
                                  flat=(((0, 0, 0), (2, 3, 4), 0, 13), ((0, 0, 0), (2, 3, 4), 13, 24)))],
            since=(3, 2)),
        one("replicas", 2, mixed(), since=(3, 3), options=(("save_replicas", True),)),
        one("safetensors", 2, mixed(), since=(3, 2), options=(("safetensors", True),)),
        one("training2", 2, training(2), since=(3, 0), golden=False),
        one("mesh2x2", 4, mesh_2x2(False, False), before=(3, 0), mesh=(2, 2)),
        one("mesh2x2", 4, mesh_2x2(True, False), since=(3, 0), before=(3, 2), mesh=(2, 2)),
        one("mesh2x2", 4, mesh_2x2(True, True), since=(3, 2), mesh=(2, 2)),
        one("training4", 4, training(4), since=(3, 0), golden=False),
    ]


def reshard_case(ranks, release):
    """What reshard saves on `ranks` ranks, as far as the release knows the dtypes."""
    def cut(path, dtype, shape, axis, edges=None):
        return T(path, dtype, shape, boxes=cut_boxes(shape, axis, ranks, edges))

    def rep(path, dtype, shape, only=None):
        return T(path, dtype, shape, boxes=whole_boxes(shape, ranks, only))
    out = [rep(t.path, t.dtype, t.shape) for t in everything()]
    out += [
        cut(("model", "row"), "float32", (8, 6), 0), cut(("model", "column"), "bfloat16", (4, 12), 1),
        cut(("model", "f16_row"), "float16", (12, 2), 0), cut(("model", "u8_middle"), "uint8", (2, 8, 3), 1),
        cut(("model", "uneven_even_split"), "float32", (4 * ranks - 1, 3), 0),
        cut(("model", "uneven"), "int32", (3, 2 + 2 * ranks), 1, [2 * r + 1 for r in range(ranks - 1)]),
        T(("model", "striped"), "float32", (6, 4), boxes=striped_boxes((6, 4), ranks)),
        rep(("model", "last_rank_only"), "float64", (3, 3), ranks - 1),
        cut(("optimizer", "master_weights", "column"), "float32", (4, 12), 1),
        cut(("optimizer", "row_moment1_0"), "float32", (8, 6), 0),
        cut(("large",), "float32", (256, 384), 0),
    ]
    if release >= (3, 0):
        out += [rep(("model", d), d, (3, 5)) for d in ("float8_e4m3fn", "float8_e5m2")]
    if ranks == 4:
        out += [T(("mesh",), "float32", (4, 6), boxes=grid_boxes((4, 6))),
                T(("mesh_uneven",), "bfloat16", (5, 7), boxes=grid_boxes((5, 7)))]
    return out
