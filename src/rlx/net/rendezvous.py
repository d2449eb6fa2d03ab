"""How the ranks of a job find each other: one address that all know, and a store behind it.

Rank 0 serves a store at the coordinator's address. Every rank opens its data listener, publishes
where that is, and reads where the others are; then all join the mesh, and the store is closed.
Addresses are used as they are given, without reverse look-ups.
"""

from __future__ import annotations

import socket
import warnings
from collections.abc import Sequence

from rlx.errors import DeadlineExceeded, Malformed, UsageError
from rlx.net.addresses import Address, is_literal, is_wildcard, resolve, show_address
from rlx.net.auth import check_job, key_of
from rlx.net.deadline import Deadline
from rlx.net.doors import open_listener
from rlx.net.mesh import require_loopback
from rlx.net.store import Store
from rlx.net.store_client import StoreClient
from rlx.net.store_server import StoreServer
from rlx.net.tcp import DEFAULT_HEARTBEAT_S, TcpTransport

_TABLE_KEY = "addresses"
_FOUND = "addresses of all ranks"
_MISSING = "ranks that never came"
# Rank 0's host where it listens on every interface: each peer takes the one it reached.
_AS_REACHED = ""
_LAST_LOOK_S = 1.0


def join_mesh(
    rank: int,
    world_size: int,
    coordinator: tuple[str, int],
    *,
    token: bytes | None = None,
    job: str = "",
    bind: str | None = None,
    deadline: Deadline,
    heartbeat_s: float = DEFAULT_HEARTBEAT_S,
    shared_memory: bool = True,
    heap_bytes: int = 0,
    coordinator_listener: socket.socket | None = None,
) -> TcpTransport:
    """Meet the other ranks at the coordinator's address, and join their mesh.

    Parameters
    ----------
    coordinator
        (host, port) at which rank 0 listens and the others find it.
    token
        The job's secret, the same on every rank. Without one, everything must be loopback.
    job
        Names the job; at most 64 bytes.
    bind
        The address on which this rank listens for its peers. Otherwise it is the one by which it
        reaches the coordinator. "0.0.0.0" or "::" is every interface; that needs a token and warns.
    deadline
        For all of it.
    heartbeat_s
        A peer that is silent for this long is taken for dead.
    shared_memory, heap_bytes
        As `TcpTransport.from_listener`.
    coordinator_listener
        For rank 0: a socket that listens at the coordinator's address already, owned from now on.
        Whoever lets the system choose the port (port 0) opens it, and tells the others.

    Raises
    ------
    UsageError
        The arguments are wrong, or an address is not loopback and there is no token, or two
        processes claim one rank.
    ConnectError
        The address cannot be listened at, or what is there is not this job's coordinator.
    AuthenticationError
        Another rank holds another token.
    DeadlineExceeded
        Some ranks never came; they are named.
    """
    try:
        if not 0 <= rank < world_size:
            raise UsageError(f"there is no rank {rank} in a world of {world_size}")
        check_job(job)
        key = key_of(token)
        if world_size == 1:
            return TcpTransport.from_listener(0, 1, None, (), token=token, job=job)
        _, meeting = resolve(coordinator)
        _check_addresses(meeting, bind, token)
        if rank == 0:
            if coordinator_listener is None:
                coordinator_listener = _listen_for_all(coordinator, meeting)
            store: Store = StoreServer(
                coordinator_listener, world_size=world_size, job=job, key=key
            )
            coordinator_listener = None
        else:
            store = StoreClient(
                meeting, rank=rank, world_size=world_size, job=job, key=key, deadline=deadline
            )
    finally:
        if coordinator_listener is not None:
            coordinator_listener.close()
    try:
        listener = open_listener(_host_to_listen_on(store, bind), 0)
        try:
            addresses = _find_addresses(rank, world_size, store, listener, deadline)
        except BaseException:
            listener.close()
            raise
        return TcpTransport.from_listener(
            rank,
            world_size,
            listener,
            addresses,
            token=token,
            job=job,
            heartbeat_s=heartbeat_s,
            shared_memory=shared_memory,
            heap_bytes=heap_bytes,
            deadline=deadline,
        )
    finally:
        # Rank 0's mesh is whole only when every rank has read the addresses and connected.
        store.close()


def _check_addresses(meeting: Address, bind: str | None, token: bytes | None) -> None:
    hosts = [str(meeting[0])] if bind is None else [str(meeting[0]), bind]
    if token is None:
        require_loopback([(host, meeting[1]) for host in hosts])
    for host in hosts:
        if is_wildcard(host):
            warnings.warn(
                f"{host} means every network interface of this machine; name one address to "
                "listen on that alone",
                RuntimeWarning,
                stacklevel=3,
            )


