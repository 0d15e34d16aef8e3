"""The values of every tensor that the peers exchange, as a formula; peer_tool.cc has the same.

Element i, counted row-major in the whole tensor, of a tensor with seed s (0 <= s < 251):
    u = (7 * i + 13 * (i // 251) + s) % 251    w = u - 125
  float16 bfloat16 float32 float64    w / 8, exact in all four
  int8 int16 int32                    w
  int64                               w * (2**32 + 1)
  uint8                               u
  bool                                u is odd
  complex64 complex128                w / 8 - (w / 4) * 1j
  complex32                           the same, as two float16
  uint16 uint32                       u
  uint64                              u * (2**32 + 1)
  float8_e4m3fn float8_e5m2           (u % 8) - 4
  other kinds of float8               the byte u
Seeds: cases.seed.
"""
import numpy as np

EXACT = ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
SMALL_FLOATS = ("float16", "bfloat16")
COMPLEX = ("complex64", "complex128")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
# The codes of -4, -3, ... 3: sign, exponent and mantissa of 4+3 and of 5+2 bits.
FLOAT8_CODES = {
    "float8_e4m3fn": (0xC8, 0xC4, 0xC0, 0xB8, 0x00, 0x38, 0x40, 0x44),
    "float8_e5m2": (0xC4, 0xC2, 0xC0, 0xBC, 0x00, 0x3C, 0x40, 0x42),
}


RAW_FLOAT8 = ("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")


def values(dtype, shape, start):
    """The whole tensor; bfloat16 and float8 as float32, which holds their values; complex32 and other
    kinds of float8 as bits, as in stored()."""
    i = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.int64)
    u = (7 * i + 13 * (i // 251) + start) % 251
    w = u - 125
    if dtype in RAW_FLOAT8:
        flat = u.astype(np.uint8)
    elif dtype in FLOAT8:
        flat = (u % 8 - 4).astype(np.float32)
    elif dtype == "bfloat16":
        flat = (w / 8).astype(np.float32)
    elif dtype.startswith("float"):
        flat = (w / 8).astype(dtype)
    elif dtype == "complex32":
        flat = np.stack([w / 8, -w / 4], -1).astype(np.float16).view(np.uint32)[..., 0]
    elif dtype in COMPLEX:
        flat = (w / 8 - 1j * (w / 4)).astype(dtype)
    elif dtype == "int64":
        flat = w * (2**32 + 1)
    elif dtype == "uint64":
        flat = u.astype(np.uint64) * np.uint64(2**32 + 1)
    elif dtype == "bool":
        flat = u % 2 == 1
    else:
        flat = (u if dtype.startswith("uint") else w).astype(dtype)
    return flat.reshape(shape)


def stored(dtype, shape, start):
    """The same as the stored bits: bfloat16 as uint16, float8 as uint8."""
    array = values(dtype, shape, start)
    if dtype == "bfloat16":
        return (array.view(np.uint32) >> 16).astype(np.uint16)
    if dtype in FLOAT8:
        codes = np.array(FLOAT8_CODES[dtype], dtype=np.uint8)
        return codes[array.astype(np.int64) + 4]
    return array
