#!/usr/bin/env python3
"""Checkpoints exchanged with a real release of PyTorch: each side loads what the other saved.

    test_torch.py RELEASE --peer-tool PROGRAM [--reshard PROGRAM] [--skipped FILE] [--keep DIR]

Every value is compared. Options and exit status: harness.py.
"""
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
from harness import ARGS, Failure, job_lines, jobs, main, peer_tool, release, reshard, write_spec  # noqa: E402

LAYOUTS = {1: ("plain", "torch_save"), 2: ("plain", "row", "col")}
__unittest = True  # failures are messages: no stack traces


def torch_jobs(script, arguments):
    return jobs(HERE / script, arguments, launch.torch_environment)


class TorchSaved(unittest.TestCase):
    """Real torch saves on 1, 2 and 4 ranks; reshard loads on 1, 2 and 3."""

    @classmethod
    def setUpClass(cls):
        cls.dir = ARGS.dir / "torch_saved"
        problems = torch_jobs("save.py", {ranks: [cls.dir] for ranks in (1, 2, 4)})
        if any(problems.values()):
            raise Failure("\n".join(problems.values()))

    def spec(self, case):
        return write_spec(ARGS.dir / f"{case.name}.json", case.tensors, case.salt,
                          objects=cases.objects_spec(case.objects))

    def test_every_byte(self):
        for case in cases.torch_cases(release()):
            with self.subTest(case=case.name):
                peer_tool("check", self.dir / case.name, self.spec(case))

    @unittest.skipUnless("--reshard" in sys.argv, "this build has no command line")
    def test_commands(self):
        """verify finds nothing wrong, convert keeps every byte, and so does a load with an index."""
        for case in cases.torch_cases(release()):
            with self.subTest(case=case.name):
                copy = ARGS.dir / "indexed" / case.name
                shutil.copytree(self.dir / case.name, copy)
                reshard("verify", copy)
                native = ARGS.dir / "native_of" / case.name
                reshard("convert", "--ranks", 2, copy, native, "--to", "native")
                peer_tool("check", native, self.spec(case))
                reshard("index", copy)
                self.assertTrue((copy / ".metadata.reshard").exists())
                peer_tool("check", copy, self.spec(case))


class ReshardSaved(unittest.TestCase):
    """reshard saves on 1 to 4 ranks; real torch loads on 1 and 2."""

    @classmethod
    def setUpClass(cls):
        cls.dir = ARGS.dir / "reshard_saved"
        cls.dir.mkdir()
        cls.format = f"torch:{release()[0]}.{release()[1]}"
        cls.jobs = []
        for ranks in (1, 2, 3, 4):
            cls.save(f"ranks{ranks}", ranks)
        # A save that crashed left a data file; torch must not take it for one of the next save.
        crashed = cls.dir / "after_crash"
        crashed.mkdir()
        shutil.copy(cls.dir / "ranks1" / "__0_0.distcp", crashed)
        cls.save("after_crash", 2, salt=3)
        cls.save("overwritten", 2, salt=1)
        cls.save("overwritten", 1, "--overwrite", salt=2)

    @classmethod
    def save(cls, name, ranks, *options, salt=0):
        tensors = cases.reshard_case(ranks, release())
        objects = cases.objects_spec(cases.OBJECTS + cases.KEPT_WHOLE)
        spec = write_spec(ARGS.dir / f"{name}.json", tensors, salt, objects=objects)
        peer_tool("save", cls.dir / name, spec, "--format", cls.format, "--ranks", ranks, *options)
        peer_tool("check", cls.dir / name, spec)
        cls.jobs = [j for j in cls.jobs if j["dir"] != str(cls.dir / name)]
        cls.jobs.append({"dir": str(cls.dir / name), "spec": json.loads(spec.read_text())})

    def test_torch_loads(self):
        lists = {ranks: [dict(job, layouts=layouts) for job in self.jobs] for ranks, layouts in LAYOUTS.items()}
        arguments = {}
        for ranks in LAYOUTS:
            out = ARGS.dir / "loaded" / str(ranks)
            out.mkdir(parents=True)
            (out / "jobs.json").write_text(json.dumps(lists[ranks]))
            arguments[ranks] = [out / "jobs.json", out]
        for ranks, problem in torch_jobs("load.py", arguments).items():
            with self.subTest(ranks=ranks):
                self.assertEqual(problem, "")
                for what, line in job_lines(ARGS.dir / "loaded" / str(ranks), lists[ranks], ranks):
                    self.assertEqual(line["bad"], {}, what)
                    self.assertGreater(line["tensors"], 40, what)


if __name__ == "__main__":
    main("torch")
