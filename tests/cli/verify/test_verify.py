import os
import pty
import subprocess

from harness import RESHARD, CommandTest


class VerifyTest(CommandTest):
    def test_a_whole_checkpoint(self):
        self.make("run", 0)
        self.make("run", 1, salt=9)
        answer = self.run_reshard("verify", "/run")
        self.assertEqual((answer.code, answer.err), (0, ""))
        self.assert_reference(answer.out, "verify/whole.txt")
        report = self.run_reshard("verify", "--json", "/run@1").json()
        self.assertTrue(report["whole"])
        (snapshot,) = report["snapshots"]
        self.assertEqual((snapshot["unique_id"], snapshot["tensors"], snapshot["digests"]), (1, 6, 6))
        self.assertEqual((snapshot["faults"], report["notes"]), ([], []))

    def test_every_fault_is_listed(self):
        path = self.make("run", 0)
        self.make("run", 1)
        self.make("run", 2)
        self.flip(path / "0_0.safetensors", 20_000)
        self.flip(path / "0_0.safetensors", 600_000)
        self.flip(path / "1_0.safetensors", 50)
        (path / "0_1.safetensors").unlink()
        with open(path / "1_1.safetensors", "r+b") as file:
            file.truncate(300_000)
        self.flip(path / "2.reshard", 60)
        answer = self.run_reshard("verify", "/run")
        self.assertEqual(answer.code, 1)
        self.assert_reference(answer.out, "verify/damaged.txt")
        self.assertIn("none of the snapshots in %s/run is whole" % self.dir, answer.last_line)
        self.assertIn("`reshard verify %s/run` checks the other" % self.dir,
                      self.run_reshard("verify", "/run@0").last_line)
        self.make("run", 3, salt=1)
        self.assertIn("%s/run@3 is the newest that is whole" % self.dir, self.run_reshard("verify", "/run").last_line)
        (path / "3.reshard").unlink()
        report = self.run_reshard("verify", "--json", "/run").json()
        reasons = [[fault["reason"] for fault in s["faults"]] for s in report["snapshots"]]
        self.assertEqual(reasons, [["BLOCK_CHECKSUM", "BLOCK_CHECKSUM", "FILE_HEAD"], ["FILE_MISSING", "FILE_SIZE"],
                                   ["CATALOG_CHECKSUM"]])
        fault = report["snapshots"][0]["faults"][0]
        self.assertEqual(fault["file"], "0_0.safetensors")
        self.assertLessEqual(fault["offset"], 20_000)
        self.assertGreater(fault["offset"] + fault["bytes"], 20_000)
        self.assertIn("model.w", fault["keys"])
        self.assertEqual(fault["code"], "corruption")

    def test_keys(self):
        path = self.make("run")
        self.flip(path / "0_0.safetensors", 400_000)
        self.assertEqual(self.run_reshard("verify", "/run", "--key", "model.b*").code, 0)
        self.assertEqual(self.run_reshard("verify", "/run", "--key", "model.b*", "--key", "*.w").code, 1)
        answer = self.run_reshard("verify", "/run", "--key", "mdoel.*")
        self.assertEqual((answer.code, answer.out), (1, ""))
        self.assertIn("reshard ls", answer.last_line)

    def test_strays_are_notes(self):
        path = self.make("run")
        (path / "5_0.a1.safetensors").write_bytes(b"x")
        (path / "1.a0.reshard.tmp").write_bytes(b"x")
        answer = self.run_reshard("verify", "/run")
        self.assertEqual(answer.code, 0)
        self.assertIn("note: 5_0.a1.safetensors", answer.err)
        self.assertIn("note: 1.a0.reshard.tmp", answer.err)

    def test_a_lost_commit_record(self):
        path = self.make("run", 1)
        self.make("run", 3)
        (path / "3.reshard").unlink()
        answer = self.run_reshard("verify", "/run")
        self.assertEqual(answer.code, 0)
        self.assertIn("not its commit record 3.reshard", answer.err)
        (path / "1.reshard").unlink()
        answer = self.run_reshard("verify", "/run")
        self.assertEqual(answer.code, 1)
        self.assertIn("files of snapshot 3 without its commit record 3.reshard", answer.err)

    def test_what_cannot_be_read_is_not_called_damaged(self):
        path = self.make("run")
        (path / "1_0.safetensors").chmod(0)
        answer = self.run_reshard("verify", "/run", as_nobody=True)
        self.assertEqual(answer.code, 2)
        self.assertIn("1_0.safetensors", answer.out)

    def test_the_bar_is_for_terminals(self):
        self.make("run")
        ours, theirs = pty.openpty()
        done = subprocess.run([RESHARD, "verify", self.dir / "run"], stdout=subprocess.PIPE, stderr=theirs, text=True)
        os.close(theirs)
        drawn = b""
        try:
            while part := os.read(ours, 10_000):
                drawn += part
        except OSError:  # EIO: the other end is closed and all is read
            pass
        os.close(ours)
        drawn = drawn.decode()
        self.assertEqual((done.returncode, done.stdout.count("\n")), (0, 1))
        self.assertRegex(drawn, r"^\rverify \[#*\.*\] +\d+%  .* of 1.18 MiB  .*/s")
        self.assertTrue(drawn.endswith("\r\x1b[K"))
