"""What `rlx train -n N` prints, returns and leaves behind when a rank or the launcher dies."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from launching import (
    ENDLESS,
    all_gone,
    children,
    job_in,
    launched,
    on_each_rank,
    shared_files_of,
    training,
)
from support import clean_environment


@pytest.fixture
def job(tmp_path):
    return job_in(tmp_path)


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
        ("fault", 128 + signal.SIGSEGV, "ended by SIGSEGV"),
    ],
)
def test_a_rank_that_leaves_without_a_word_decides_the_status(job, function, status, text):
    launcher = launched(job, "--set", f"job.graph=model.py:{function}")
    _, errors = launcher.communicate(timeout=30)
    assert launcher.returncode == status
    assert text in errors
    assert "rank 0" in errors


BROKEN = """
if rank == {rank}:
    import rlx.job.rank
    import rlx.job.run

    def broken(*arguments, **options):
        {statement}

    {place} = broken
"""


def broken(rank: int, place: str, statement: str) -> str:
    return BROKEN.format(rank=rank, place=place, statement=statement)


def test_an_error_of_a_worker_comes_first_with_its_traceback_and_the_others_in_one_line(job):
    code = broken(2, "rlx.job.rank.recv_train", "raise ValueError('bad lr')")
    launcher = launched(job, ranks=4, **on_each_rank(job.parent, code))
    output, errors = launcher.communicate(timeout=60)
    lines = errors.splitlines()
    assert launcher.returncode == 1
    assert not output
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-4:] == [
        "ValueError: bad lr",
        "on rank 2 of 4",
        "rlx: error: rank 2: ValueError: bad lr",
        "rlx: rank 0, 1, 3 ended because of that",
    ]
    assert errors.count("Traceback") == 1


def test_a_rank_that_fails_before_it_joins_is_the_one_to_blame(job):
    code = broken(1, "rlx.job.run.run_here", "raise MemoryError('no room for it')")
    launcher = launched(job, ranks=3, **on_each_rank(job.parent, code))
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 1
    assert errors.splitlines()[-2:] == [
        "rlx: error: rank 1: MemoryError: no room for it",
        "rlx: rank 0, 2 ended because of that",
    ]


@pytest.mark.parametrize(
    ("statement", "status", "text"),
    [
        ("import sys; sys.exit(3)", 3, "rank 1: the process ended with status 3"),
        ("import os; os._exit(7)", 7, "rank 1: the process ended with status 7"),
        ("import ctypes; ctypes.string_at(0)", 128 + signal.SIGSEGV, "rank 1: the process was end"),
        ("import os; os._exit(0)", 1, "rank 1"),
    ],
)
def test_a_worker_that_leaves_without_a_word_is_never_a_success(job, statement, status, text):
    code = broken(1, "rlx.job.rank.recv_train", statement)
    launcher = launched(job, **on_each_rank(job.parent, code))
    output, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == status, errors
    assert text in errors
    assert not output


def test_a_long_error_in_any_script_reaches_the_launcher_whole_enough(job):
    message = "'\\U0001f4a5' * 6000"
    code = broken(1, "rlx.job.rank.recv_train", f"raise ValueError('first ' + {message})")
    launcher = launched(job, **on_each_rank(job.parent, code))
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 1
    assert "rlx: error: rank 1: ValueError: first \U0001f4a5" in errors


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
    shared = shared_files_of(ranks.values())
    launcher.send_signal(number)
    _, errors = launcher.communicate(timeout=30)
    assert launcher.returncode == 128 + number
    said = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
    assert errors.splitlines()[-1] == f"rlx: {said}"
    assert errors.count("rlx:") == 1
    assert all_gone(ranks.values())
    assert not list(scratch.iterdir())
    assert not [path for path in shared if os.path.exists(path)]
    again = launched(job, *place)
    again.communicate(timeout=30)
    assert again.returncode == 0


def test_a_signal_that_is_ignored_stays_ignored(job):
    """As under nohup: the terminal is closed, and the job goes on."""
    launcher = subprocess.Popen(
        [sys.executable, "-m", "rlx", "train", str(job), "-n", "2", *ENDLESS],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: [
            signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGINT)
        ],
    )
    ranks = training(launcher)
    os.killpg(launcher.pid, signal.SIGHUP)
    os.killpg(launcher.pid, signal.SIGINT)
    for _ in range(3):
        assert launcher.stderr.readline().startswith("epoch ")
    time.sleep(0.3)
    assert launcher.poll() is None
    assert children(launcher.pid) == ranks
    launcher.terminate()
    launcher.communicate(timeout=30)
    assert launcher.returncode == 128 + signal.SIGTERM
    assert all_gone(ranks.values())


def test_the_death_of_the_launcher_ends_its_ranks_even_frozen_ones(job, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    launcher = launched(job, *ENDLESS, TMPDIR=str(scratch))
    ranks = training(launcher)
    shared = shared_files_of(ranks.values())
    os.kill(ranks[1], signal.SIGSTOP)
    launcher.kill()
    launcher.communicate(timeout=30)
    assert all_gone(ranks.values())
    assert not list(scratch.iterdir())
    assert not [path for path in shared if os.path.exists(path)]


def test_a_signal_while_the_ranks_still_start_ends_them(job):
    launcher = launched(job, ranks=4)
    end = time.monotonic() + 30
    while not children(launcher.pid) and time.monotonic() < end:
        time.sleep(0.005)
    ranks = children(launcher.pid)
    assert ranks
    launcher.terminate()
    launcher.communicate(timeout=30)
    assert launcher.returncode == 128 + signal.SIGTERM
    assert all_gone(ranks.values())


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
