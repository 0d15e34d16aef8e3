#!/usr/bin/env python3
"""Checkpoints exchanged with a real Paddle release: each side loads what the other saved.

    test_paddle.py RELEASE --peer-tool PROGRAM [--reshard PROGRAM] [--skipped FILE] [--keep DIR]

Every value is compared. Options and exit status: harness.py.
"""
import dataclasses
import json
import pathlib
import shutil
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path[:0] = [str(HERE), str(HERE.parent)]

import cases  # noqa: E402
import launch  # noqa: E402
from cases import T  # noqa: E402
from harness import ARGS, Failure, job_lines, jobs, main, peer_tool, release, reshard, write_spec  # noqa: E402

RANKS = (1, 2, 4)
LAYOUTS = {1: ("plain",), 2: ("plain", "row", "col"), 4: ("row", "col", "grid")}
__unittest = True  # failures are messages: no stack traces


def paddle_jobs(script, arguments):
    return jobs(HERE / script, arguments, launch.paddle_environment)


class PaddleSaved(unittest.TestCase):
    """Real Paddle saves on 1, 2 and 4 ranks; reshard loads on 1, 2 and 3."""

    @classmethod
    def setUpClass(cls):
        cls.dir = ARGS.dir / "paddle_saved"
        problems = paddle_jobs("save.py", {ranks: [cls.dir] for ranks in RANKS})
        if any(problems.values()):
            raise Failure("\n".join(problems.values()))
        cls.cases = {c.name: c for c in cases.paddle_cases() if c.runs_on(release())}

    def check(self, name, tensors, *options, salt=0, label="", fails_with=None):
        spec = write_spec(ARGS.dir / f"{name}{label}.json", tensors, salt)
        with self.subTest(case=name, options=options, label=label):
            peer_tool("check", self.dir / name, spec, *options, fails_with=fails_with)

    def held(self, case):
        """Unique id -> (salt, tensors) that the directory really holds."""
        content = case.content()
        if case.name == "saved_twice" and release() >= (3, 2):
            # It keeps the metadata of the first save, which has no `new`, beside the second's data.
            salt, tensors = content[0]
            content = {0: (salt, [t for t in tensors if t.path[-1] != "new"])}
        return {uid: (salt, [t for t in tensors if 0 not in t.shape])
                for uid, (salt, tensors) in content.items()}

    def more(self, case):
        """Files of paddle.save hold values that are no tensors, too."""
        return ["--partial"] if case.file else []

    def test_every_byte(self):
        for case in self.cases.values():
            for uid, (salt, tensors) in self.held(case).items():
                self.check(case.name, tensors, "--id", uid, *self.more(case), salt=salt, label=f".{uid}")

    def test_newest_is_the_default(self):
        salt, tensors = self.held(self.cases["ids"])[10 if release() >= (3, 0) else 1]
        self.check("ids", tensors, salt=salt, label=".newest")

    def test_empty_tensors_are_missing(self):
        """Paddle stores nothing of a tensor without elements."""
        _, tensors = self.cases["empty"].content()[0]
        self.check("empty", tensors, label=".all", fails_with="MISSING_KEYS")

    def test_other_dtype(self):
        """Paddle fills a float32 target with garbage here."""
        tensors = [dataclasses.replace(t, dtype="float32") for t in self.cases["ranks2"].content()[0][1]
                   if t.dtype in ("bfloat16", "float16")]
        self.assertGreaterEqual(len(tensors), 2)
        self.check("ranks2", tensors, "--partial", label=".float32", fails_with="MISMATCH")
        self.check("ranks2", tensors, "--partial", "--cast", label=".cast")

    def test_master_weights_of_the_other_mode(self):
        for have, static in (("master_dynamic", True), ("master_static", False)):
            stored = cases.master_weights(not static)
            wanted = [dataclasses.replace(w, stored_path=s.path)
                      for w, s in zip(cases.master_weights(static), stored)]
            renamed = [w for w in wanted if w.path != w.stored_path]
            self.assertEqual(len(renamed), 2)
            self.check(have, wanted, label=".all")
            self.check(have, renamed, "--partial", label=".renamed_only")
            self.check(have, renamed + [s for s in stored if s.path[0] == "optimizer"], "--partial",
                       label=".both_names")
            self.check(have, renamed + [T(("model", "not_there"), "float32", (2,))], "--partial",
                       label=".one_missing", fails_with="model.not_there")

    @unittest.skipUnless("--reshard" in sys.argv, "this build has no command line")
    def test_commands(self):
        """verify finds nothing wrong, convert keeps every byte, and so does a load with an index."""
        for case in self.cases.values():
            for uid, (salt, tensors) in self.held(case).items():
                with self.subTest(case=case.name, uid=uid):
                    self.run_commands(case, uid, write_spec(ARGS.dir / "commands.json", tensors, salt))

    def run_commands(self, case, uid, spec):
        copy = ARGS.dir / "indexed" / f"{case.name}.{uid}"
        shutil.copytree(self.dir / case.name, copy)
        reshard("verify", f"{copy}@{uid}")
        native = ARGS.dir / "native_of" / f"{case.name}.{uid}"
        reshard("convert", "--ranks", 2, f"{copy}@{uid}", native, "--to", "native")
        peer_tool("check", native, spec, "--id", uid, *self.more(case))
        reshard("index", f"{copy}@{uid}")
        self.assertTrue((copy / f"{case.file or f'{uid}.metadata'}.reshard").exists())
        peer_tool("check", copy, spec, "--id", uid, *self.more(case))


