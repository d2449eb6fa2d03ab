"""Worlds of threads for tests: a mesh of either form, and a body run on each of its ranks."""

from __future__ import annotations

import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar

from rlx.errors import PeerLost, RemoteError, UsageError
from rlx.group import ProcessGroup
from rlx.net import Deadline, MemoryTransport, NetTransport, TcpTransport
from rlx.testing.outcomes import give_up

T = TypeVar("T")
Address: TypeAlias = tuple[Any, ...]

WATCHDOG_S = 60.0


def make_mesh(kind: str, world_size: int) -> list[NetTransport]:
    """The transports of all ranks, in rank order.

    "memory"; "tcp", over loopback, whose ranks share memory; "sockets", TCP whose ranks do not.
    """
    if kind == "memory":
        return list(MemoryTransport.mesh(world_size))
    if kind not in ("tcp", "sockets"):
        raise UsageError(f"a mesh is 'memory', 'tcp' or 'sockets'; got {kind!r}")
    return list(tcp_mesh(world_size, shared_memory=kind == "tcp"))


def tcp_mesh(
    world_size: int,
    route: Callable[[list[Address]], list[list[Address]]] | None = None,
    **options: Any,
) -> list[TcpTransport]:
    """A mesh over loopback; `options` are those of `TcpTransport.from_listener`.

    `route` turns the addresses at which the ranks listen into those that each rank is given.
    """
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(world_size)]
    addresses = [listener.getsockname() for listener in listeners]
    given = [addresses] * world_size if route is None else route(addresses)
    deadline = Deadline(WATCHDOG_S)

    def join(rank: int) -> TcpTransport:
        return TcpTransport.from_listener(
            rank, world_size, listeners[rank], given[rank], deadline=deadline, **options
        )

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(join, range(world_size)))


def run_ranks(
    world_size: int,
    body: Callable[[ProcessGroup], T],
    transport: str = "tcp",
    *,
    deadline: float = WATCHDOG_S / 2,
    watchdog_s: float = WATCHDOG_S,
) -> list[T]:
    """Run `body(group)` in one thread a rank; return what they return, in rank order.

    A rank whose body raises aborts its group, so that the others end. When ranks fail, the error of
    the one that failed first is raised, with a note that names its rank. A rank that does not end
    within `watchdog_s` is reported with its stack: in a second note, or where none failed, in a
    `TimeoutError`.
    """

    def on_rank(one: NetTransport) -> T:
        return body(ProcessGroup(one, deadline=deadline))

    return run_on_mesh(make_mesh(transport, world_size), on_rank, watchdog_s=watchdog_s)


def run_on_mesh(
    transports: Sequence[NetTransport],
    body: Callable[[NetTransport], T],
    *,
    watchdog_s: float = WATCHDOG_S,
) -> list[T]:
    """Like `run_ranks`, with `body(transport)`; all transports are closed at the end."""
    results: dict[int, T] = {}
    failures: list[tuple[int, BaseException]] = []

    def run(one: NetTransport) -> None:
        try:
            results[one.rank] = body(one)
        except BaseException as error:  # a rank's outermost edge
            failures.append((one.rank, error))
            give_up(one, error)

    threads = {
        one.rank: threading.Thread(
            target=run, args=(one,), name=f"rlx-rank-{one.rank}", daemon=True
        )
        for one in transports
    }
    try:
        stuck = _join(threads, watchdog_s)
        # What fails from here on fails because of the closing below.
        first = _cause(failures)
    finally:
        for one in transports:
            one.close()
    if first is not None:
        rank, error = first
        error.add_note(f"rank {rank} of {len(transports)} failed first")
        if stuck:
            error.add_note(stuck)
        raise error
    if stuck:
        raise TimeoutError(stuck)
    return [results[one.rank] for one in transports]


def _cause(failures: Sequence[tuple[int, BaseException]]) -> tuple[int, BaseException] | None:
    """The failure that came first; where that one blames a rank which failed too, that rank's.

    A body that told the others itself may get to its end only after they have got to theirs.
    """
    if not failures:
        return None
    rank, error = failures[0]
    blamed = error.rank if isinstance(error, RemoteError | PeerLost) else rank
    return next(((one, why) for one, why in failures if one == blamed), failures[0])


def _join(threads: dict[int, threading.Thread], watchdog_s: float) -> str:
    """Run all threads to their end; where some have none in time, which, and where they are."""
    for thread in threads.values():
        thread.start()
    deadline = Deadline(watchdog_s)
    for thread in threads.values():
        thread.join(deadline.remaining())
    stacks = _stacks({rank: one for rank, one in threads.items() if one.is_alive()})
    return f"ranks still running after {watchdog_s} s:\n{stacks}" if stacks else ""


def _stacks(threads: dict[int, threading.Thread]) -> str:
    frames = sys._current_frames()
    return "\n".join(
        f"rank {rank}:\n" + "".join(traceback.format_stack(frames[thread.ident]))
        for rank, thread in threads.items()
        if thread.ident in frames
    )
