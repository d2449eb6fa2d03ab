"""Programs for the MPI transport's tests, run by the mpirun that stands beside this Python."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

MPIRUN = Path(sys.executable).with_name("mpirun")
OMPI_INFO = MPIRUN.with_name("ompi_info")

needs_mpirun = pytest.mark.skipif(not MPIRUN.exists(), reason="no mpirun beside this Python")

_BEFORE = """
import os, signal, sys, threading, time, traceback
from rlx.errors import *
from rlx.net.deadline import Deadline
from rlx.net.mpi import MpiTransport, load_mpi, refuse_split_world
from rlx.net.transport import Incoming, MessageMismatch, Outgoing

def send(one, peer, data, *, tag=7, stamp=b"s", seconds=10):
    one.exchange([Outgoing(peer, tag, stamp, (data,))], (), deadline=Deadline(seconds))

def receive(one, peer, size, *, tag=7, stamp=b"s", seconds=10):
    slot = bytearray(size)
    one.exchange((), [Incoming(peer, tag, stamp, slot)], deadline=Deadline(seconds))
    return slot

def meet(one, tag=99):
    ranks = range(one.world_size)
    one.exchange([Outgoing(peer, tag, b"meet") for peer in ranks],
                 [Incoming(peer, tag, b"meet") for peer in ranks], deadline=Deadline(10))

def content(size, salt=0):
    return (bytes((salt + 7 * place) % 251 for place in range(251)) * (size // 251 + 1))[:size]

def raised(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind} was not raised")

def say(text):
    # One write a line, so that the lines of several ranks do not mix.
    os.write(1, f"{text}\\n".encode())
"""

_AFTER = """
try:
    body()
    say(f"rank {load_mpi().COMM_WORLD.Get_rank()} ok")
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    load_mpi().COMM_WORLD.Abort(1)
"""


@dataclass(frozen=True)
class Ended:
    """How a program ended: mpirun's exit status, and what the ranks said."""

    status: int
    lines: list[str]
    text: str

    def ok_ranks(self) -> list[int]:
        """The ranks whose bodies came to their end."""
        return sorted(int(line.split()[1]) for line in self.lines if line.endswith(" ok"))


def environment(**more: str) -> dict[str, str]:
    """This environment, in which Open MPI lets root start a job."""
    allow = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**os.environ, **allow, **more}


def run_under_mpi(tmp_path: Path, ranks: int, body: str, *options: str) -> Ended:
    """Run `body`, the text of a function `body()`, on that many ranks."""
    program = _write(tmp_path, body)
    launch = [str(MPIRUN), "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *options]
    return _run([*launch, sys.executable, str(program)])


def run_without_mpirun(tmp_path: Path, body: str) -> Ended:
    """Run `body` as one plain process, which MPI takes for a world of one."""
    return _run([sys.executable, str(_write(tmp_path, body))])


def assert_all_ok(ended: Ended, ranks: int) -> None:
    """Every rank's body came to its end without an error, and so did mpirun."""
    assert ended.ok_ranks() == list(range(ranks)), ended.text
    assert ended.status == 0, ended.text


@cache
def has_fault_tolerance() -> bool:
    """Whether this Open MPI was built to survive the death of a rank."""
    if not OMPI_INFO.exists():
        return False
    shown = subprocess.run([OMPI_INFO], capture_output=True, text=True, timeout=30, check=False)
    return "Fault Tolerance support: yes" in shown.stdout


def _write(tmp_path: Path, body: str) -> Path:
    program = tmp_path / "program.py"
    program.write_text(_BEFORE + textwrap.dedent(body) + _AFTER)
    return program


def _run(command: list[str], timeout_s: float = 60) -> Ended:
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment())
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.terminate()  # not kill: mpirun ends its ranks before itself
        out, err = process.communicate(timeout=timeout_s)
    return Ended(process.returncode, out.splitlines(), out + err)
