import base64
import json
import subprocess

from harness import MAKE_CHECKPOINT, CommandTest


class LsTest(CommandTest):
    def test_text(self):
        self.make("run")
        answer = self.run_reshard("ls", "/run")
        self.assertEqual((answer.code, answer.err), (0, ""))
        self.assert_reference(answer.out, "ls/ls.txt")
        self.assertNotIn("\x1b", answer.out)

    def test_chunks(self):
        self.make("run")
        answer = self.run_reshard("ls", "--chunks", "/run", "model.w")
        self.assertEqual(answer.code, 0)
        self.assert_reference(answer.out, "ls/chunks.txt")

    def test_json_is_the_documented_schema(self):
        self.make("run")
        answer = self.run_reshard("ls", "--json", "/run")
        listing = answer.json()
        self.assertEqual(list(listing), ["format", "unique_id", "tensors", "objects"])
        self.assertEqual((listing["format"], listing["unique_id"]), ("native", 0))
        tensors = {tensor["key"]: tensor for tensor in listing["tensors"]}
        self.assertEqual(sorted(tensors), [tensor["key"] for tensor in listing["tensors"]])
        for tensor in listing["tensors"]:
            self.assertEqual(list(tensor), ["key", "path", "dtype", "shape", "bytes", "digest", "chunks"])
            self.assertRegex(tensor["digest"], "^[0-9a-f]{16}$")
            self.assertEqual(sum(chunk["bytes"] for chunk in tensor["chunks"]), tensor["bytes"])
            for chunk in tensor["chunks"]:
                self.assertEqual(list(chunk), ["offset", "extent", "file", "byte_offset", "bytes"])
        w = tensors["model.w"]
        self.assertEqual((w["dtype"], w["shape"], w["path"]), ("float32", [300, 1024], ["model", "w"]))
        self.assertEqual([c["offset"] for c in w["chunks"]], [[0, 0], [0, 512]])
        self.assertEqual([c["file"] for c in w["chunks"]], ["0_0.safetensors", "1_0.safetensors"])
        self.assertEqual(tensors["model.head"]["chunks"], tensors["model.emb"]["chunks"])
        self.assertEqual(tensors["model.none"]["digest"], "0" * 16)
        self.assertEqual((tensors["opt.step"]["shape"], tensors["opt.step"]["dtype"]), ([], "int64"))

    def test_json_digest_and_bytes_are_those_of_the_file(self):
        path = self.make("run")
        listing = self.run_reshard("ls", "--json", "/run", "opt.step").json()
        (tensor,) = listing["tensors"]
        (chunk,) = tensor["chunks"]
        data = (path / chunk["file"]).read_bytes()[chunk["byte_offset"]:][:chunk["bytes"]]
        self.assertEqual(f"{crc64(data):016x}", tensor["digest"])
        header = json.loads((path / chunk["file"]).read_bytes()[8:][:int.from_bytes(
            (path / chunk["file"]).read_bytes()[:8], "little")])
        self.assertEqual(header["opt.step"]["dtype"], "I64")

    def test_json_objects(self):
        self.make("run", salt=42)
        objects = {o["key"]: o for o in self.run_reshard("ls", "--json", "/run").json()["objects"]}
        self.assertEqual(objects["train.step"], {"key": "train.step", "path": ["train", "step"], "type": "int", "value": 42})
        self.assertEqual((objects["train.lr"]["type"], objects["train.lr"]["value"]), ("float", 0.25))
        self.assertEqual(objects["train.loss"]["value"], "NaN")
        self.assertEqual(objects["train.name"]["value"], "adam\x1b[31m")
        self.assertIs(objects["train.on"]["value"], True)
        self.assertEqual((objects["train.nothing"]["type"], objects["train.nothing"]["value"]), ("null", None))
        self.assertEqual((objects["train.list"]["type"], objects["train.list"]["value"]), ("list", [1, "two"]))
        self.assertEqual(objects["layers.3"]["path"], ["layers", 3])
        self.assertEqual(objects["rng"]["type"], "per-rank")
        self.assertEqual({k: base64.b64decode(v) for k, v in objects["rng"]["value"].items()},
                         {"0": b"\x01" * 5, "1": b"\x02" * 5})

    def test_a_checkpoint_without_tensors(self):
        subprocess.run([MAKE_CHECKPOINT, self.dir / "empty", "0", "0", "0"], check=True)
        answer = self.run_reshard("ls", "/empty")
        self.assertEqual((answer.code, answer.out), (0, "no tensors\n"))

    def test_patterns(self):
        self.make("run")
        keys = lambda *p: [t["key"] for t in self.run_reshard("ls", "--json", "/run", *p).json()["tensors"]]
        self.assertEqual(keys("*step"), ["opt.step"])
        self.assertEqual(keys("model.[eh]*", "opt.*"), ["model.emb", "model.head", "opt.step"])
        self.assertEqual(keys("model"), [])
        answer = self.run_reshard("ls", "/run", "nothing*")
        self.assertEqual((answer.code, answer.out), (1, ""))
        self.assertIn("nothing in %s/run matches 'nothing*'" % self.dir, answer.last_line)


def crc64(data):
    crc = 2**64 - 1
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xC96C5795D7870F42 if crc & 1 else 0)
    return crc ^ 2**64 - 1
