import os
import struct
import subprocess
import unittest

from harness import RESHARD, SANITIZED, CommandTest


class InfoTest(CommandTest):
    def test_text(self):
        self.make("run")
        answer = self.run_reshard("info", "/run")
        self.assertEqual((answer.code, answer.err), (0, ""))
        self.assert_reference(answer.out, "info/info.txt")

    def test_json(self):
        self.make("run", 2)
        self.make("run", 10)
        info = self.run_reshard("info", "--json", "/run").json()
        self.assertEqual(info["path"], str(self.dir / "run"))
        self.assertEqual(info["ids"], [2, 10])
        self.assertEqual(info["unique_id"], 10)
        self.assertEqual(info["format"], "native")
        self.assertEqual(info["world_size"], 2)
        self.assertEqual(info["tensors"], 6)
        self.assertEqual(info["aliases"], 1)
        self.assertEqual(info["bytes"], 64 * 32 * 2 + 300 * 1024 * 4 + 7 * 2 + 8)
        self.assertEqual(sum(d["bytes"] for d in info["dtypes"]), info["bytes"])
        self.assertEqual(sum(d["tensors"] for d in info["dtypes"]), 6)
        self.assertEqual((info["files"], info["objects"]), (2, 9))
        self.assertTrue(info["complete"])
        self.assertIsNone(info["problem"])

    def test_many_ids(self):
        for unique_id in range(8):
            self.make("run", unique_id)
        self.assertRegex(self.run_reshard("info", "/run").out, r"snapshot +7, the newest of 8\n")
        self.assertRegex(self.run_reshard("info", "/run@1").out,
                         r"snapshot +1 of 0, 1, \.\.\., 5, 6, 7 \(8 in all\)\n")
        self.assertIn("it holds 0, 1, ..., 5, 6, 7 (8 in all): write", self.run_reshard("info", "/run@9").last_line)

    def test_an_incomplete_snapshot(self):
        (self.make("run") / "1_0.safetensors").unlink()
        answer = self.run_reshard("info", "/run")
        self.assertEqual(answer.code, 1)
        self.assertRegex(answer.out, r"complete +no: .*1_0.safetensors")
        self.assertIn("`reshard verify %s/run@0`" % self.dir, answer.last_line)
        info = self.run_reshard("info", "--json", "/run").json()
        self.assertEqual((info["complete"], info["problem"]["reason"]), (False, "FILE_MISSING"))

    def test_a_damaged_catalog(self):
        self.flip(self.make("run") / "0.reshard", 60)
        answer = self.run_reshard("info", "/run")
        self.assertEqual((answer.code, answer.out), (1, ""))
        self.assertIn("0.reshard", answer.err)
        self.assertIn("%s/run/0.reshard: " % self.dir, answer.err)
        self.assertIn("`reshard verify %s/run` lists every fault" % self.dir, answer.last_line)


@unittest.skipIf(SANITIZED, "resident memory is not measured under a sanitizer")
class MemoryTest(CommandTest):
    """What is read of a file that may be hostile takes at most 8 times its size and 64 MiB."""

    def check(self, path, size, code, text):
        """`info` of `path` ends with `code` and says `text`, within the bound of its `size` bytes of metadata."""
        child = subprocess.Popen([RESHARD, "info", path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said = child.stdout.read()
        child.stdout.close()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(child.returncode, code, said[-300:])
        self.assertIn(text, said)
        self.assertLessEqual(usage.ru_maxrss * 1024, 8 * size + (64 << 20), path)

    def test_pickles_of_small_things(self):
        # Made one by one: a child's peak counts what this process holds.
        begin, end = b"\x80\x04](", b"e."
        pickles = {
            "none": (begin, b"N", end, "no Metadata object"),
            "integers": (begin, b"K\x01", end, "no Metadata object"),
            "texts": (begin, b"\x8c\x01a", end, "no Metadata object"),
            "floats": (begin, b"G" + bytes(8), end, "no Metadata object"),
            "keys": (b"\x80\x02}(", None, b"u.", "no Metadata object"),
            "marks": (b"\x80\x02", b"(", b".", "too few values"),
            "copies": (b"\x80\x02N", b"2", b".", "left over"),
            "lists": (begin, b"]", end, "bytes of memory"),
            "dicts": (begin, b"}", end, "bytes of memory"),
            "tuples": (begin, b"N\x85", end, "bytes of memory"),
            "memos": (begin, b"]\x94", end, "bytes of memory"),
            "bytes": (begin, b"C\x00", end, "bytes of memory"),
        }
        for name, (head, repeated, tail, text) in pickles.items():
            for metadata in ("0.metadata", ".metadata"):  # Paddle's, PyTorch's
                path = self.dir / (name + metadata)
                path.mkdir()
                with open(path / metadata, "wb") as file:
                    file.write(head)
                    if repeated is None:
                        for i in range((8 << 20) // 6):
                            file.write(b"J" + struct.pack("<i", i) + b"N")
                    else:
                        file.write(repeated * ((8 << 20) // len(repeated)))
                    file.write(tail)
                with self.subTest(name, metadata=metadata):
                    self.check(path, (path / metadata).stat().st_size, 1, text)

    def test_the_longest_safetensors_header(self):
        path = self.dir / "a.safetensors"
        limit = 100_000_000
        with open(path, "wb") as file:
            file.write(bytes(8) + b"{")
            size = 1
            for i in range(10**9):
                entry = b'%s"%x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % (b"," if i else b"", i)
                if size + len(entry) + 1 > limit:
                    break
                file.write(entry)
                size += len(entry)
            file.write(b"}")
            file.seek(0)
            file.write(struct.pack("<Q", size + 1))
        self.assertGreater(i, 1_700_000)
        self.check(path, path.stat().st_size, 0, "tensors     %d" % i)

    def test_a_long_safetensors_header_of_a_model(self):
        path = self.dir / "a.safetensors"
        count = 300_000
        with open(path, "wb") as file:
            file.write(bytes(8) + b"{")
            for i in range(count):
                file.write(b'%s"model.layers.%06d.mlp.w":' % (b"," if i else b"", i))
                file.write(b'{"dtype":"BF16","shape":[1],"data_offsets":[%d,%d]}' % (2 * i, 2 * i + 2))
            file.write(b"}")
            size = file.tell() - 8
            file.write(bytes(2 * count))
            file.seek(0)
            file.write(struct.pack("<Q", size))
        self.check(path, size, 0, "tensors     %d in %d chunks" % (count, count))
