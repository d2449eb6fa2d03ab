"""What the attacks share: handshakes by hand, and what a victim holds, by /proc."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rlx.net.auth import Channel, Facts, Proving
from rlx.net.tcp import TcpTransport

ESTABLISHED = "01"
LISTENING = "0A"


def shake(
    address: tuple, facts: Facts, key: bytes = b"", *, timeout_s: float = 20.0
) -> socket.socket:
    """A connection that has proved itself; whoever refuses it raises here."""
    sock = socket.create_connection(address[:2], timeout=timeout_s)
    try:
        proving = Proving(facts, key, "the victim")
        sock.sendall(proving.hello)
        while proving.needed:
            data = sock.recv(proving.needed)
            if not data:
                raise ConnectionResetError("the victim closed the connection")
            sock.sendall(proving.feed(data))
    except BaseException:
        sock.close()
        raise
    return sock


def closed_by_peer(sock: socket.socket, seconds: float = 20.0) -> bool:
    """Whether the other end closes or resets this connection within a time."""
    sock.settimeout(seconds)
    try:
        while sock.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


def reset(sock: socket.socket) -> None:
    """Close with a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def until(condition: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    """Wait for a condition; AssertionError with `what` where it does not come true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.01)


def inodes_of(pid: int) -> set[str]:
    """The inodes of a process's sockets."""
    found = set()
    with contextlib.suppress(OSError):
        for link in (Path("/proc") / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                target = os.readlink(link)
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found


def sockets_of(pid: int, state: str) -> list[tuple[int, int]]:
    """(own port, peer's port) of the IPv4 connections in a state that a process holds.

    A connection that waits in a listener's queue belongs to no process and is not counted.
    """
    inodes = inodes_of(pid)
    return [
        (own, other) for own, other, kind, inode in _table() if kind == state and inode in inodes
    ]


def _table() -> Iterator[tuple[int, int, str, str]]:
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        yield (
            int(fields[1].rpartition(":")[2], 16),
            int(fields[2].rpartition(":")[2], 16),
            fields[3],
            fields[9],
        )


def accepted(pid: int, port: int) -> int:
    """How many connections to its port a process holds."""
    return sum(own == port for own, _ in sockets_of(pid, ESTABLISHED))


def memory_bytes(pid: int | str = "self") -> int:
    """A process's resident memory."""
    pages = int((Path("/proc") / str(pid) / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class ProvenPeer:
    """Bare sockets that have proved themselves to rank 0 as one of its peers."""

    def __init__(self, address: tuple, rank: int, world_size: int, key: bytes = b"") -> None:
        self.data = shake(address, Facts(rank, world_size, "", 0, Channel.DATA), key)
        self.control = shake(address, Facts(rank, world_size, "", 0, Channel.CONTROL), key)

    def close(self) -> None:
        self.data.close()
        self.control.close()


@contextlib.contextmanager
def proven_peers(
    world_size: int = 2, **options: Any
) -> Iterator[tuple[TcpTransport, list[ProvenPeer]]]:
    """Rank 0 as a transport, and the others as bare sockets, in rank order."""
    listener = socket.create_server(("127.0.0.1", 0))
    addresses = [listener.getsockname()] * world_size
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(
            TcpTransport.from_listener, 0, world_size, listener, addresses, **options
        )
        peers = [ProvenPeer(addresses[0], rank, world_size) for rank in range(1, world_size)]
        victim = coming.result(20)
    try:
        yield victim, peers
    finally:
        for peer in peers:
            peer.close()
        victim.close()
