"""Starts N processes as the ranks of one job of a peer on this machine's CPU. Standard library only."""
import contextlib
import os
import pathlib
import socket
import subprocess
import time

GRACE_S = 5  # for the others to end once one rank has failed
PORT_TAKEN = ("Address already in use", "EADDRINUSE", "address already in use")


def free_ports(count):
    """Ports that were free just now; another process may take one, see run()."""
    with contextlib.ExitStack() as open_sockets:
        sockets = [open_sockets.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


def paddle_environment(rank, ends, master):
    """Paddle looks for these; gloo is the only backend without a GPU."""
    env = common_environment("GLOG_", "PADDLE_", "FLAGS_")
    env["GLOG_minloglevel"] = "2"
    if len(ends) > 1:
        env.update(PADDLE_TRAINER_ID=str(rank), PADDLE_TRAINERS_NUM=str(len(ends)),
                   PADDLE_TRAINER_ENDPOINTS=",".join(ends), PADDLE_CURRENT_ENDPOINT=ends[rank],
                   PADDLE_MASTER=master, PADDLE_DISTRI_BACKEND="gloo")
    return env


def torch_environment(rank, ends, master):
    """What torch.distributed's env:// wants; no GPU, even where there is one."""
    host, port = master.split(":")
    return dict(common_environment("TORCH"), RANK=str(rank), WORLD_SIZE=str(len(ends)), LOCAL_RANK=str(rank),
                MASTER_ADDR=host, MASTER_PORT=port, CUDA_VISIBLE_DEVICES="", GLOO_SOCKET_IFNAME="lo")


def common_environment(*without):
    """Ours, with this folder's modules and one thread, without names that begin like `without`."""
    env = {n: v for n, v in os.environ.items() if not n.startswith(without)}
    return dict(env, OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1",
                PYTHONPATH=str(pathlib.Path(__file__).resolve().parent))


def start(command, ranks, logs, environment):
    ports = free_ports(ranks + 1)
    ends = [f"127.0.0.1:{p}" for p in ports[:ranks]]
    processes = []
    for rank in range(ranks):
        with open(logs / f"rank{rank}.log", "wb") as log:
            processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT,
                                              stdin=subprocess.DEVNULL,
                                              env=environment(rank, ends, f"127.0.0.1:{ports[ranks]}")))
    return processes


def wait(processes, timeout_s):
    """Exit codes; None for a rank that had to be killed: after the time, or after another's failure."""
    end = time.monotonic() + timeout_s
    failed = False
    while None in (codes := [p.poll() for p in processes]) and time.monotonic() < end:
        if not failed and any(codes):
            failed = True
            end = min(end, time.monotonic() + GRACE_S)
        time.sleep(0.05)
    left = [p for p in processes if p.poll() is None]
    for p in left:
        p.kill()
        p.wait()
    return [None if p in left else p.returncode for p in processes]


def run(python, script, arguments, ranks, timeout_s, logs, environment):
    """Runs `script` on all ranks. Returns "" or what went wrong, with the end of each rank's output."""
    logs = pathlib.Path(logs)
    logs.mkdir(parents=True, exist_ok=True)
    command = [str(python), "-W", "ignore", str(script), *map(str, arguments)]
    for attempt in range(3):
        codes = wait(start(command, ranks, logs, environment), timeout_s)
        texts = [(logs / f"rank{r}.log").read_text(errors="replace") for r in range(ranks)]
        if not any(codes) and None not in codes:
            return ""
        if not any(sign in text for sign in PORT_TAKEN for text in texts):
            break
    lines = [f"{pathlib.Path(script).name} on {ranks} ranks, time limit {timeout_s} s:"]
    for rank, (code, text) in enumerate(zip(codes, texts)):
        what = "killed" if code is None else f"exit code {code}"
        tail = "\n    ".join(text.strip().splitlines()[-6:])
        lines.append(f"  rank {rank} {what}: {tail or '(no output)'}")
    return "\n".join(lines)
