import fcntl
import os
import time

from harness import CommandTest


class GcTest(CommandTest):
    def names(self):
        return sorted(str(p.relative_to(self.dir / "run")) for p in (self.dir / "run").rglob("*"))

    def age(self, path, days):
        when = time.time() - days * 86400
        os.utime(path, (when, when))

    def test_keeps_the_newest(self):
        for step in (8, 9, 10):
            self.make(f"run/step-{step}")
        (self.dir / "run" / "step-8" / "notes.txt").write_text("mine")
        dry = self.run_reshard("gc", "/run", "--keep", "1", "--dry-run")
        self.assertEqual((dry.code, dry.err), (0, ""))
        self.assertEqual(len(self.names()), 13)
        self.assert_reference(dry.out, "gc/dry_run.txt")
        answer = self.run_reshard("gc", "/run", "--keep", "1")
        self.assertEqual(answer.code, 0)
        self.assert_reference(answer.out, "gc/gc.txt")
        # A directory that became empty is gone, one with a file of the user's is not.
        self.assertEqual(self.names(), ["step-10", "step-10/0.reshard", "step-10/0_0.safetensors",
                                        "step-10/1_0.safetensors", "step-8", "step-8/notes.txt"])
        self.assertEqual(self.run_reshard("verify", "/run/step-10").code, 0)

    def test_dry_run_lists_what_a_run_removes(self):
        self.make("run", 0)
        self.make("run", 1)
        path = self.make("run", 2)
        (path / "0.reshard").rename(path / "0.reshard.deleting")
        (path / "4_7.safetensors").write_bytes(b"x" * 10)
        self.age(path / "4_7.safetensors", 3)
        planned = self.run_reshard("gc", "--json", "--dry-run", "--keep", "1", "/run").json()
        done = self.run_reshard("gc", "--json", "--keep", "1", "/run").json()
        self.assertEqual(planned["removed"], done["removed"])
        self.assertEqual([r["kind"] for r in done["removed"]], ["interrupted", "snapshot", "stray"])
        self.assertEqual(done["removed"][2]["files"], ["4_7.safetensors"])
        self.assertEqual([k["unique_id"] for k in done["kept"]], [2])
        self.assertEqual((planned["dry_run"], done["dry_run"], done["keep"]), (True, False, 1))
        self.assertEqual(self.names(), ["0_2.safetensors", "1_2.safetensors", "2.reshard"])
        again = self.run_reshard("gc", "--json", "--keep", "1", "/run").json()
        self.assertEqual((again["removed"], again["bytes"]), ([], 0))

    def test_age_of_strays(self):
        path = self.make("run")
        (path / "0_1.safetensors").write_bytes(b"x")
        self.age(path / "0_1.safetensors", 0.5)
        answer = self.run_reshard("gc", "/run", "--keep", "1")
        self.assertIn("recent", answer.err)
        self.assertIn("0_1.safetensors", self.names())
        self.assertEqual(self.run_reshard("gc", "/run", "--keep", "1", "--older-than", "11h").code, 0)
        self.assertNotIn("0_1.safetensors", self.names())

    def test_a_save_at_work_is_left_alone(self):
        path = self.make("run")
        claim, data = path / "1.a0.reshard.tmp", path / "0_1.safetensors"
        for file in (claim, data):
            file.write_bytes(b"x")
            self.age(file, 9)
        with open(claim) as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            answer = self.run_reshard("gc", "/run", "--keep", "1")
            self.assertEqual(answer.code, 0)
            self.assertIn("a save is at work", answer.err)
            self.assertIn("0_1.safetensors", self.names())
        self.run_reshard("gc", "/run", "--keep", "1")
        self.assertEqual(self.names(), ["0.reshard", "0_0.safetensors", "1_0.safetensors"])

    def test_verify_keeps_one_that_is_whole(self):
        path = self.make("run", 1)
        self.make("run", 2)
        self.flip(path / "0_2.safetensors", 20_000)
        plan = self.run_reshard("gc", "--json", "--dry-run", "--keep", "1", "/run").json()
        self.assertEqual([k["unique_id"] for k in plan["kept"]], [2])
        plan = self.run_reshard("gc", "--json", "--verify", "--keep", "1", "/run").json()
        self.assertEqual(([k["unique_id"] for k in plan["kept"]], plan["removed"]), ([1], []))

    def test_nothing_to_keep(self):
        (self.dir / "run").mkdir()
        answer = self.run_reshard("gc", "/run", "--keep", "1")
        self.assertEqual(answer.code, 0)
        self.assertIn("holds no snapshot", answer.last_line)
        (self.dir / "run" / "0.metadata").write_bytes(b"x")
        self.assertIn("of another format", self.run_reshard("gc", "/run", "--keep", "1").last_line)

    def test_wrong_usage(self):
        self.make("run")
        self.assertIn("--keep", self.assert_usage_error("gc", "/run").err)
        self.assert_usage_error("gc", "/run", "--keep", "0")
        self.assertIn("without @ID", self.assert_usage_error("gc", "/run@0", "--keep", "1").err)
        self.assertIn("12h", self.assert_usage_error("gc", "/run", "--keep", "1", "--older-than", "soon").last_line)
        self.assertEqual(len(self.names()), 3)

    def test_nothing_is_removed_when_something_cannot_be_read(self):
        for step in (1, 2, 3):
            self.make(f"run/step-{step}")
        (self.dir / "run" / "step-3" / "0_0.safetensors").chmod(0)
        for path in [self.dir / "run", *(self.dir / "run").rglob("*")]:
            os.chown(path, 65534, 65534)
        answer = self.run_reshard("gc", "/run", "--keep", "1", as_nobody=True)
        self.assertEqual(answer.code, 2)
        self.assertEqual(len(self.names()), 12)
