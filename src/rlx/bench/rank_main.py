"""`python -m rlx.bench.rank_main WORLD SOCKET RANKS RANK`: the ranks of a world that is measured.

Started by `rlx.bench.worlds`, never by hand. Each rank connects to the socket, says who it is, and
is then told what to measure. In between it sleeps in a read: a rank that waited by polling would
take the cores from those that are being measured.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

from rlx import job
from rlx.bench.calls import Kept, Subject, time_collective, time_link
from rlx.bench.lines import Lines, Message
from rlx.bench.subjects import (
    GlooSubject,
    NativeMpiSubject,
    RlxSubject,
    version_of_gloo,
    version_of_mpi,
)
from rlx.errors import ConnectError, RlxError
from rlx.group import ProcessGroup
from rlx.net import Deadline, MemoryTransport, MpiTransport, NetTransport, TcpTransport, load_mpi

JOIN_S = 60.0
CALL_S = 120.0

Subjects = dict[str, Subject]
Make = Callable[[Message], Subjects]


def main(arguments: Sequence[str]) -> int:
    """Run the rank, or all ranks, of a world until its starter hangs up."""
    job.tie_to_launcher(os.environ)
    world, path, ranks_text, rank_text = arguments
    ranks = int(ranks_text)
    if world == "threads":
        return _run_threads(path, ranks)
    lines = _connect(path)
    try:
        if world in ("mpi", "mpi-tcp"):
            return _run_mpi(lines, ranks)
        if world == "gloo":
            make = _gloo(path, int(rank_text), ranks)
            return _serve(lines, int(rank_text), make, about=version_of_gloo)
        return _run_tcp(lines, int(rank_text), ranks, shared_memory=world == "tcp+shm")
    except Exception as error:  # a rank's outermost edge: told to the starter
        lines.send({"failed": _said(error)})
        return 1
    finally:
        lines.close()


def _connect(path: str) -> Lines:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    return Lines(sock)


def _run_threads(path: str, ranks: int) -> int:
    statuses: list[int] = []

    def run(transport: NetTransport) -> None:
        lines = _connect(path)
        try:
            statuses.append(_serve(lines, transport.rank, lambda _: _rlx("threads", transport)))
        finally:
            lines.close()

    mesh = MemoryTransport.mesh(ranks)
    threads = [threading.Thread(target=run, args=(one,), daemon=True) for one in mesh]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 0 if len(statuses) == ranks and not any(statuses) else 1


def _run_tcp(lines: Lines, rank: int, ranks: int, *, shared_memory: bool) -> int:
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()

    def make(told: Message) -> Subjects:
        transport = TcpTransport.from_listener(
            rank,
            ranks,
            listener,
            [tuple(one) for one in told["addresses"]],
            token=bytes.fromhex(told["token"]),
            deadline=Deadline(JOIN_S),
            **_shared_memory(shared_memory),
        )
        return _rlx("tcp+shm" if shared_memory else "tcp", transport)

    with listener:
        return _serve(lines, rank, make, address=address)


def _shared_memory(wanted: bool) -> dict[str, Any]:
    """The transport's argument that chooses between shared memory and sockets alone."""
    if "shared_memory" in signature(TcpTransport.from_listener).parameters:
        return {"shared_memory": wanted}
    if wanted:
        raise ConnectError("not in this release: its processes share no memory")
    return {}


def _run_mpi(lines: Lines, ranks: int) -> int:
    mpi = load_mpi()
    own, found = mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size()

    def make(told: Message) -> Subjects:
        if found != ranks:
            raise ConnectError(f"mpirun started {ranks} ranks, and MPI knows of {found}")
        subjects: Subjects = {}
        for name in told["contenders"]:
            if name == "mpi":
                subjects |= _rlx(name, MpiTransport.from_comm(deadline=Deadline(JOIN_S)))
            else:
                subjects[name] = NativeMpiSubject()
        return subjects

    status = _serve(lines, own, make, about=version_of_mpi)
    if status:
        # MPI_Finalize would wait for ranks that wait for this one.
        mpi.COMM_WORLD.Abort(status)
    return status


def _gloo(path: str, rank: int, ranks: int) -> Make:
    meeting = Path(path).with_suffix(".meeting")
    return lambda _: {"gloo": GlooSubject(rank, ranks, str(meeting), CALL_S)}


def _rlx(name: str, transport: NetTransport) -> Subjects:
    return {name: RlxSubject(ProcessGroup(transport, deadline=CALL_S))}


def _serve(
    lines: Lines,
    rank: int,
    make: Make,
    *,
    address: tuple[str, int] | None = None,
    about: Callable[[], str] = str,
) -> int:
    """Say who this is, make what is measured, and measure until told to stop; a status."""
    subjects: Subjects = {}
    try:
        lines.send({"rank": rank, "address": address})
        subjects = {name: Kept(one) for name, one in make(lines.receive()).items()}
        lines.send({"ready": about()})
        while (told := lines.receive()).get("do") != "stop":
            lines.send({"seconds": _measured(subjects, told)})
    except EOFError:
        return 1  # the starter is gone
    except BaseException as error:  # a rank's outermost edge: told to the starter
        lines.send({"failed": _said(error)})
        return 1
    finally:
        for subject in subjects.values():
            subject.close()
    return 0


def _said(error: BaseException) -> str:
    if isinstance(error, ImportError):
        return f"not installed: {error}"
    return str(error) if isinstance(error, RlxError) else f"{type(error).__name__}: {error}"


def _measured(subjects: Subjects, told: Message) -> list[float]:
    subject, counts = subjects[told["contender"]], (told["warm_ups"], told["repeats"])
    if told["do"] == "link":
        return time_link(subject, told["peer"], told["leads"], told["bytes"], *counts)
    return time_collective(subject, told["call"], told["bytes"], *counts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