class ReshardSaved(unittest.TestCase):
    """reshard saves on 1 to 4 ranks; real Paddle loads on 1, 2 and 4."""

    @classmethod
    def setUpClass(cls):
        cls.dir = ARGS.dir / "reshard_saved"
        cls.dir.mkdir()
        cls.format = f"paddle:{release()[0]}.{release()[1]}"
        cls.jobs = []
        for ranks in (1, 2, 3, 4):
            cls.save(f"ranks{ranks}", cases.reshard_case(ranks, release()), ranks)
        # A save that crashed left a data file; Paddle must not take it for one of the next save.
        crashed = cls.dir / "after_crash"
        crashed.mkdir()
        shutil.copy(cls.dir / "ranks1" / "0_0.distcp", crashed)
        cls.save("after_crash", cases.reshard_case(2, release()), 2, salt=3)
        twice = cases.reshard_case(2, release())
        cls.save("overwritten", twice, 2, salt=1)
        cls.save("overwritten", twice, 2, "--id", 0, "--overwrite", salt=2)

        cls.convert()

    @classmethod
    def convert(cls):
        """A native checkpoint of three ranks, written again in Paddle's format for two."""
        if not ARGS.reshard:
            return
        tensors = cases.reshard_case(3, release())
        spec = write_spec(ARGS.dir / "native.json", tensors, 4)
        peer_tool("save", ARGS.dir / "native", spec, "--ranks", 3)
        reshard("convert", "--ranks", 2, ARGS.dir / "native", cls.dir / "converted", "--to", cls.format)
        peer_tool("check", cls.dir / "converted", spec)
        cls.jobs.append({"dir": str(cls.dir / "converted"), "spec": cases.spec(tensors, 4)})

    @classmethod
    def save(cls, name, tensors, ranks, *options, salt=0):
        spec = write_spec(ARGS.dir / f"{name}.json", tensors, salt)
        peer_tool("save", cls.dir / name, spec, "--format", cls.format, "--ranks", ranks, *options)
        peer_tool("check", cls.dir / name, spec)
        cls.jobs = [j for j in cls.jobs if j["dir"] != str(cls.dir / name)]
        cls.jobs.append({"dir": str(cls.dir / name), "spec": cases.spec(tensors, salt)})

    def test_paddle_loads(self):
        jobs = {ranks: [dict(job, layouts=LAYOUTS[ranks]) for job in self.jobs] for ranks in RANKS}
        arguments = {}
        for ranks in RANKS:
            out = ARGS.dir / "loaded" / str(ranks)
            out.mkdir(parents=True)
            (out / "jobs.json").write_text(json.dumps(jobs[ranks]))
            arguments[ranks] = [out / "jobs.json", out]
        for ranks, problem in paddle_jobs("load.py", arguments).items():
            with self.subTest(ranks=ranks):
                self.assertEqual(problem, "")
                self.assert_all_right(jobs[ranks], ranks)

    def assert_all_right(self, jobs, ranks):
        for what, line in job_lines(ARGS.dir / "loaded" / str(ranks), jobs, ranks):
            self.assertEqual(line["bad"], {}, what)
            self.assertGreater(line["tensors"], 20, what)


if __name__ == "__main__":
    main("paddle")
