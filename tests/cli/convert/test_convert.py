import json
import os
import resource
import shutil
import signal
import subprocess
import time
import unittest

from harness import GOLDEN, MAKE_CHECKPOINT, RESHARD, SANITIZED, CommandTest


class ConvertTest(CommandTest):
    def test_help(self):
        self.assert_help("convert")

    def test_keeps_tensors_objects_and_id(self):
        self.make("run", 7, salt=3)
        answer = self.run_reshard("convert", "/run", "/out/new", "--to", "native")
        self.assertEqual((answer.code, answer.err), (0, ""))
        self.assertEqual(self.plain(answer.out), "/out/new@7: 6 tensors and 9 objects, 1.18 MiB, as native of 2 ranks; "
                                                 "6 digests equal to the source's\n")
        before = self.run_reshard("ls", "--json", "/run").json()
        after = self.run_reshard("ls", "--json", "/out/new").json()
        self.assertEqual(after["objects"], before["objects"])
        for old, new in zip(before["tensors"], after["tensors"], strict=True):
            self.assertEqual({**old, "chunks": 0}, {**new, "chunks": 0})
        self.assertEqual(self.run_reshard("verify", "/out/new").code, 0)
        self.assertEqual(self.run_reshard("info", "--json", "/out/new").json()["aliases"], 1)

    def test_json_is_the_documented_schema(self):
        self.make("run")
        report = self.run_reshard("convert", "--json", "/run", "/out", "--to", "native", "--ranks", "3",
                                  "--exclude", "rng", "--exclude", "train.*").json()
        self.assertEqual(list(report), ["source", "destination", "format", "unique_id", "dry_run", "ranks", "tensors",
                                        "aliases", "objects", "bytes", "bytes_read", "digests_equal", "digests_new",
                                        "unverified", "digests_cast", "overflows", "skipped"])
        self.assertEqual((report["format"], report["unique_id"], report["dry_run"], report["ranks"]), ("native", 0, False, 3))
        self.assertEqual((report["tensors"], report["aliases"], report["objects"]), (6, 1, 1))
        self.assertEqual((report["digests_equal"], report["digests_new"], report["skipped"]), (6, 0, []))
        self.assertEqual(sorted(p.name for p in (self.dir / "out").glob("*.safetensors")),
                         ["0_0.safetensors", "1_0.safetensors", "2_0.safetensors"])

    def test_a_dry_run_makes_nothing(self):
        self.make("run")
        answer = self.run_reshard("convert", "--dry-run", "/run", "/a/b", "--to", "native")
        self.assertEqual(answer.code, 0)
        self.assertIn("would have 6 tensors", answer.out)
        self.assertEqual(os.listdir(self.dir), ["run"])

    def test_a_failure_takes_away_what_it_made(self):
        path = self.make("run")
        (tensor,) = self.run_reshard("ls", "--json", "/run", "model.w").json()["tensors"]
        self.flip(path / tensor["chunks"][0]["file"], tensor["chunks"][0]["byte_offset"] + 5)
        answer = self.run_reshard("convert", "/run", "/a/b", "--to", "native")
        self.assertEqual((answer.code, answer.out), (1, ""))
        self.assertIn("checksum", answer.err)
        self.assertEqual(os.listdir(self.dir), ["run"])
        (self.dir / "mine").mkdir()
        self.assertEqual(self.run_reshard("convert", "/run", "/mine", "--to", "native").code, 1)
        self.assertEqual(os.listdir(self.dir / "mine"), [])  # it was there before
        self.assertEqual(self.run_reshard("convert", "/run", "/a/b", "--to", "native", "--exclude", "model.w").code, 0)

    def test_refusals_say_what_to_do(self):
        self.make("run")
        self.make("other", 3)
        refuse = lambda *a: self.assert_usage_error("convert", *a)
        self.assertIn("overwrite", refuse("/run", "/other", "--to", "native").last_line)
        self.assertIn("--to native", refuse("/run", "/new", "--to", "padle").last_line)
        self.assertIn("exclude 'rng'", refuse("/run", "/new", "--to", "native", "--ranks", "3").last_line)
        self.assertIn("another directory", refuse("/run", "/run", "--to", "native", "--overwrite").last_line)
        self.assertIn("at least", refuse("/run", "/new", "--to", "native", "--memory", "1M").last_line)
        answer = self.run_reshard("convert", "/run", "/new", "--to", "native", "--include", "x")
        self.assertEqual((answer.code, answer.out), (1, ""))
        self.assertIn("nothing to convert", answer.err)
        self.assertIn("usage: reshard convert", refuse("/run", "/new").last_line)
        self.assertEqual(sorted(os.listdir(self.dir)), ["other", "run"])
        answer = self.run_reshard("convert", "/run", "/other", "--to", "native", "--force")
        self.assertEqual(answer.code, 0)
        self.assertEqual(self.run_reshard("info", "--json", "/other").json()["ids"], [0, 3])

    def test_a_mesh_with_placements(self):
        self.make("run")
        answer = self.run_reshard("convert", "/run", "/out", "--to", "native", "--mesh", "dp=2,tp=3", "--exclude", "rng",
                                  "--placement", "model.w=replicate,shard(1)")
        self.assertEqual((answer.code, answer.err), (0, ""))
        self.assertIn("as native of 6 ranks; 6 digests equal to the source's", answer.out)
        tensors = self.run_reshard("ls", "--json", "/out").json()["tensors"]
        chunks = {tensor["key"]: [chunk["extent"] for chunk in tensor["chunks"]] for tensor in tensors}
        self.assertEqual(chunks["model.w"], [[300, 342], [300, 342], [300, 340]])
        self.assertEqual(chunks["model.emb"], [[11, 32]] * 5 + [[9, 32]])
        refuse = lambda *a: self.assert_usage_error("convert", "/run", "/new", "--to", "native", "--exclude", "rng", *a)
        self.assertIn("--mesh: ", refuse("--mesh", "dp=0").err)
        self.assertIn("both a mesh and", refuse("--mesh", "dp=2", "--ranks", "2").err)
        self.assertIn("name its axes", refuse("--placement", "*=replicate").last_line)
        self.assertIn("such as replicate,shard(1)", refuse("--mesh", "dp=2", "--placement", "*=split(1)").last_line)
        self.assertIn("names no keys", refuse("--mesh", "dp=2", "--placement", "replicate").err)
        self.assertIn("for each axis", refuse("--mesh", "dp=2", "--placement", "*=replicate,replicate").last_line)
        self.assertIn("tensor 'model.bias'", refuse("--mesh", "dp=2", "--placement", "*=shard(1)").err)
        self.assertIn("'model.W=replicate' decides nothing",
                      refuse("--mesh", "dp=2", "--placement", "model.W=replicate").err)
        self.assertIn("number of ranks instead", refuse("--max-file-size", "1M").last_line)

    def test_what_cannot_be_read_is_left_out_on_request(self):
        shutil.copytree(GOLDEN / "torch_saved", self.dir / "saved")
        answer = self.run_reshard("convert", "/saved/odd.pt", "/out", "--to", "native")
        self.assertEqual(answer.code, 2)
        self.assertIn("quantized: ", answer.err)
        self.assertEqual(answer.last_line, "reshard: pass --skip-unsupported to leave them out")
        answer = self.run_reshard("convert", "/saved/new.pt", "/out", "--to", "native")
        self.assertEqual(answer.code, 2)
        self.assertIn("hyper: an object of type argparse.Namespace", answer.err)
        self.assertNotIn("--to native", answer.err)
        self.assertFalse((self.dir / "out").exists())
        answer = self.run_reshard("convert", "--json", "/saved/odd.pt", "/out", "--to", "native", "--skip-unsupported")
        self.assertEqual(answer.code, 0, answer.err)
        self.assertEqual([line.split(":")[0] for line in answer.json()["skipped"]],
                         ["csr", "f4", "meta", "neg", "nested", "quantized32", "quantized", "sparse"])
        self.assertEqual(self.run_reshard("export", "/saved/odd.pt", "quantized[0]", "-o", "/w.npy").code, 2)
        self.assertFalse((self.dir / "w.npy").exists())
        self.assertEqual(self.run_reshard("export", "/saved/odd.pt", "last", "-o", "/w.npy").code, 0)

    def test_other_dtypes(self):
        self.make("run")
        answer = self.run_reshard("convert", "/run", "/out", "--to", "native", "--dtype", "float8_e4m3fn",
                                  "--dtype", "model.bias=float32")
        self.assertEqual(answer.code, 0)
        self.assertIn("1 digest equal to the source's, 5 new with the dtype", answer.out)
        self.assertRegex(answer.err, r"warning: 'model.w': \d+ values of float32 too large for float8_e4m3fn, now infinity or NaN")
        tensors = self.run_reshard("ls", "--json", "/out").json()["tensors"]
        self.assertEqual({tensor["key"]: tensor["dtype"] for tensor in tensors},
                         {"model.bias": "float32", "model.emb": "float8_e4m3fn", "model.head": "float8_e4m3fn",
                          "model.none": "float8_e4m3fn", "model.w": "float8_e4m3fn", "opt.step": "int64"})
        report = self.run_reshard("convert", "--json", "/run", "/out2", "--to", "native", "--dtype", "model.w=float16").json()
        self.assertEqual((report["digests_equal"], report["digests_cast"]), (5, 1))
        ((overflow),) = report["overflows"]
        self.assertEqual((overflow["key"], overflow["from"], overflow["to"]), ("model.w", "float32", "float16"))
        self.assertEqual(self.run_reshard("verify", "/out2").code, 0)
        self.assertEqual(self.run_reshard("info", "--json", "/out2").json()["aliases"], 1)
        refuse = lambda *a: self.assert_usage_error("convert", "/run", "/new", "--to", "native", *a)
        self.assertIn("--dtype: ", refuse("--dtype", "bf17").err)
        self.assertIn("twice", refuse("--dtype", "float16", "--dtype", "float32").err)
        self.assertIn("floating-point type", refuse("--dtype", "int8").last_line)
        self.assertIn("'opt.*=float16' decides nothing", refuse("--dtype", "opt.*=float16").err)
        dry = self.run_reshard("convert", "--dry-run", "/run", "/new", "--to", "native", "--dtype", "float32")
        self.assertIn("1.18 MiB", dry.out)

    def make_large(self, mib=384):
        subprocess.run([MAKE_CHECKPOINT, self.dir / "large", "0", "0", str(mib)], check=True)

    @unittest.skipIf(SANITIZED, "a sanitizer takes address space")
    def test_a_limit_of_the_address_space_is_enough(self):
        self.make_large(1024)
        limit = 640 << 20
        done = subprocess.run([RESHARD, "convert", self.dir / "large", self.dir / "new", "--to", "native"],
                              capture_output=True, text=True,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("32 digests equal", done.stdout)

    @unittest.skipIf(SANITIZED, "resident memory is not measured under a sanitizer")
    def test_memory_stays_within_the_bound(self):
        self.make_large()
        peak = {}
        for memory in ("16MiB", "64MiB", "256MiB"):
            child = subprocess.Popen([RESHARD, "convert", "--json", self.dir / "large", self.dir / memory, "--to", "native",
                                      "--memory", memory], stdout=subprocess.PIPE)
            report = json.loads(child.stdout.read())
            child.stdout.close()
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(child.returncode, 0)
            self.assertLessEqual(report["bytes_read"], 1.1 * report["bytes"])
            peak[memory] = usage.ru_maxrss >> 10
        print("peak MiB:", peak)
        self.assertGreater(report["bytes"], 384 << 20)
        self.assertLess(peak["16MiB"], 16 + 24)  # the program itself, its threads, the catalogs
        self.assertLess(peak["64MiB"], 64 + 24)
        self.assertLess(peak["256MiB"], 256 + 24)

    def test_an_interrupt_leaves_nothing(self):
        self.make_large()
        child = subprocess.Popen([RESHARD, "convert", self.dir / "large", self.dir / "a" / "b", "--to", "native"],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while child.poll() is None and not list((self.dir / "a").glob("b/*.safetensors")):
            time.sleep(0.002)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
        self.assertEqual(child.returncode, 2, err)
        self.assertIn("interrupted", err)
        self.assertEqual(os.listdir(self.dir), ["large"])
