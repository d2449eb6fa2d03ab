"""Which ranks share memory, found when the mesh is whole: offers over the data connections.

Both ends of a connection whose handshakes said that they share send an offer of their segment, try
to map the other's, and say whether they could. The two share if both could; otherwise they go on
over the connection alone, which is what ranks of two hosts do.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
from collections.abc import Mapping
from typing import Final

from rlx.errors import DeadlineExceeded, PeerLost
from rlx.net.deadline import Deadline
from rlx.net.ring import LANE_BYTES, RingStream, is_ordered_machine
from rlx.net.segment import NO_OFFER, PAGE_BYTES, Offer, Segment
from rlx.net.shared_heap import SharedHeap

_COULD: Final = b"\x01"
_COULD_NOT: Final = b"\x00"
_SLEEPS: Final = 64  # where in the first page a rank says that it sleeps


class SharedMemory:
    """What one rank shares with its near peers: a ring to each, and the heap."""

    def __init__(
        self, own: Segment, peers: Mapping[int, Segment], layout: Layout, *, may_spin: bool
    ) -> None:
        self.may_spin = may_spin
        self._own = own
        self._peers = dict(peers)
        self._sleeps = own.memory[_SLEEPS : _SLEEPS + 8].cast("Q")
        self.streams = {
            peer: RingStream(
                peer,
                layout.lane(own, peer),
                layout.lane(segment, layout.rank),
                segment.memory[_SLEEPS : _SLEEPS + 8],
            )
            for peer, segment in self._peers.items()
        }
        self.heap = SharedHeap(own, self._peers, layout.heap_start)

    def fall_asleep(self) -> None:
        """Ask the peers to ring the bell. Look at the rings once more before sleeping."""
        self._sleeps[0] = 1
        for stream in self.streams.values():
            stream.fence()
            return

    def wake_up(self) -> None:
        """No bell is needed any more."""
        self._sleeps[0] = 0

    def close(self) -> None:
        """Let go of all memory but that of arrays which still lie in it."""
        for stream in self.streams.values():
            stream.release()
        self.streams.clear()
        self.heap.close()
        self._sleeps.release()
        for segment in (self._own, *self._peers.values()):
            segment.close()


class Layout:
    """How a segment is laid out: a first page, a lane for each rank that writes, the heap."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.heap_start = PAGE_BYTES + world_size * LANE_BYTES

    def lane(self, segment: Segment, writer: int) -> memoryview:
        """The lane of a segment that rank `writer` writes to."""
        return segment.view(PAGE_BYTES + writer * LANE_BYTES, LANE_BYTES)


def default_heap_bytes() -> int:
    """As much as the machine has memory: address space alone, until it is written."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def share_memory(
    rank: int,
    world_size: int,
    connections: Mapping[int, socket.socket],
    heap_bytes: int,
    deadline: Deadline,
) -> SharedMemory | None:
    """Meet over `connections` (non-blocking, to the peers that share); None where nobody is near.

    Raises
    ------
    PeerLost
        A connection ended.
    DeadlineExceeded
        A peer did not answer in time.
    """
    layout = Layout(rank, world_size)
    size_bytes = layout.heap_start + (heap_bytes or default_heap_bytes())
    own = create_segment(size_bytes) if is_ordered_machine() else None
    peers: dict[int, Segment] = {}
    try:
        offer = NO_OFFER if own is None else own.offer
        offers = _trade(rank, connections, dict.fromkeys(connections, offer.pack()), deadline)
        found = {peer: Offer.unpack(data) for peer, data in offers.items()}
        for peer, there in found.items():
            segment = Segment.attach(there) if own is not None else None
            if segment is not None:
                peers[peer] = segment
        answers = {peer: _COULD if peer in peers else _COULD_NOT for peer in connections}
        for peer, answer in _trade(rank, connections, answers, deadline).items():
            if answer != _COULD and peer in peers:
                peers.pop(peer).close()
        if own is not None and peers:
            own.withdraw()
            # A thread that spins keeps the others of its process from running.
            may_spin = all(found[peer].process != os.getpid() for peer in peers)
            return SharedMemory(own, peers, layout, may_spin=may_spin)
    except BaseException:
        for segment in peers.values():
            segment.close()
        if own is not None:
            own.close()
        raise
    if own is not None:
        own.close()
    return None


def create_segment(size_bytes: int) -> Segment | None:
    """A segment of this rank, or None on a system that has none."""
    if not hasattr(os, "memfd_create"):
        return None
    try:
        return Segment.create(size_bytes)
    except OSError:
        return None  # No room for it: a limit on the size of files or of address space.


def _trade(
    rank: int,
    connections: Mapping[int, socket.socket],
    messages: Mapping[int, bytes],
    deadline: Deadline,
) -> dict[int, bytes]:
    """Send each peer a message and get one of the same size from each."""
    received = {peer: bytearray() for peer in connections}
    with selectors.DefaultSelector() as selector:
        for peer, sock in connections.items():
            # Nothing has been sent on it yet, so that there is room for these few bytes; and where
            # the connection has ended, reading says so.
            with contextlib.suppress(OSError):
                sock.send(messages[peer])
            selector.register(sock, selectors.EVENT_READ, peer)
        while selector.get_map():
            ready = selector.select(deadline.remaining())
            if not ready and deadline.expired():
                silent = sorted(key.data for key in selector.get_map().values())
                raise DeadlineExceeded(
                    f"rank {rank} waited {deadline.elapsed():.3g} s for rank "
                    f"{', '.join(map(str, silent))} to say whether it shares memory",
                    silent,
                )
            for key, _ in ready:
                wanted = len(messages[key.data]) - len(received[key.data])
                received[key.data] += _receive(connections[key.data], key.data, wanted)
                if len(received[key.data]) == len(messages[key.data]):
                    selector.unregister(key.fileobj)
    return {peer: bytes(data) for peer, data in received.items()}


def _receive(sock: socket.socket, peer: int, size_bytes: int) -> bytes:
    try:
        data = sock.recv(size_bytes)
    except (BlockingIOError, InterruptedError):
        return b""
    except OSError:
        data = b""
    if not data:
        raise PeerLost(peer, f"rank {peer} died: its connection ended while the mesh was made")
    return data
