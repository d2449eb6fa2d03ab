"""What comes out of `rlx train -n N` when its ranks print, flood, or nobody reads."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import termios
import time

import pytest

from launching import ENDLESS, all_gone, children, job_in, launched, on_each_rank
from support import clean_environment, heed_signals

CHATTER = """
import sys
letter = "abcd"[rank]
for number in range(1000):
    print(f"{number:03}" + letter * 197)
    print(f"{number:03}" + letter.upper() * 197, file=sys.stderr)
"""

TRACEBACKS = """
import sys, time, traceback
for number in range(5):
    try:
        raise ValueError(f"number {number} of rank {rank}")
    except ValueError:
        for line in traceback.format_exc().splitlines(keepends=True):
            sys.stderr.write(line)
            sys.stderr.flush()
            time.sleep(0.01)
"""


@pytest.fixture
def job(tmp_path):
    return job_in(tmp_path)


def test_lines_of_four_ranks_are_whole_and_marked_once_and_the_result_is_last(job):
    environment = on_each_rank(job.parent, CHATTER)
    output, errors = launched(job, "--json", ranks=4, **environment).communicate(timeout=60)
    lines, last = output.splitlines()[:-1], output.splitlines()[-1]
    assert json.loads(last)["world_size"] == 4
    progress = [line for line in errors.splitlines() if line.startswith("epoch 1/1")]
    assert len(progress) == 1
    faults = [line for line in errors.splitlines() if not line.startswith("epoch 1/1")]
    for printed, letters in ((lines, "abcd"), (faults, "ABCD")):
        assert len(printed) == 4000
        for rank, letter in enumerate(letters):
            own = [line for line in printed if line.startswith(f"[rank {rank}] ")]
            assert own == [f"[rank {rank}] {number:03}{letter * 197}" for number in range(1000)]


def test_tracebacks_of_ranks_that_fail_at_once_stay_together(job):
    environment = on_each_rank(job.parent, TRACEBACKS)
    _, errors = launched(job, ranks=4, **environment).communicate(timeout=60)
    lines = [line for line in errors.splitlines() if line.startswith("[rank ")]
    headers = [
        place for place, line in enumerate(lines) if line.endswith("(most recent call last):")
    ]
    assert len(headers) == 20
    for start, end in zip(headers, [*headers[1:], len(lines)], strict=True):
        block = lines[start:end]
        rank = block[0][6]
        assert {line[6] for line in block} == {rank}
        assert re.fullmatch(rf"\[rank {rank}\] ValueError: number \d of rank {rank}", block[-1])


def test_what_a_rank_prints_before_it_dies_is_not_lost(job):
    code = """
import os
if rank == 1:
    for number in range(20000):
        print("the last words", number)
    print("without an end", end="", flush=True)
    os.abort()
"""
    launcher = launched(job, **on_each_rank(job.parent, code))
    output, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 128 + signal.SIGABRT
    assert output.count("[rank 1] the last words") == 20000
    assert output.endswith("\n[rank 1] without an end\n")
    assert "rank 1: the process was ended by SIGABRT" in errors


def test_a_flood_without_a_line_end_takes_bounded_memory_and_loses_nothing(job, tmp_path):
    code = """
import os
if rank == 1:
    block = b"0123456789abcdef" * 4096
    for number in range(1024):
        os.write(1, block)
