#!/usr/bin/env python3
"""Kills charlm again and again, at random moments and on random ranks, and starts it again on the same
directory until it is done: its end must be the same, to the last bit, as that of a run left alone.

usage: charlm_crash_test.py CHARLM MPIEXEC [FLAG...]    (CHARLM_CRASH_SEED repeats a run)
"""

import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

RANKS = 4
STEPS = 60
SAVE_EVERY = 2  # so that about half of the kills hit a save
KILLS = 5
DEADLINE_S = 120
START = re.compile(r"resumed from step \d+|starting from step 0")
ORPHANED_S = 5  # without any rank alive: the launcher hangs in its own end


def command(charlm, launcher, out):
    text = pathlib.Path("/usr/share/common-licenses/GPL-3")
    if not text.exists():  # not Debian: any text that is long enough
        text = pathlib.Path(__file__)
    return [*launcher, "-n", str(RANKS), charlm, "--out", out, "--text", str(text), "--mesh", "dp=2,tp=2",
            "--steps", str(STEPS), "--save-every", str(SAVE_EVERY), "--batch", "32"]


def text_of(log):
    """What is in the file, which others are writing; its position stays where they write."""
    return os.pread(log.fileno(), 1 << 24, 0).decode(errors="replace")


def descendants(pid):
    """Process ids below `pid`."""
    found = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        for thread in threads:
            children = pathlib.Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
            for child in map(int, children):
                found += [child, *descendants(child)]
    except OSError:
        pass  # it ended meanwhile
    return found


def ranks(launcher_pid, charlm):
    """{rank: process id} of the running ranks."""
    found = {}
    for pid in descendants(launcher_pid):
        try:
            if os.readlink(f"/proc/{pid}/exe") == charlm:
                environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
                rank = re.search(r"(?:OMPI_COMM_WORLD_RANK|PMI_RANK)=(\d+)", environment)
                found[int(rank.group(1)) if rank else len(found)] = pid
        except OSError:
            pass
    return found


def wait_after_kill(job, charlm):
    """Waits for the launcher. Open MPI's can lock up after a rank was killed: without any rank it is ended too."""
    end = time.monotonic() + DEADLINE_S
    seen_alive = time.monotonic()
    while job.poll() is None:
        now = time.monotonic()
        if ranks(job.pid, charlm):
            seen_alive = now
        if now > end:
            raise subprocess.TimeoutExpired(job.args, DEADLINE_S)
        if now - seen_alive > ORPHANED_S:
            return
        time.sleep(0.05)


def run(argv, charlm, delay_s, choice):
    """Runs once; kills a rank `delay_s` after the log says where training starts, or not at all when that is None.

    Returns (rank or None, exit status, log)."""
    with tempfile.TemporaryFile("w+") as log:
        job = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        victim = None
        try:
            while delay_s is not None and job.poll() is None and not START.search(text_of(log)):
                time.sleep(0.01)
            if delay_s is not None:
                time.sleep(delay_s)
                alive = ranks(job.pid, charlm)
                if alive and job.poll() is None:
                    victim = choice.choice(sorted(alive))
                    os.kill(alive[victim], signal.SIGKILL)
            if victim is None:
                job.wait(DEADLINE_S)
            else:
                wait_after_kill(job, charlm)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
        return (None if job.returncode == 0 else victim), job.returncode, text_of(log)


def main():
    charlm = os.path.realpath(sys.argv[1])
    launcher = sys.argv[2:]
    seed = int(os.environ.get("CHARLM_CRASH_SEED", time.time_ns() % 1_000_000))
    print(f"CHARLM_CRASH_SEED={seed}", flush=True)
    choice = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="charlm_crash.") as scratch:
        begin = time.monotonic()
        _, code, log = run(command(charlm, launcher, f"{scratch}/whole"), charlm, None, choice)
        whole_s = time.monotonic() - begin
        if code != 0:
            sys.exit(f"the run left alone failed with {code}:\n{log}")
        want = pathlib.Path(scratch, "whole/final").read_text()

        kills = 0
        resumed = 0
        for round_number in range(100):
            out = f"{scratch}/killed{round_number}"
            while True:
                kill = kills < KILLS or resumed == 0
                delay_s = choice.uniform(0, 0.5 * whole_s) if kill else None
                victim, code, log = run(command(charlm, launcher, out), charlm, delay_s, choice)
                start = START.search(log)
                resumed += start is not None and start.group().startswith("resumed")
                if victim is None:
                    break
                kills += 1
                print(f"kill {kills}: rank {victim} after {delay_s:.2f} s; "
                      f"{start.group() if start else 'before it started'}", flush=True)
            if code != 0:
                sys.exit(f"a run that was not killed failed with {code}:\n{log}")
            got = pathlib.Path(out, "final").read_text()
            if got != want:
                sys.exit(f"the killed run ended differently:\n{got}instead of:\n{want}")
            if kills >= KILLS and resumed > 0:
                break
        if kills < KILLS or resumed == 0:
            sys.exit(f"only {kills} kills and {resumed} resumed runs: the test tested nothing")
        print(f"{kills} kills, {resumed} resumed runs, the same end:\n{want}", end="")


main()
