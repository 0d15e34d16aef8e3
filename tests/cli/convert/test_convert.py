import json
import os
import signal
import subprocess
import time
import unittest

from harness import MAKE_CHECKPOINT, RESHARD, SANITIZED, CommandTest


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

    def make_large(self):
        subprocess.run([MAKE_CHECKPOINT, self.dir / "large", "0", "0", "384"], check=True)

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
