#!/usr/bin/env python3
"""Writes the golden cases of tests/golden/paddle with a real release: make_golden.py RELEASE OUT

Each case becomes OUT/<case>/. With files in tests/golden/paddle/<RELEASE> it says which are not the
same bytes: a release on the same numpy writes nearly all of them again, see the README there.
"""
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.dont_write_bytecode = True
sys.path[:0] = [str(HERE), str(HERE.parent)]

import launch  # noqa: E402


def main():
    release, out = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    python = subprocess.run([ROOT / "tools" / "peers.sh", f"paddle-{release}"], stdout=subprocess.PIPE,
                            text=True, check=True).stdout.strip()
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as logs:
        for ranks in (1, 2, 4):
            problem = launch.run(python, HERE / "save.py", [out, "--golden"], ranks, 240, logs,
                                 launch.paddle_environment)
            if problem:
                sys.exit(problem)
    golden = ROOT / "tests" / "golden" / "paddle" / release
    for path in sorted(golden.glob("*/*")):
        again = out / path.relative_to(golden)
        if not again.exists():
            print("not written again:", path.relative_to(golden))
        elif again.read_bytes() != path.read_bytes():
            print("other bytes:", path.relative_to(golden))


if __name__ == "__main__":
    main()