def _listen_for_all(coordinator: Address, meeting: Address) -> socket.socket:
    if coordinator[1] == 0:
        raise UsageError(
            f"{show_address(coordinator)}: the other ranks cannot know a port that the system "
            "chooses; open a listener, tell them its port, and pass it as coordinator_listener"
        )
    return open_listener(meeting[0], meeting[1])


def _host_to_listen_on(store: Store, bind: str | None) -> str:
    if bind is not None:
        return bind
    if isinstance(store, StoreClient):
        return store.local_host
    assert isinstance(store, StoreServer)
    return str(store.address[0])


def _find_addresses(
    rank: int, world_size: int, store: Store, listener: socket.socket, deadline: Deadline
) -> list[Address]:
    host, port = listener.getsockname()[:2]
    if is_wildcard(host):
        host = store.local_host if isinstance(store, StoreClient) else _AS_REACHED
    store.set(_address_key(rank), f"{host} {port}".encode(), deadline=deadline)
    if isinstance(store, StoreServer):
        _publish_table(world_size, store, deadline)
    try:
        table = store.get(_TABLE_KEY, deadline=deadline)
    except DeadlineExceeded as late:
        raise _never_came(rank, _absent(world_size, store), deadline) from late
    # Rank 0 never connects to its own address.
    reached = store.server_host if isinstance(store, StoreClient) else "0.0.0.0"
    return read_table(rank, world_size, table, reached, deadline)


def _publish_table(world_size: int, store: StoreServer, deadline: Deadline) -> None:
    """Collect every rank's address; tell all of them, or else which ranks never came."""
    try:
        published = [store.get(_address_key(peer), deadline=deadline) for peer in range(world_size)]
    except DeadlineExceeded as late:
        missing = _absent(world_size, store)
        text = "\n".join([_MISSING, *map(str, missing)])
        store.set(_TABLE_KEY, text.encode())
        raise _never_came(0, missing, deadline) from late
    lines = [one.decode("utf-8", "replace") for one in published]
    for peer, line in enumerate(lines):
        if not _is_address_line(line):
            raise Malformed(f"rank {peer} published {line[:80]!r}; expected host and port")
    store.set(_TABLE_KEY, "\n".join([_FOUND, *lines]).encode())


def _absent(world_size: int, store: Store) -> list[int]:
    """The ranks that have not published an address, as far as the store still answers."""
    last_look = Deadline(_LAST_LOOK_S)
    try:
        return [
            peer
            for peer in range(world_size)
            if store.peek(_address_key(peer), deadline=last_look) is None
        ]
    except DeadlineExceeded:
        return [0]  # The store itself is silent, and it is rank 0's.


def read_table(
    rank: int, world_size: int, table: bytes, reached: str, deadline: Deadline
) -> list[Address]:
    """Every rank's address, from what rank 0 published; `reached` is where it was reached itself.

    Raises `DeadlineExceeded` where the table says who never came, `Malformed` where it is no table.
    """
    head, *lines = table.decode("utf-8", "replace").split("\n")
    if head == _MISSING and all(_is_number(line, world_size) for line in lines):
        raise _never_came(rank, [int(line) for line in lines], deadline)
    if head != _FOUND or len(lines) != world_size:
        raise Malformed(f"rank 0 published {table[:80]!r} where addresses were expected")
    return [_read_address(line, reached) for line in lines]


def _read_address(line: str, reached: str) -> Address:
    if not _is_address_line(line):
        raise Malformed(f"a rank published {line[:80]!r}; expected host and port")
    host, _, port = line.rpartition(" ")
    return host if host != _AS_REACHED else reached, int(port)


def _is_address_line(line: str) -> bool:
    host, _, port = line.rpartition(" ")
    is_host = host == _AS_REACHED or (line.isascii() and line.isprintable() and is_literal(host))
    return is_host and _is_number(port, 1 << 16) and int(port) > 0


def _is_number(text: str, below: int) -> bool:
    """Whether this is a number as rlx writes it. Python refuses to convert very long ones."""
    return text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) < below


def _address_key(rank: int) -> str:
    return f"address/{rank}"


def _never_came(rank: int, missing: Sequence[int], deadline: Deadline) -> DeadlineExceeded:
    names = ", ".join(f"rank {peer}" for peer in missing)
    return DeadlineExceeded(
        f"rank {rank} waited {deadline.elapsed():.3g} s for the others; never came: {names}",
        missing,
    )