"""
    target = tmp_path / "output"
    # A process between, since a child's peak begins with that of the process which it came from.
    between = (
        "import resource, subprocess, sys\n"
        "status = subprocess.run(sys.argv[2:], stdout=open(sys.argv[1], 'wb')).returncode\n"
        "print(status, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", between, target, sys.executable, "-m", "rlx", "train", job, "-n2"],
        env=clean_environment(**on_each_rank(job.parent, code)),
        capture_output=True,
        text=True,
        timeout=100,
    )
    status, peak_kib = map(int, done.stdout.split())
    assert status == 0, done.stderr
    assert peak_kib < 150 * 1024  # of the launcher, and of the largest rank, which has numpy
    content = target.read_bytes()
    lines = [line[9:] for line in content.splitlines() if line.startswith(b"[rank 1] ")]
    assert b"".join(lines) == b"0123456789abcdef" * 4096 * 1024


def test_a_reader_that_leaves_ends_in_status_1_and_nothing_hangs(job):
    code = "for number in range(3000): print('x' * 200)"
    launcher = launched(job, **on_each_rank(job.parent, code))
    launcher.stdout.close()
    errors = launcher.stderr.read()
    assert launcher.wait(60) == 1
    assert "Traceback" not in errors
    launcher.stderr.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_launch_whose_output_nobody_reads(job, number):
    code = "for number in range(100000): print('x' * 200)"
    launcher = launched(job, **on_each_rank(job.parent, code))
    end = time.monotonic() + 30
    while len(children(launcher.pid)) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    ranks = children(launcher.pid)
    time.sleep(0.5)  # more than the pipes hold, and what is behind them waits
    launcher.send_signal(number)
    assert launcher.wait(30) == 128 + number
    assert all_gone(ranks.values())
    launcher.communicate()


def test_output_that_cannot_be_written_is_an_error(job):
    with open("/dev/full", "wb") as full:
        launcher = subprocess.Popen(
            [sys.executable, "-m", "rlx", "train", str(job), "-n", "2"],
            env=clean_environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
        _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 1
    assert errors.splitlines()[-1] == (
        "rlx: error: what the ranks print cannot be written: No space left on device"
    )


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_closed_standard_files_are_no_trouble(job, ranks):
    command = [
        sys.executable,
        "-m",
        "rlx",
        "train",
        str(job),
        "-n",
        ranks,
        "--save",
        "x.safetensors",
    ]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command],
        env=clean_environment(),
        cwd=job.parent,
        timeout=60,
    )
    assert done.returncode == 0
    assert (job.parent / "x.safetensors").exists()


def test_ranks_that_the_system_has_no_room_for_are_refused_in_one_line(job):
    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))

    done = subprocess.run(
        [sys.executable, "-m", "rlx", "train", str(job), "-n", "1000"],
        env=clean_environment(),
        preexec_fn=few_files,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "-n 1000" in done.stderr
    assert "the limit is 200" in done.stderr


# On a terminal.


class Terminal:
    """A launch with a terminal of its own, of 80 columns."""

    def __init__(self, job, *more: str, **environment: str) -> None:
        self.leader, follower = pty.openpty()

        def own() -> None:
            heed_signals()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [sys.executable, "-m", "rlx", "train", str(job), *more],
            env=clean_environment(TERM="xterm", **environment),
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
            preexec_fn=own,
        )
        os.close(follower)
        self.shown = b""

    def until(self, pattern: bytes) -> None:
        while not re.search(pattern, self.shown):
            self.shown += os.read(self.leader, 4096)

    def ended(self) -> int:
        try:
            while part := os.read(self.leader, 4096):
                self.shown += part
        except OSError:  # the terminal of a process that has ended
            pass
        os.close(self.leader)
        return self.process.wait(60)


def test_a_bar_is_drawn_on_a_terminal_and_lines_of_ranks_pass_above_it(job):
    environment = on_each_rank(job.parent, "print('hello from', rank)")
    terminal = Terminal(job, "-n", "2", **environment)
    assert terminal.ended() == 0
    for rank in (0, 1):
        assert b"\r\x1b[K[rank %d] hello from %d\r\n" % (rank, rank) in terminal.shown
    assert b"epoch 1/1" in terminal.shown
    last = terminal.shown.decode().splitlines()
    assert any("params sha256" in line for line in last[-3:])


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_control_c_ends_all_with_one_word_and_gives_the_cursor_back(job, ranks):
    terminal = Terminal(job, *ENDLESS, "-n", ranks)
    terminal.until(rb"epoch [1-9]")
    members = children(terminal.process.pid)
    os.write(terminal.leader, b"\x03")
    assert terminal.ended() == 128 + signal.SIGINT
    assert terminal.shown.count(b"rlx: interrupted") == 1
    assert b"Traceback" not in terminal.shown
    assert terminal.shown.rfind(b"\x1b[?25h") > terminal.shown.rfind(b"\x1b[?25l")
    assert all_gone(members.values())
