#!/usr/bin/env python3
"""Checkpoints exchanged with a real Paddle release: each side loads what the other saved.

    test_paddle.py RELEASE --peer-tool PROGRAM [--reshard PROGRAM] [--skipped FILE] [--keep DIR]

Every value is compared. Exit status 77: skipped, as PyPI does not answer; the reason is written to
FILE as well. --keep: where the checkpoints and the ranks' output stay.
"""
import argparse
import concurrent.futures
import dataclasses
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE))

import cases  # noqa: E402
import launch  # noqa: E402
from cases import T  # noqa: E402

SKIPPED = 77
RANKS = (1, 2, 4)
LAYOUTS = {1: ("plain",), 2: ("plain", "row", "col"), 4: ("row", "col", "grid")}
JOB_LIMIT_S = 240  # starting four ranks takes up to 20 s on two busy cores
ARGS = None
__unittest = True  # failures are messages: no stack traces


def release():
    return tuple(int(x) for x in ARGS.release.split("."))


def write_spec(path, tensors, salt=0):
    path.write_text(json.dumps(cases.spec(tensors, salt)))
    return path


class Failure(AssertionError):
    pass


def peer_tool(*words, fails_with=None):
    """Runs it; `fails_with`: a text that its failure must contain."""
    done = subprocess.run([ARGS.peer_tool, *map(str, words)], capture_output=True, text=True, timeout=120)
    if fails_with is None:
        if done.returncode != 0:
            raise Failure(f"{' '.join(map(str, words))}: exit {done.returncode}: {done.stderr[:1500]}")
    elif done.returncode != 1 or fails_with not in done.stderr:
        raise Failure(f"expected '{fails_with}', exit {done.returncode}: {done.stderr[:1500]}")


def reshard(*words):
    """Runs the command line, which must succeed."""
    done = subprocess.run([ARGS.reshard, *map(str, words)], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        command = " ".join(map(str, words))
        raise Failure(f"reshard {command}: exit {done.returncode}: {done.stdout}{done.stderr}")


def paddle_jobs(script, arguments):
    """Runs a script as one job per number of ranks, at once: starting is mostly waiting.

    `arguments`: number of ranks -> words. Returns number of ranks -> what went wrong, or "".
    """
    def run(ranks):
        begin = time.monotonic()
        logs = ARGS.dir / "logs" / f"{script}{ranks}"
        problem = launch.run(ARGS.python, HERE / script, arguments[ranks], ranks, JOB_LIMIT_S, logs)
        seconds = time.monotonic() - begin
        print(f"  paddle {ARGS.release}: {script} on {ranks} ranks, {seconds:.1f} s", flush=True)
        return problem
    with concurrent.futures.ThreadPoolExecutor(len(RANKS)) as pool:
        return dict(zip(RANKS, pool.map(run, RANKS)))


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
        loads = [(number, layout) for number, job in enumerate(jobs) for layout in job["layouts"]]
        for rank in range(ranks):
            text = (ARGS.dir / "loaded" / str(ranks) / f"rank{rank}.jsonl").read_text()
            lines = [json.loads(line) for line in text.splitlines()]
            self.assertEqual([(line["job"], line["layout"]) for line in lines], loads)
            for line in lines:
                name = pathlib.Path(jobs[line["job"]]["dir"]).name
                self.assertEqual(line["bad"], {}, f"{name}, rank {rank} of {ranks}, {line['layout']}")
                self.assertGreater(line["tensors"], 20)


def interpreter():
    """The release's Python; ends the test as skipped where it cannot be had."""
    done = subprocess.run([ROOT / "tools" / "peers.sh", f"paddle-{ARGS.release}"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    sys.stderr.write(done.stderr)
    if done.returncode == 3:
        text = f"SKIPPED: nothing was tested against real Paddle {ARGS.release}: PyPI does not answer\n"
        sys.stderr.write(text)
        if ARGS.skipped:
            pathlib.Path(ARGS.skipped).write_text(text)
        sys.exit(SKIPPED)
    if done.returncode != 0:
        sys.exit(f"no Paddle {ARGS.release}")
    return done.stdout.strip()


def main():
    global ARGS
    parser = argparse.ArgumentParser()
    parser.add_argument("release")
    parser.add_argument("--peer-tool", required=True)
    parser.add_argument("--reshard")
    parser.add_argument("--skipped")
    parser.add_argument("--keep", type=pathlib.Path)
    ARGS, rest = parser.parse_known_args()
    if ARGS.skipped:
        pathlib.Path(ARGS.skipped).unlink(missing_ok=True)
    ARGS.python = interpreter()
    if ARGS.keep:
        ARGS.dir = ARGS.keep.resolve()
        ARGS.dir.mkdir(parents=True)
    else:
        scratch = tempfile.TemporaryDirectory(prefix="reshard-peers-")
        ARGS.dir = pathlib.Path(scratch.name)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)


if __name__ == "__main__":
    main()
