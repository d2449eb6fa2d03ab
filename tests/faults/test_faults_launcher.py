"""What `rlx train -n N` prints, returns and leaves behind when a rank or the launcher dies."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from support import clean_environment, family

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


@pytest.fixture
def job(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "job.toml").write_text(JOB)
    np.save(tmp_path / "x.npy", np.ones((64, 3), np.float32))
    return tmp_path / "job.toml"


def launched(job: Path, *more: str, ranks: int = 2, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "rlx", "train", str(job), "-n", str(ranks), *more],
        env=clean_environment(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
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


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_killed_rank_is_named_first_and_the_rest_follow(job, victim):
    launcher = launched(job, *ENDLESS, ranks=3)
    ranks = training(launcher, 3)
    os.kill(ranks[victim], signal.SIGKILL)
    begun = time.monotonic()
    _, errors = launcher.communicate(timeout=30)
    assert time.monotonic() - begun < 10
    assert launcher.returncode == 128 + signal.SIGKILL
    messages = [line for line in errors.splitlines() if line.startswith("rlx:")]
    others = ", ".join(str(rank) for rank in range(3) if rank != victim)
    assert messages == [
        f"rlx: error: rank {victim}: the process was ended by SIGKILL; "
        f"was the machine out of memory?",
        f"rlx: rank {others} ended because of that",
    ]
    assert all_gone(ranks.values())


def test_an_error_of_all_ranks_is_said_once_with_its_reason(job):
    launcher = launched(job, "--set", "job.data={x='y.npy'}")
    _, errors = launcher.communicate(timeout=30)
    assert launcher.returncode == 1
    assert errors.count("y.npy") == 1
    assert errors.splitlines()[-1].startswith("rlx: ")
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("function", "status", "text"),
    [
        ("leave", 3, "ended with status 3 and without a word"),
        ("crash", 128 + signal.SIGABRT, "ended by SIGABRT"),
    ],
)
def test_a_rank_that_leaves_without_a_word_decides_the_status(job, function, status, text):
    launcher = launched(job, "--set", f"job.graph=model.py:{function}")
    _, errors = launcher.communicate(timeout=30)
    assert launcher.returncode == status
    assert text in errors
    assert "rank 0" in errors


def test_a_rank_that_leaves_with_success_before_the_end_is_a_failure(job):
    launcher = launched(job, "--set", "job.graph=model.py:leave_well", "--set", "net.deadline_s=3")
    _, errors = launcher.communicate(timeout=30)
    assert launcher.returncode not in (0, None), errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything_and_frees_the_port(job, tmp_path, number):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    place = ("--set", f"net.coordinator=127.0.0.1:{port}")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    launcher = launched(job, *ENDLESS, *place, TMPDIR=str(scratch))
    ranks = training(launcher)
    launcher.send_signal(number)
    launcher.communicate(timeout=15)
    assert launcher.returncode == 128 + number
    assert all_gone(ranks.values())
    assert not list(scratch.iterdir())
    again = launched(job, *place)
    again.communicate(timeout=30)
    assert again.returncode == 0


def test_the_death_of_the_launcher_ends_its_ranks_even_frozen_ones(job, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    launcher = launched(job, *ENDLESS, TMPDIR=str(scratch))
    ranks = training(launcher)
    os.kill(ranks[1], signal.SIGSTOP)
    launcher.kill()
    launcher.communicate(timeout=15)
    assert all_gone(ranks.values())
    assert not list(scratch.iterdir())


def test_a_frozen_rank_is_named_after_the_heartbeat(job):
    launcher = launched(job, *ENDLESS, "--set", "net.heartbeat_s=1", ranks=3)
    ranks = training(launcher, 3)
    os.kill(ranks[1], signal.SIGSTOP)
    begun = time.monotonic()
    _, errors = launcher.communicate(timeout=30)
    assert time.monotonic() - begun < 1 + 2 + 12
    assert launcher.returncode != 0
    assert "rank 1" in errors.splitlines()[-2] + errors.splitlines()[-1]
    assert all_gone(ranks.values())
