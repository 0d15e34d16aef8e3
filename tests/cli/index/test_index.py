import json
import pathlib
import shutil
import struct

from harness import CommandTest

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "golden" / "paddle"


class IndexTest(CommandTest):
    """`index`, and the other commands on checkpoints that Paddle wrote."""

    def golden(self, case, name="run"):
        shutil.copytree(GOLDEN / case, self.dir / name)

    def test_gives_checksums_and_digests(self):
        self.golden("3.3.1/ranks2")
        before = self.run_reshard("info", "--json", "/run").json()
        self.assertEqual((before["format"], before["checksums"], before["tensors"]), ("paddle", False, 17))
        answer = self.run_reshard("index", "/run")
        self.assertEqual(answer.code, 0)
        self.assertIn("17 tensors in 2 files", answer.out)
        self.assertIn("wrote 0.metadata.reshard", answer.out)
        self.assertTrue(self.run_reshard("info", "--json", "/run").json()["checksums"])
        tensors = self.run_reshard("ls", "--json", "/run").json()["tensors"]
        self.assertTrue(all(tensor["digest"] for tensor in tensors))
        verified = self.run_reshard("verify", "--json", "/run").json()["snapshots"][0]
        self.assertEqual((verified["whole"], verified["structure_only"], verified["digests"]), (True, False, 17))

    def test_verify_without_an_index_says_what_to_run(self):
        self.golden("3.1.1/ranks2")
        answer = self.run_reshard("verify", "/run")
        self.assertEqual(answer.code, 0)
        self.assertIn("structure only", answer.out)
        self.assertIn("reshard index", answer.out)

    def test_a_flipped_byte_is_found_afterwards(self):
        self.golden("3.3.1/single")
        self.assertEqual(self.run_reshard("index", "/run").code, 0)
        chunk = self.run_reshard("ls", "--json", "/run").json()["tensors"][0]["chunks"][0]
        path = self.dir / "run" / chunk["file"]
        data = bytearray(path.read_bytes())
        data[chunk["byte_offset"]] ^= 1
        path.write_bytes(data)
        answer = self.run_reshard("verify", "/run")
        self.assertEqual(answer.code, 1)
        self.assertIn("BLOCK_CHECKSUM", answer.out)

    def test_what_is_no_plain_file_is_not_replaced(self):
        self.golden("3.3.1/single")
        (self.dir / "run" / "0.metadata.reshard").mkdir()
        answer = self.run_reshard("index", "/run")
        self.assertNotEqual(answer.code, 0)
        self.assertIn("0.metadata.reshard", answer.err)
        self.assertTrue((self.dir / "run" / "0.metadata.reshard").is_dir())
        self.assertEqual(sorted(p.name for p in (self.dir / "run").iterdir()),
                         ["0.metadata", "0.metadata.reshard", "0_0.distcp"])

    def test_a_conversion_says_what_is_wrong_with_its_source(self):
        self.golden("3.3.1/single")
        (self.dir / "run" / "0_0.distcp").unlink()
        answer = self.run_reshard("convert", "/run", "/native", "--to", "native")
        self.assertEqual(answer.code, 1)
        self.assertIn("0_0.distcp", answer.err)
        self.assertFalse((self.dir / "native").exists())

    def test_every_id_or_the_named_one(self):
        self.golden("3.3.1/ids")
        one = self.run_reshard("index", "--json", "/run@1").json()
        self.assertEqual([s["unique_id"] for s in one["snapshots"]], [1])
        self.assertFalse((self.dir / "run" / "10.metadata.reshard").exists())
        every = self.run_reshard("index", "--json", "/run").json()
        self.assertEqual([s["index"] for s in every["snapshots"]],
                         [f"{i}.metadata.reshard" for i in (0, 1, 10)])

    def test_a_missing_file_is_named_and_nothing_written(self):
        self.golden("3.3.1/ranks2")
        (self.dir / "run" / "1_0.distcp").unlink()
        answer = self.run_reshard("index", "/run")
        self.assertEqual(answer.code, 1)
        self.assertIn("1_0.distcp", answer.err)
        self.assertFalse((self.dir / "run" / "0.metadata.reshard").exists())
        info = self.run_reshard("info", "--json", "/run").json()
        self.assertFalse(info["complete"])
        self.assertEqual(info["problem"]["reason"], "FILE_MISSING")

    def test_a_native_checkpoint_needs_none(self):
        self.make("run")
        answer = self.run_reshard("index", "/run")
        self.assertEqual((answer.code, answer.out), (0, ""))
        self.assertIn("native", answer.err)

    def test_latest_takes_foreign_checkpoints_and_passes_over_torn_ones(self):
        (self.dir / "run").mkdir()
        self.golden("3.3.1/ranks2", "run/step-9")
        self.golden("3.3.1/ranks2", "run/step-10")
        (self.dir / "run" / "step-10" / "0_0.distcp").unlink()
        answer = self.run_reshard("latest", "/run")
        self.assertEqual((answer.code, answer.out), (0, f"{self.dir}/run/step-9\n"))
        self.assertIn("step-10", answer.err)

    def test_a_pickle_that_would_run_something_is_refused_by_name(self):
        (self.dir / "run").mkdir()
        (self.dir / "run" / "0.metadata").write_bytes(b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.")
        answer = self.run_reshard("info", "/run")
        self.assertEqual(answer.code, 2)
        self.assertIn("os.system", answer.err)


class SafetensorsTest(CommandTest):
    """The same commands on safetensors checkpoints."""

    def golden(self, case, name="run"):
        shutil.copytree(GOLDEN.parent / "torch_hf" / case, self.dir / name)

    def test_every_command_on_a_set(self):
        self.golden("hf_single")
        before = self.run_reshard("info", "--json", "/run").json()
        self.assertEqual((before["format"], before["checksums"], before["tensors"]), ("safetensors", False, 2))
        self.assertEqual(self.run_reshard("verify", "/run").code, 0)
        answer = self.run_reshard("index", "/run")
        self.assertIn("wrote model.safetensors.index.json.reshard", answer.out)
        verified = self.run_reshard("verify", "--json", "/run").json()["snapshots"][0]
        self.assertEqual((verified["whole"], verified["structure_only"], verified["digests"]), (True, False, 2))
        self.assertEqual(self.run_reshard("export", "/run", "a[3]", "-o", "/a.npy").code, 0)
        self.assertEqual(struct.unpack("<4f", (self.dir / "a.npy").read_bytes()[-16:]), (12, 13, 14, 15))
        self.assertEqual(self.run_reshard("latest", "/").out.strip(), str(self.dir / "run"))

    def test_one_file_of_a_set_is_named(self):
        self.golden("hf_single")
        answer = self.run_reshard("ls", "/run/model-00001-of-00002.safetensors")
        self.assertEqual(answer.code, 0)
        self.assertIn("one of 2 files", answer.err)
        (self.dir / "two").mkdir()
        for name in ("model.safetensors", "model.fp16.safetensors"):
            header = b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
            (self.dir / "two" / name).write_bytes(len(header).to_bytes(8, "little") + header + b"x")
        answer = self.run_reshard("ls", "/two")
        self.assertEqual(answer.code, 2)
        self.assertIn("DIRECTORY/model.fp16.safetensors", answer.err)
        self.assertEqual(self.run_reshard("ls", "/two/model.fp16.safetensors").code, 0)

    def test_a_cache_of_links(self):
        """snapshots/HASH/NAME -> ../../blobs/SUM, as huggingface_hub keeps its downloads."""
        self.golden("hf_single", "given")
        snapshot = self.dir / "models--x" / "snapshots" / "0123"
        snapshot.mkdir(parents=True)
        (self.dir / "models--x" / "blobs").mkdir()
        for number, path in enumerate(sorted((self.dir / "given").iterdir())):
            path.rename(self.dir / "models--x" / "blobs" / f"{number:064x}")
            (snapshot / path.name).symlink_to(f"../../blobs/{number:064x}")
        self.assertEqual(self.run_reshard("ls", "--json", "/models--x/snapshots/0123").json()["tensors"][0]["key"], "a")
        self.assertEqual(self.run_reshard("ls", "/models--x/snapshots/0123/model-00002-of-00002.safetensors").code, 0)
        answer = self.run_reshard("latest", "/models--x")
        self.assertEqual(answer.out.strip(), str(snapshot))
        self.assertEqual(self.run_reshard("convert", "/models--x/snapshots/0123", "/native", "--to", "native").code, 0)

    def test_converts_shards_to_one_file_or_to_several(self):
        self.golden("hf_dist4")
        self.assertEqual(self.run_reshard("convert", "/run", "/one", "--to", "safetensors").code, 0)
        self.assertEqual(sorted(p.name for p in (self.dir / "one").iterdir()),
                         ["model.safetensors", "model.safetensors.reshard"])
        answer = self.run_reshard("convert", "/one", "/two", "--to", "safetensors", "--max-file-size", "128")
        self.assertEqual((answer.code, answer.err), (0, ""))
        self.assertIn("2 digests equal", answer.out)
        self.assertEqual(sorted(p.name for p in (self.dir / "two").iterdir()),
                         ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                          "model.safetensors.index.json", "model.safetensors.index.json.reshard"])
        for folder in ("/one", "/two"):
            self.assertEqual(self.run_reshard("verify", folder).code, 0)
        index = json.loads((self.dir / "two" / "model.safetensors.index.json").read_text())
        self.assertEqual(index, {"metadata": {"total_size": 240},
                                 "weight_map": {"col": "model-00001-of-00002.safetensors",
                                                "row": "model-00002-of-00002.safetensors"}})
        self.assertEqual(self.run_reshard("convert", "/two", "/back", "--to", "native").code, 0)

    def test_a_missing_shard_is_no_smaller_tensor(self):
        self.golden("hf_dist4")
        (self.dir / "run" / "shard-00002-model-00001-of-00001.safetensors").unlink()
        answer = self.run_reshard("ls", "/run")
        self.assertNotEqual(answer.code, 0)
        self.assertIn("shard-00002", answer.err)
