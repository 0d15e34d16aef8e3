from harness import CommandTest


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
