"""The TCP form of the transport: a full mesh of connections, moved by the threads that wait."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Sequence

from rlx.errors import UsageError
from rlx.net.addresses import Address
from rlx.net.auth import Facts, check_job, key_of
from rlx.net.control import Control
from rlx.net.deadline import Deadline
from rlx.net.engine import Engine
from rlx.net.frames import Limits
from rlx.net.heap import Heap
from rlx.net.mesh import Mesh, make_mesh, require_loopback
from rlx.net.notices import Notice
from rlx.net.sharing import SharedMemory, share_memory
from rlx.net.transport import Incoming, NetTransport, Outgoing

DEFAULT_HEARTBEAT_S = 10.0
DEFAULT_JOIN_S = 60.0


class TcpTransport(NetTransport):
    """Ranks that are threads, processes or hosts, joined by TCP. See `from_listener`."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        mesh: Mesh,
        *,
        heartbeat_s: float,
        limits: Limits,
        bound_addresses: tuple[Address, ...] = (),
        shared: SharedMemory | None = None,
    ) -> None:
        """Take over a mesh that is whole. For the constructors; use `from_listener`."""
        self._rank = rank
        self._world_size = world_size
        self._bound_addresses = bound_addresses
        self._heap = None if shared is None else shared.heap
        self._engine = Engine(rank, mesh.data, limits, shared)
        self._closing = threading.Lock()
        self._control: Control | None = None
        if world_size > 1:
            self._control = Control(rank, world_size, mesh.control, heartbeat_s, self._engine)
            self._control.start()

    @classmethod
    def from_listener(
        cls,
        rank: int,
        world_size: int,
        listener: socket.socket | None,
        addresses: Sequence[Address],
        *,
        token: bytes | None = None,
        job: str = "",
        heap_bytes: int = 0,
        shared_memory: bool = True,
        heartbeat_s: float = DEFAULT_HEARTBEAT_S,
        deadline: Deadline | None = None,
        inbox_limit_bytes: int = Limits.inbox_bytes,
        frame_limit_bytes: int = Limits.frame_bytes,
        call_limit_bytes: int = Limits.call_bytes,
    ) -> TcpTransport:
        """Join the mesh of `world_size` ranks; returns when this rank has all its connections.

        Parameters
        ----------
        listener
            A listening socket, owned by this call from now on: it is closed when the mesh is
            whole or has failed. A world of one needs none.
        addresses
            The (host, port) of each rank's listener, in rank order, as `getsockname` gives it.
        token
            The job's secret, the same on every rank. Without one, every address must be loopback.
        job
            Names the job, so that ranks of two jobs do not mix; at most 64 bytes.
        heap_bytes
            How much address space the heap has, where the rank shares memory; 0 is as much as the
            machine has memory. It takes memory as it is written.
        shared_memory
            Whether to share memory with the ranks of this host that would too. Their messages then
            go through it, and their heaps are each other's. Where it cannot be had (another user
            or container, not Linux on x86-64) the connections carry everything.
        heartbeat_s
            A peer that is silent for this long is taken for dead.
        deadline
            For the whole joining; 60 seconds unless given.
        inbox_limit_bytes
            What messages that no slot expects yet may take. When it is full, reading from a peer
            pauses until a slot for its next message is there.
        frame_limit_bytes
            The largest message that is accepted.
        call_limit_bytes
            The most that one system call is given.

        Raises
        ------
        UsageError
            The arguments are wrong, or an address is not loopback and there is no token.
        DeadlineExceeded
            Some ranks never came; they are named.
        AuthenticationError, ConnectError
            A lower rank holds another token, or belongs to another job.
        """
        try:
            limits = Limits(frame_limit_bytes, inbox_limit_bytes, call_limit_bytes)
            key = _check(rank, world_size, listener, addresses, token, job, heap_bytes, heartbeat_s)
            mesh, shared = Mesh(), None
            bound: tuple[Address, ...] = ()
            if world_size > 1 and listener is not None:
                bound = (listener.getsockname(),)
                deadline = deadline or Deadline(DEFAULT_JOIN_S)
                mesh = make_mesh(
                    Facts(rank, world_size, job, shares=shared_memory),
                    key,
                    listener,
                    dict(enumerate(addresses)),
                    deadline,
                )
                shared = _share(rank, world_size, mesh, heap_bytes, deadline)
        finally:
            if listener is not None:
                listener.close()
        return cls(
            rank,
            world_size,
            mesh,
            heartbeat_s=heartbeat_s,
            limits=limits,
            bound_addresses=bound,
            shared=shared,
        )

    @property
    def rank(self) -> int:
        """This process's number."""
        return self._rank

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self._world_size

    @property
    def heap(self) -> Heap | None:
        """The heap that this rank shares with ranks of its host, or None where it shares none."""
        return self._heap

    @property
    def bound_addresses(self) -> tuple[Address, ...]:
        """Where this rank listened while the mesh was made. Nothing listens there any more."""
        return self._bound_addresses

    def exchange(
        self,
        sends: Sequence[Outgoing],
        receives: Sequence[Incoming],
        *,
        deadline: Deadline,
    ) -> None:
        """As `NetTransport.exchange`.

        A peer's frame that is no frame of this protocol raises a `WireError` that names the peer
        and ends the link to it.
        """
        self._check_exchange(sends, receives)
        for message in sends:
            for buffer in message.buffers:
                if isinstance(buffer, memoryview) and not buffer.c_contiguous:
                    raise UsageError(
                        f"a buffer for rank {message.peer}, tag {message.tag} is not C-contiguous"
                    )
        self._engine.exchange(sends, receives, deadline)

    def trade(
        self,
        tag: int,
        stamp: bytes,
        content: bytes,
        slots: Sequence[tuple[int, memoryview]],
        *,
        deadline: Deadline,
    ) -> None:
        """As `NetTransport.trade`."""
        if self._may_shorten(tag, stamp, slots):
            self._engine.trade(tag, stamp, content, slots, deadline)
        else:
            super().trade(tag, stamp, content, slots, deadline=deadline)

    def abort(self, reason: str | BaseException) -> None:
        """Tell every other rank why this one gives up, then close. Takes about a second at most."""
        notice = Notice.of_reason(self._rank, reason)
        with self._closing:
            stopped = self._engine.stop(
                f"rank {self._rank}: the transport was closed by abort: {notice.message}"
            )
            if stopped:
                self._end(notice)

    def close(self) -> None:
        """Leave in order. Twice is fine.

        A transport that has seen a failure passes it on instead of saying goodbye, so that the
        others blame the rank that failed first and not this one. Takes a few seconds at most,
        which is when a peer takes nothing of what was last sent to it.
        """
        with self._closing:
            if self._engine.stop(f"rank {self._rank}: the transport is closed"):
                self._end(self._engine.failure)

    def _end(self, failure: Notice | None) -> None:
        if failure is not None:
            if self._control is not None:
                self._control.tell(failure)
            self._engine.close(in_order=False)
            return
        self._engine.close(in_order=True)
        if self._control is not None:
            self._control.say_goodbye()


