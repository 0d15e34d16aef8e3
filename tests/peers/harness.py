"""What the tests with real peers have alike: the peer's interpreter, our programs, jobs on several ranks.

Standard library only. Options of every test:
    RELEASE --peer-tool PROGRAM [--reshard PROGRAM] [--skipped FILE] [--keep DIR]
Exit status 77: skipped, as PyPI does not answer; the reason is written to FILE as well. --keep: where
the checkpoints and the ranks' output stay.
"""
import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

import launch
import tables

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77
JOB_LIMIT_S = 240  # starting four ranks takes up to 20 s on two busy cores
ARGS = argparse.Namespace()
__unittest = True  # failures are messages: no stack traces


def release():
    return tuple(int(x) for x in ARGS.release.split("."))


def write_spec(path, tensors, salt=0, **more):
    path.write_text(json.dumps(dict(tables.spec(tensors, salt), **more)))
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


def jobs(script, arguments, environment):
    """Runs a script as one job per number of ranks, at once: starting is mostly waiting.

    `arguments`: number of ranks -> words. Returns number of ranks -> what went wrong, or "".
    """
    def run(ranks):
        begin = time.monotonic()
        logs = ARGS.dir / "logs" / f"{script.stem}{ranks}"
        problem = launch.run(ARGS.python, script, arguments[ranks], ranks, JOB_LIMIT_S, logs, environment)
        seconds = time.monotonic() - begin
        print(f"  {ARGS.peer} {ARGS.release}: {script.name} on {ranks} ranks, {seconds:.1f} s", flush=True)
        return problem
    with concurrent.futures.ThreadPoolExecutor(len(arguments)) as pool:
        return dict(zip(arguments, pool.map(run, arguments)))


def job_lines(folder, job_list, ranks):
    """Of each rank, what load.py says of every load; it must have done them all, in order."""
    loads = [(number, layout) for number, job in enumerate(job_list) for layout in job["layouts"]]
    for rank in range(ranks):
        text = (folder / f"rank{rank}.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        if [(line["job"], line["layout"]) for line in lines] != loads:
            raise Failure(f"rank {rank} of {ranks} did other loads: {lines}")
        for line in lines:
            name = pathlib.Path(job_list[line["job"]]["dir"]).name
            yield f"{name}, rank {rank} of {ranks}, {line['layout']}", line


def interpreter():
    """The release's Python; ends the test as skipped where it cannot be had."""
    done = subprocess.run([ROOT / "tools" / "peers.sh", f"{ARGS.peer}-{ARGS.release}"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    sys.stderr.write(done.stderr)
    if done.returncode == 3:
        text = f"SKIPPED: nothing was tested against real {ARGS.peer} {ARGS.release}: PyPI does not answer\n"
        sys.stderr.write(text)
        if ARGS.skipped:
            pathlib.Path(ARGS.skipped).write_text(text)
        sys.exit(SKIPPED)
    if done.returncode != 0:
        sys.exit(f"no {ARGS.peer} {ARGS.release}")
    return done.stdout.strip()


def main(peer):
    """Runs the tests of the calling script; `peer`: as tools/peers.sh calls it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("release")
    parser.add_argument("--peer-tool", required=True)
    parser.add_argument("--reshard")
    parser.add_argument("--skipped")
    parser.add_argument("--keep", type=pathlib.Path)
    _, rest = parser.parse_known_args(namespace=ARGS)
    ARGS.peer = peer
    if ARGS.skipped:
        pathlib.Path(ARGS.skipped).unlink(missing_ok=True)
    ARGS.python = interpreter()
    if ARGS.keep:
        ARGS.dir = ARGS.keep.resolve()
        ARGS.dir.mkdir(parents=True)
    else:
        scratch = tempfile.TemporaryDirectory(prefix="reshard-peers-")
        ARGS.dir = pathlib.Path(scratch.name)
    unittest.main("__main__", argv=[sys.argv[0], *rest], verbosity=2)

