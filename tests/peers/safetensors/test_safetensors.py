#!/usr/bin/env python3
"""Files exchanged with the real safetensors package: each side reads what the other wrote.

    test_safetensors.py RELEASE --reshard PROGRAM [--skipped FILE]

Every byte is compared, of every dtype that the package knows. Exit status 77: skipped, as PyPI does
not answer; the reason is written to FILE as well.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
SKIPPED = 77
ARGS = None
PYTHON = None
__unittest = True  # failures are messages: no stack traces

# Tag in the file, name of ours (and of the package's, as far as it can write them), bits.
DTYPES = [("BOOL", "bool", 8), ("U8", "uint8", 8), ("I8", "int8", 8), ("U16", "uint16", 16), ("I16", "int16", 16),
          ("U32", "uint32", 32), ("I32", "int32", 32), ("U64", "uint64", 64), ("I64", "int64", 64),
          ("F16", "float16", 16), ("BF16", "bfloat16", 16), ("F32", "float32", 32), ("F64", "float64", 64),
          ("C64", "complex64", 64), ("F8_E4M3", "float8_e4m3fn", 8), ("F8_E5M2", "float8_e5m2", 8),
          ("F8_E8M0", "float8_e8m0fnu", 8), ("F8_E4M3FNUZ", "float8_e4m3fnuz", 8),
          ("F8_E5M2FNUZ", "float8_e5m2fnuz", 8), ("F4", "float4_e2m1", 4), ("F6_E2M3", "float6_e2m3", 6),
          ("F6_E3M2", "float6_e3m2", 6)]

# Runs in the environment that has the package: "write FILE" takes {name: [word, shape, hex]} on
# stdin, "read FILE..." gives {name: [tag, shape, hex]}; "numpy FILE" checks load_file.
PEER = r"""
import json, sys
import safetensors
what, *files = sys.argv[1:]
if what == "write":
    import ctypes
    spec, keep, done = json.load(sys.stdin), [], {}
    for name, (word, shape, data) in spec.items():
        data = bytes.fromhex(data)
        keep.append(ctypes.create_string_buffer(data, len(data)))
        done[name] = safetensors.TensorSpec(dtype=word, shape=shape, data_ptr=ctypes.addressof(keep[-1]),
                                            data_len=len(data))
    safetensors.serialize_file(done, files[0], {"format": "pt", "why": "test"})
elif what == "read":
    out = {}
    for file in files:
        for name, entry in safetensors.deserialize(open(file, "rb").read()):
            assert name not in out, name
            out[name] = [entry["dtype"], list(entry["shape"]), bytes(entry["data"]).hex()]
    json.dump(out, sys.stdout)
else:
    import numpy
    from safetensors.numpy import load_file, save_file
    if what == "save":
        save_file({"a": numpy.arange(24, dtype="f4").reshape(2, 3, 4), "b": numpy.array([True, False]),
                   "s": numpy.array(7, dtype="i8"), "e": numpy.zeros((0, 3), dtype="f8")}, files[0])
    else:
        got = load_file(files[0])
        assert set(got) == {"a", "b", "s", "e"}, set(got)
        assert (got["a"] == numpy.arange(24, dtype="f4").reshape(2, 3, 4)).all() and got["a"].dtype == "f4"
        assert got["b"].tolist() == [True, False] and got["b"].dtype == bool
        assert got["s"].shape == () and got["s"] == 7 and got["e"].shape == (0, 3)
