"""Launching ranks as a user does, from tests in several folders: the job, the ranks, their ends."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from support import clean_environment, family, heed_signals

MODEL = """
import os
import sys

from rlx.ir import Graph


def loss():
    graph = Graph("line")
    x = graph.input("x", ["batch", 3])
    w = graph.param("w", [3, 1])
    graph.set_outputs([(x @ w).mean()])
    return graph


def leave():
    sys.exit(3)


def leave_well():
    sys.exit(0)


def crash():
    os.abort()


def fault():
    import ctypes

    ctypes.string_at(0)
"""

JOB = """
[job]
graph = "model.py:loss"
data = { x = "x.npy" }
epochs = 1
batch = 4

[optimizer]
lr = 0.1
"""

ENDLESS = ("--set", "job.epochs=1000000")


PATCHES = """
import os

rank = os.environ.get("RLX_RANK")
if rank is not None:
    rank = int(rank)
"""


def job_in(folder: Path) -> Path:
    """A small job in a folder of its own."""
    (folder / "model.py").write_text(MODEL)
    (folder / "job.toml").write_text(JOB)
    np.save(folder / "x.npy", np.ones((64, 3), np.float32))
    return folder / "job.toml"


def on_each_rank(folder: Path, code: str) -> dict[str, str]:
    """The environment in which each rank, before anything else, runs `code`, which knows `rank`.

    Ranks have no code of a user's but the coordinator's model, so that this is the way to have
    them print and fail: Python imports `sitecustomize` as it starts.
    """
    place = folder / "customized"
    place.mkdir()
    body = "".join(f"    {line}\n" for line in code.strip().splitlines())
    (place / "sitecustomize.py").write_text(PATCHES + body)
    known = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{place}{os.pathsep}{known}" if known else str(place)}


def launched(job: Path, *more: str, ranks: int = 2, **environment: str) -> subprocess.Popen:
    """`rlx train JOB -n RANKS MORE`, with its output in pipes."""
    return subprocess.Popen(
        [sys.executable, "-m", "rlx", "train", str(job), "-n", str(ranks), *more],
        env=clean_environment(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_signals,
    )


def children(pid: int) -> dict[int, int]:
    """{rank: pid} of the ranks that a launcher has started."""
    found = {}
    for child in family(pid) - {pid}:
        with contextlib.suppress(OSError, StopIteration):
            variables = (Path("/proc") / str(child) / "environ").read_bytes().split(b"\0")
            found[int(next(one for one in variables if one.startswith(b"RLX_RANK="))[9:])] = child
    return found


def training(launcher: subprocess.Popen, ranks: int = 2, seconds: float = 30) -> dict[int, int]:
    """Wait until rank 0 has said that it trains; the ranks' pids."""
    line = launcher.stderr.readline()
    assert line.startswith("epoch 1"), line
    found = children(launcher.pid)
    assert len(found) == ranks
    return found


def is_alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def all_gone(pids, seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(is_alive(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def shared_files_of(pids) -> set[str]:
    """The files under /dev/shm and the local sockets with a path that processes have open."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            maps = (Path("/proc") / str(pid) / "maps").read_text()
            found |= {line.split()[-1] for line in maps.splitlines() if "/dev/shm/" in line}
        with contextlib.suppress(OSError):
            sockets = (Path("/proc") / str(pid) / "net" / "unix").read_text()
            ours = {os.readlink(one) for one in (Path("/proc") / str(pid) / "fd").iterdir()}
            for fields in (line.split() for line in sockets.splitlines()[1:]):
                if len(fields) == 8 and f"socket:[{fields[6]}]" in ours:
                    found.add(fields[7])
    return {path for path in found if path.startswith("/")}
