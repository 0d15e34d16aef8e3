"""The values of golden files: those of PatternByte in tests/support/ranks.h, written apart from it."""
import itertools

MASK = (1 << 64) - 1


def pattern(salt, at):
    x = ((at >> 3) + salt * 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    x ^= x >> 31
    return (x >> ((at & 7) * 8)) & 255


def elements(whole, size, salt, offset, shape):
    """The bytes of a box of a tensor with shape `whole` and `size` bytes per element, row-major."""
    out = bytearray()
    for index in itertools.product(*map(range, shape)):
        at = 0
        for axis, i in enumerate(index):
            at = at * whole[axis] + offset[axis] + i
        out += bytes(pattern(salt, at * size + b) for b in range(size))
    return out
