"""What the tables of all peers are made of. Standard library only."""


def key(path):
    return ".".join(map(str, path))


def seed(flat_key, salt=0):
    """Where the values of a tensor begin (content.py): it depends on the key, so that swaps show."""
    return (sum(flat_key.encode()) + salt) % 251


def spec(tensors, salt=0):
    """What peer_tool and load.py read, of tensors `t` with path, stored_path, dtype, shape and boxes."""
    out = []
    for t in tensors:
        entry = {"path": list(t.path), "dtype": t.dtype, "shape": list(t.shape),
                 "seed": seed(key(t.stored_path or t.path), salt)}
        if t.boxes is not None:
            entry["boxes"] = t.boxes
        out.append(entry)
    return {"tensors": out}


def cut_boxes(shape, axis, ranks, edges=None):
    """Boxes of an axis that is cut at `edges` (inner ones), evenly without."""
    n = shape[axis]
    part = -(-n // ranks)
    edges = [0, *(edges or [min(n, part * r) for r in range(1, ranks)]), n]
    out = []
    for begin, end in zip(edges, edges[1:]):
        offset, extent = [0] * len(shape), list(shape)
        offset[axis], extent[axis] = begin, end - begin
        out.append([[offset, extent]] if end > begin else [])
    return out


def whole_boxes(shape, ranks, only=None):
    box = [[0] * len(shape), list(shape)]
    return [[box] if only in (None, r) else [] for r in range(ranks)]


def grid_boxes(shape):
    """A 2 x 2 mesh on the axes 0 and 1."""
    rows, columns = -(-shape[0] // 2), -(-shape[1] // 2)
    return [[[[r, c], [min(rows, shape[0] - r), min(columns, shape[1] - c)]]]
            for r in (0, rows) for c in (0, columns)]


def striped_boxes(shape, ranks):
    """Several boxes per rank: row i on rank i % ranks, columns in two parts."""
    half = shape[1] // 2
    return [[box for row in range(r, shape[0], ranks)
             for box in ([[row, 0], [1, half]], [[row, half], [1, shape[1] - half]])] for r in range(ranks)]