"""


def peer(what, *files, given=None):
    done = subprocess.run([PYTHON, "-c", PEER, what, *map(str, files)], capture_output=True, text=True, timeout=60,
                          input=None if given is None else json.dumps(given))
    if done.returncode != 0:
        raise AssertionError(f"safetensors {what} {files}: {done.stderr[-1500:]}")
    return json.loads(done.stdout) if done.stdout else None


def reshard(*words):
    done = subprocess.run([ARGS.reshard, *map(str, words)], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise AssertionError(f"reshard {' '.join(map(str, words))}: exit {done.returncode}: {done.stderr[:1500]}")
    return done.stdout


class SafetensorsTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="reshard-safetensors-")
        self.addCleanup(scratch.cleanup)
        self.dir = pathlib.Path(scratch.name)

    def make(self):
        """What the package wrote, with every dtype that it writes: {name: [tag, shape, hex]}."""
        (self.dir / "theirs").mkdir()
        random.seed(7)
        spec, expected = {}, {}
        for tag, name, bits in DTYPES:
            if bits == 6:
                continue
            data = bytes(random.choices((0, 1) if tag == "BOOL" else range(256), k=12 * bits // 8)).hex()
            # F4 goes by pairs there.
            spec[name] = ["float4_e2m1fn_x2", [3, 2], data] if tag == "F4" else [name, [3, 4], data]
            expected[name] = [tag, [3, 4], data]
        peer("write", self.dir / "theirs" / "x.safetensors", given=spec)
        return expected

    def test_both_directions_of_every_dtype(self):
        expected = self.make()
        listed = json.loads(reshard("ls", "--json", self.dir / "theirs"))["tensors"]
        names = {tag: name for tag, name, _ in DTYPES}
        self.assertEqual({t["key"]: (t["dtype"], t["shape"]) for t in listed},
                         {key: (names[tag], shape) for key, (tag, shape, _) in expected.items()})
        reshard("convert", self.dir / "theirs", self.dir / "native", "--to", "native")
        reshard("convert", self.dir / "native", self.dir / "ours", "--to", "safetensors")
        read = peer("read", *sorted((self.dir / "ours").glob("*.safetensors")))
        self.assertEqual(read, expected)

    def test_the_files_of_native_checkpoints(self):
        expected = self.make()
        reshard("convert", self.dir / "theirs", self.dir / "native", "--to", "native")
        read = peer("read", self.dir / "native" / "0_0.safetensors")
        self.assertEqual(read, expected)

    def test_six_bits_that_the_package_reads_but_does_not_write(self):
        (self.dir / "hand").mkdir()
        header = json.dumps({"a": {"dtype": "F6_E2M3", "shape": [2, 4], "data_offsets": [0, 6]},
                             "b": {"dtype": "F6_E3M2", "shape": [4], "data_offsets": [6, 9]}}).encode()
        (self.dir / "hand" / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(range(9)))
        reshard("convert", self.dir / "hand", self.dir / "ours", "--to", "safetensors")
        expected = {"a": ["F6_E2M3", [2, 4], bytes(range(6)).hex()], "b": ["F6_E3M2", [4], bytes([6, 7, 8]).hex()]}
        self.assertEqual(peer("read", self.dir / "hand" / "x.safetensors"), expected)
        self.assertEqual(peer("read", self.dir / "ours" / "model.safetensors"), expected)

    def test_numpy(self):
        (self.dir / "theirs").mkdir()
        peer("save", self.dir / "theirs" / "model.safetensors")
        reshard("index", self.dir / "theirs")
        reshard("verify", self.dir / "theirs")
        reshard("convert", self.dir / "theirs", self.dir / "ours", "--to", "safetensors")
        peer("load", self.dir / "ours" / "model.safetensors")


def main():
    global ARGS, PYTHON
    parser = argparse.ArgumentParser()
    parser.add_argument("release")
    parser.add_argument("--reshard", required=True)
    parser.add_argument("--skipped", type=pathlib.Path)
    ARGS = parser.parse_args()
    found = subprocess.run([ROOT / "tools" / "peers.sh", f"safetensors-{ARGS.release}"], capture_output=True,
                           text=True)
    if ARGS.skipped:
        ARGS.skipped.unlink(missing_ok=True)
    if found.returncode == 3:
        reason = found.stderr.strip().splitlines()[-1]
        print("skipped:", reason)
        if ARGS.skipped:
            ARGS.skipped.write_text(reason + "\n")
        return SKIPPED
    if found.returncode != 0:
        print(found.stderr, file=sys.stderr)
        return 1
    PYTHON = found.stdout.strip()
    result = unittest.main(argv=[sys.argv[0]], exit=False).result
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
