"""What the TCP tests share: meshes of threads, ranks as child processes, raw peers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rlx.net.auth import Facts
from rlx.net.deadline import Deadline
from rlx.net.doors import open_listener
from rlx.net.mesh import Mesh, make_mesh
from rlx.net.rendezvous import join_mesh
from rlx.net.tcp import TcpTransport
from rlx.net.transport import Incoming, Outgoing

WATCHDOG_S = 30.0

SHARED_MEMORY = True
"""Whether the ranks made here share memory. `conftest` runs the TCP tests with and without."""


def listeners(count: int) -> list[socket.socket]:
    return [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]


def in_threads(bodies: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run each body in a thread; what it returned, or the exception that it raised."""
    results: list[Any] = [None] * len(bodies)

    def run(index: int) -> None:
        try:
            results[index] = bodies[index]()
        except BaseException as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WATCHDOG_S)
        assert not thread.is_alive(), "a rank is stuck"
    return results


def open_mesh(world_size: int, **options: Any) -> list[TcpTransport]:
    options.setdefault("shared_memory", SHARED_MEMORY)
    doors = listeners(world_size)
    addresses = [door.getsockname() for door in doors]
    made = in_threads(
        [
            lambda r=r: TcpTransport.from_listener(
                r, world_size, doors[r], addresses, deadline=Deadline(10), **options
            )
            for r in range(world_size)
        ]
    )
    for one in made:
        if isinstance(one, BaseException):
            raise one
    return made


@contextlib.contextmanager
def tcp_mesh(world_size: int, **options: Any) -> Iterator[list[TcpTransport]]:
    transports = open_mesh(world_size, **options)
    try:
        yield transports
    finally:
        in_threads([transport.close for transport in transports])


def on_all(transports: Sequence[TcpTransport], body: Callable[[TcpTransport], Any]) -> list[Any]:
    return in_threads([lambda t=t: body(t) for t in transports])


def send(transport: TcpTransport, peer: int, tag: int, data: bytes, seconds: float = 10) -> None:
    transport.exchange([Outgoing(peer, tag, b"test", (data,))], (), deadline=Deadline(seconds))


def receive(
    transport: TcpTransport, peer: int, tag: int, size: int, seconds: float = 10
) -> bytearray:
    slot = bytearray(size)
    transport.exchange((), [Incoming(peer, tag, b"test", slot)], deadline=Deadline(seconds))
    return slot


def meet(world_size, host="127.0.0.1", listener=None, seconds=10.0, **options):
    """All ranks in threads; transports or errors, by rank."""
    door = listener or open_listener(host, 0)
    where = door.getsockname()[:2]

    def rank_of(rank):
        own = {"coordinator_listener": door} if rank == 0 else {}
        return join_mesh(rank, world_size, where, deadline=Deadline(seconds), **own, **options)

    return in_threads([lambda r=r: rank_of(r) for r in range(world_size)])


def close_all(made):
    in_threads([t.close for t in made if isinstance(t, TcpTransport)])


@contextlib.contextmanager
def raw_peer(**options: Any) -> Iterator[tuple[TcpTransport, Mesh]]:
    """Rank 0 as a transport; rank 1 as bare sockets that have proved themselves."""
    doors = listeners(2)
    addresses = [door.getsockname() for door in doors]
    first, mesh = in_threads(
        [
            lambda: TcpTransport.from_listener(0, 2, doors[0], addresses, **options),
            lambda: make_mesh(Facts(1, 2), b"", doors[1], dict(enumerate(addresses)), Deadline(10)),
        ]
    )
    for sock in (mesh.data[0], mesh.control[0]):
        sock.setblocking(True)
    try:
        yield first, mesh
    finally:
        mesh.close()
        first.close()


_CHILD = """
import json, signal, socket, sys, time
from rlx.net.deadline import Deadline
from rlx.net.tcp import TcpTransport
from rlx.net.transport import Incoming, Outgoing
task = json.loads(sys.argv[1])
rank, world_size = task["rank"], task["world_size"]
transport = TcpTransport.from_listener(
    rank, world_size, socket.socket(fileno=task["fd"]),
    [tuple(a) for a in task["addresses"]], heartbeat_s=task["heartbeat_s"], deadline=Deadline(20),
    shared_memory=task["shared_memory"],
)
def say(text):
    print(text, flush=True)
def send(peer, tag, data):
    transport.exchange([Outgoing(peer, tag, b"test", (data,))], (), deadline=Deadline(20))
def receive(peer, tag, size):
    slot = bytearray(size)
    transport.exchange((), [Incoming(peer, tag, b"test", slot)], deadline=Deadline(20))
    return slot
say("ready")
exec(compile(task["body"], "<body>", "exec"))
"""


class Child:
    """A rank in a process of its own, running `body`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def wait_for(self, word: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == word:
                return
        raise AssertionError(f"the child ended without saying {word!r}")

    def output(self) -> str:
        text, _ = self.process.communicate(timeout=WATCHDOG_S)
        return text

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(WATCHDOG_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def with_children(
    world_size: int,
    bodies: dict[int, str],
    heartbeat_s: float = 10.0,
    childrens_heartbeat_s: float | None = None,
) -> Iterator[tuple[dict[int, TcpTransport], dict[int, Child]]]:
    """Ranks with a body are child processes; the others are transports of this process."""
    doors = listeners(world_size)
    addresses = [door.getsockname() for door in doors]
    children = {}
    for rank, body in bodies.items():
        task = {
            "rank": rank,
            "world_size": world_size,
            "fd": doors[rank].fileno(),
            "addresses": addresses,
            "heartbeat_s": childrens_heartbeat_s or heartbeat_s,
            "shared_memory": SHARED_MEMORY,
            "body": body,
        }
        children[rank] = Child(
            subprocess.Popen(
                [sys.executable, "-c", _CHILD, json.dumps(task)],
                pass_fds=(doors[rank].fileno(),),
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        doors[rank].close()
    here = [rank for rank in range(world_size) if rank not in bodies]
    made = in_threads(
        [
            lambda r=r: TcpTransport.from_listener(
                r,
                world_size,
                doors[r],
                addresses,
                heartbeat_s=heartbeat_s,
                deadline=Deadline(20),
                shared_memory=SHARED_MEMORY,
            )
            for r in here
        ]
    )
    try:
        assert all(isinstance(one, TcpTransport) for one in made), made
        for child in children.values():
            child.wait_for("ready")
        yield dict(zip(here, made, strict=True)), children
    finally:
        for child in children.values():
            child.stop()
        in_threads([one.close for one in made if isinstance(one, TcpTransport)])


def open_descriptors() -> set[str]:
    """The open descriptors of this process, each with what it is."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
    return found


def our_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("rlx-")}
