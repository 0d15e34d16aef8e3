import os
import shutil

from harness import GOLDEN, CommandTest


class DiffTest(CommandTest):
    def test_help(self):
        self.assert_help("diff")

    def test_equal_content_over_other_ranks_and_formats(self):
        self.make("run", 3)
        self.run_reshard("convert", "/run", "/rows", "--to", "native", "--ranks", "5", "--exclude", "rng")
        answer = self.run_reshard("diff", "/run@3", "/rows", "--key", "model.*", "--key", "train.*")
        self.assertEqual((answer.code, answer.err), (0, ""))
        self.assertEqual(self.plain(answer.out), "/run@3 and /rows@3 are equal: 5 tensors and 7 objects, 1.18 MiB; "
                                                 "5 tensors compared by digest\n")
        self.assertEqual(self.run_reshard("convert", "/run", "/paddle", "--to", "paddle", "--skip-unsupported").code, 0)
        answer = self.run_reshard("diff", "/run", "/paddle", "--key", "model.[a-m]*")
        self.assertEqual(answer.code, 0, answer.out)

    def test_opaque_values_of_which_only_the_type_is_known(self):
        file = os.path.relpath(GOLDEN / "torch_saved" / "new.pt")
        answer = self.run_reshard("diff", "--json", file, file)
        self.assertEqual(answer.code, 2)
        self.assertEqual(answer.json()["equal"], None)
        (fault,) = answer.json()["faults"]
        self.assertEqual((fault["key"], fault["reason"]), ("hyper", "OPAQUE_CONTENT"))
        self.assertIn("warning: could not compare 'hyper': ", answer.err)
        self.assertIn("argparse.Namespace only the type is known", answer.err)

    def test_no_data_file_is_needed(self):
        self.make("run", 3)
        shutil.copytree(self.dir / "run", self.dir / "copy")
        for file in (self.dir / "copy").glob("*.safetensors"):
            file.unlink()
        answer = self.run_reshard("diff", "/run", "/copy")
        self.assertEqual(answer.code, 0, answer.err)

    def test_differences_on_one_screen(self):
        self.make("a", 0, salt=1)
        self.make("b", 0, salt=2)
        answer = self.run_reshard("diff", "/a", "/b")
        self.assertEqual((answer.code, answer.err), (1, ""))
        self.assertIn("differ: 6 differences; 6 tensors compared by digest\n", answer.out)
        self.assertRegex(answer.out, r"\nmodel\.w +content +[0-9a-f]{16} +[0-9a-f]{16}\n")
        self.assertRegex(answer.out, r"\ntrain\.step +object +1 +2\n")
        values = self.run_reshard("diff", "--values", "/a", "/b")
        self.assertEqual(values.code, 1)
        self.assertRegex(values.out, r"\nmodel\.bias +content .* 7 of 7 .* \[0\]\n")
        self.make("a", 1, salt=1)
        self.make("a", 2, salt=4)
        self.assertEqual(self.run_reshard("diff", "/a@1", "/a@2", "--key", "model.none").code, 0)

    def test_long_lists_are_cut(self):
        self.make("a", 0, salt=1)
        self.run_reshard("convert", "/a", "/b", "--to", "native", "--include", "opt.*", "--dtype", "float32")
        self.run_reshard("convert", "/a", "/b", "--to", "native", "--include", "opt.*")
        self.run_reshard("convert", "/a", "/c", "--to", "native", "--exclude", "opt.*", "--dtype", "float64")
        answer = self.run_reshard("diff", "/b", "/a")
        self.assertEqual(answer.code, 1)
        self.assertNotIn("more; --all", answer.out)
        answer = self.run_reshard("diff", "/b", "/c")
        self.assertEqual(answer.out.count("\n"), 1 + 1 + 15, answer.out)

    def test_json_is_the_documented_schema(self):
        self.make("a", 0, salt=1)
        self.run_reshard("convert", "/a", "/b", "--to", "native", "--dtype", "bfloat16", "--exclude", "rng")
        answer = self.run_reshard("diff", "--json", "--values", "/a", "/b")
        self.assertEqual(answer.code, 1)
        report = answer.json()
        self.assertEqual(list(report), ["a", "b", "equal", "tensors", "objects", "bytes", "by_digest", "by_reading",
                                        "bytes_read", "differences", "faults"])
        self.assertEqual((report["equal"], report["tensors"], report["objects"], report["faults"]), (False, 6, 8, []))
        self.assertEqual([(d["key"], d["kind"], d["a"], d["b"]) for d in report["differences"]],
                         [("model.bias", "dtype", "float16", "bfloat16"), ("model.none", "dtype", "float32", "bfloat16"),
                          ("model.w", "dtype", "float32", "bfloat16"), ("rng", "only in A", "object", None)])
        values = report["differences"][2]["values"]
        self.assertEqual(list(values), ["elements", "nans", "max_abs", "first", "first_a", "first_b"])
        self.assertEqual(len(values["first"]), 2)
        self.assertGreater(values["elements"], 300000)

    def test_failures_are_2_and_say_what_to_do(self):
        path = self.make("a", 0, salt=1)
        self.make("b", 0, salt=2)
        (self.dir / "empty").mkdir()
        for other in ("/none", "/empty", "/b@5"):
            answer = self.run_reshard("diff", "/a", other)
            self.assertEqual((answer.code, answer.out), (2, ""), other)
        answer = self.run_reshard("diff", "/a", "/b", "--key", "nothing")
        self.assertEqual(answer.code, 2)
        self.assertIn("quote the pattern", answer.last_line)
        self.assertIn("at least", self.assert_usage_error("diff", "--values", "--memory", "1M", "/a", "/b").last_line)
        (tensor,) = self.run_reshard("ls", "--json", "/a", "model.w").json()["tensors"]
        self.flip(path / tensor["chunks"][0]["file"], tensor["chunks"][0]["byte_offset"] + 5)
        answer = self.run_reshard("diff", "--values", "/a", "/b", "--key", "model.w")
        self.assertEqual(answer.code, 2)
        self.assertIn("no difference found, but not all could be compared", answer.out)
        self.assertIn("could not compare 'model.w'", answer.err)
        self.assertIn("checksum", answer.err)
        os.remove(path / "0.reshard")
        self.assertEqual(self.run_reshard("diff", "/a", "/b").code, 2)