def _share(
    rank: int, world_size: int, mesh: Mesh, heap_bytes: int, deadline: Deadline
) -> SharedMemory | None:
    connections = {peer: mesh.data[peer] for peer in sorted(mesh.sharing)}
    if not connections:
        return None
    try:
        return share_memory(rank, world_size, connections, heap_bytes, deadline)
    except BaseException:
        mesh.close()
        raise


def _check(
    rank: int,
    world_size: int,
    listener: socket.socket | None,
    addresses: Sequence[Address],
    token: bytes | None,
    job: str,
    heap_bytes: int,
    heartbeat_s: float,
) -> bytes:
    """Refuse arguments that cannot work; the key of the handshake."""
    if world_size < 1 or not 0 <= rank < world_size:
        raise UsageError(f"there is no rank {rank} in a world of {world_size}")
    if heap_bytes < 0:
        raise UsageError(f"heap_bytes is a number of bytes >= 0; got {heap_bytes}")
    if not (0 < heartbeat_s < math.inf):
        raise UsageError(f"heartbeat_s is a finite number of seconds > 0; got {heartbeat_s!r}")
    check_job(job)
    if world_size > 1:
        if listener is None:
            raise UsageError(f"rank {rank} of {world_size} needs a listening socket")
        if len(addresses) != world_size:
            raise UsageError(
                f"{len(addresses)} addresses for a world of {world_size}; one a rank is needed"
            )
        if token is None:
            require_loopback([listener.getsockname(), *addresses])
    return key_of(token)
