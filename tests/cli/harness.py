"""Drives the real program against small checkpoints. Standard library only.

Environment: RESHARD is the program, MAKE_CHECKPOINT the generator, SANITIZED not empty when they are built with
sanitizers; all set by CTest. With UPDATE=1 reference files are written instead of compared.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

RESHARD = os.environ["RESHARD"]
MAKE_CHECKPOINT = os.environ["MAKE_CHECKPOINT"]
SANITIZED = bool(os.environ.get("SANITIZED"))
HERE = pathlib.Path(__file__).parent
GOLDEN = HERE.resolve().parent / "golden"
NOBODY = 65534
_models = {}


class Answer:
    def __init__(self, done):
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        self.last_line = self.err.rstrip("\n").rsplit("\n", 1)[-1]

    def json(self):
        assert self.out.count("\n") == 1, "not one line: " + self.out
        return json.loads(self.out)


class CommandTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="reshard-cli-"))
        self.dir.chmod(0o755)
        self.addCleanup(self.remove)

    def remove(self):
        """Whatever the modes of the folders are."""
        self.dir.chmod(0o700)
        for folder, names, _ in os.walk(self.dir):
            for name in names:
                path = pathlib.Path(folder, name)
                if not path.is_symlink():
                    path.chmod(0o700)
        shutil.rmtree(self.dir)

    def run_reshard(self, *arguments, as_nobody=False, **options):
        """Paths that begin with '/' are below the scratch directory."""
        words = [str(self.dir) + a if a.startswith("/") and not a.startswith("/dev") else a for a in arguments]
        if as_nobody and os.geteuid() == 0:
            options.update(user=NOBODY, group=NOBODY, extra_groups=[])
        return Answer(subprocess.run([RESHARD, *words], capture_output=True, text=True, timeout=60, **options))

    def make(self, name, unique_id=0, salt=0):
        """A copy of a checkpoint, made once per (id, salt)."""
        key = (unique_id, salt)
        if key not in _models:
            _models[key] = tempfile.TemporaryDirectory(prefix="reshard-model-")
            subprocess.run([MAKE_CHECKPOINT, _models[key].name, str(unique_id), str(salt)], check=True)
        shutil.copytree(_models[key].name, self.dir / name, dirs_exist_ok=True)
        (self.dir / name).chmod(0o755)
        return self.dir / name

    def flip(self, path, offset):
        with open(path, "r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 4]))

    def plain(self, text):
        """Output without the scratch directory."""
        return text.replace(str(self.dir), "")

    def assert_reference(self, text, name):
        """Compares with a file beside the test."""
        path = HERE / name
        if os.environ.get("UPDATE"):
            path.write_text(self.plain(text))
        self.assertEqual(self.plain(text), path.read_text())

    def assert_help(self, command):
        answer = self.run_reshard(command, "--help")
        self.assertEqual(answer.code, 0)
        self.assertEqual(answer.err, "")
        self.assertIn(f"usage: reshard {command} [OPTIONS]", answer.out)
        self.assertIn(f"examples:\n  reshard {command} ", answer.out)
        self.assertRegex(answer.out, r"exit status:\n  0  .*\n(.*\n)*?  1  .*\n(.*\n)*?  2  ")
        self.assertEqual(self.run_reshard("help", command).out, answer.out)
        for line in answer.out.splitlines():
            if not re.match("  reshard|usage|  ckpt", line):
                self.assertLessEqual(len(line), 100, line)

    def assert_usage_error(self, *arguments):
        answer = self.run_reshard(*arguments)
        self.assertEqual(answer.code, 2)
        self.assertEqual(answer.out, "")
        return answer
