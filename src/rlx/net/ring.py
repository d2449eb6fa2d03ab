"""A stream of bytes through memory: one ring a direction, between two processes of one host.

It has the calls of a non-blocking socket that a link uses, so that frames go through it as they go
through TCP. Counters only grow; the bytes between `tail` and `head` are those under way.

Two processes order their stores by hand here. The content is stored before `head`, and x86 shows
stores to others in their order (Intel SDM 3A 8.2.2, AMD APM 2 7.2). A load may overtake an earlier
store, though: between saying "there is something" and asking "are you asleep?" stands a fence, and
so it does between saying "I am asleep" and the last look. Other machines need fences that Python
cannot give, and there the ranks use sockets (`MACHINES`).
"""

from __future__ import annotations

import platform
import socket
import threading
from collections.abc import Sequence
from typing import Final

from rlx.errors import Malformed

MACHINES: Final = ("x86_64", "AMD64")
RING_BYTES: Final = 1 << 20
LANE_BYTES: Final = 4096 + RING_BYTES
"""A ring and the page of its counters."""

# Counters of the two ends lie in cache lines of their own, as words of 8 bytes.
_HEAD: Final = 0
_TAIL: Final = 16
_STARVED: Final = 32
_CONTENT: Final = 4096
# A receiver starts to copy when this much is there, while its sender goes on.
_BLOCK_BYTES: Final = 128 * 1024
_MASK: Final = RING_BYTES - 1


def is_ordered_machine() -> bool:
    """Whether this machine keeps the order that rings rely on."""
    return platform.machine() in MACHINES


class RingStream:
    """Both directions between this rank and one peer. Used under the lock of an engine.

    `lane_in` is this rank's memory, which the peer writes to; `lane_out` is the peer's. `sleeps` is
    a word of the peer's: 0 while it looks by itself, 1 while it sleeps until a byte comes on the
    connection that `ring_on` was given.
    """

    def __init__(
        self, peer: int, lane_in: memoryview, lane_out: memoryview, sleeps: memoryview
    ) -> None:
        self._peer = peer
        self._bell: socket.socket | None = None
        self._in = lane_in.cast("Q")
        self._out = lane_out.cast("Q")
        self._content_in = lane_in[_CONTENT:]
        self._content_out = lane_out[_CONTENT:]
        self._sleeps = sleeps.cast("Q")
        self._read = 0
        self._written = 0
        self._barrier = threading.Lock()

    def ring_on(self, bell: socket.socket) -> None:
        """Wake the peer by this connection, which is non-blocking."""
        self._bell = bell

    def has_news(self) -> bool:
        """Whether there is something to read."""
        return self._in[_HEAD] != self._read

    def has_room(self, size_bytes: int = 1) -> bool:
        """Whether so many bytes can be written now, if the counters can be believed."""
        return self._written - self._out[_TAIL] <= RING_BYTES - size_bytes

    def room(self) -> int:
        """How many bytes can be written now."""
        under_way = self._written - self._out[_TAIL]
        if not 0 <= under_way <= RING_BYTES:
            raise Malformed(f"rank {self._peer} spoilt the counters of a shared ring")
        return RING_BYTES - under_way

    def recv_into(self, target: memoryview) -> int:
        """As `socket.recv_into`; never 0, since the end of a stream is told by the bell."""
        available = self._in[_HEAD] - self._read
        if available == 0:
            raise BlockingIOError
        if not 0 < available <= RING_BYTES:
            raise Malformed(f"rank {self._peer} spoilt the counters of a shared ring")
        count = min(available, len(target))
        place = self._read & _MASK
        content, first = self._content_in, RING_BYTES - place
        if count <= first:
            target[:count] = content[place : place + count]
        else:
            target[:first] = content[place:]
            target[first:count] = content[: count - first]
        self._read += count
        self._in[_TAIL] = self._read
        self.fence()
        if self._in[_STARVED]:
            self._in[_STARVED] = 0
            self._wake()
        return count

    def send(self, data: bytes | memoryview) -> int:
        """As `socket.send`."""
        room = self.room() or self._room_or_starve()
        if room == 0:
            raise BlockingIOError
        count = min(room, len(data))
        self._put(data if count == len(data) else data[:count])
        self.fence()
        if self._sleeps[0]:
            self._wake()
        return count

    def put(self, data: bytes) -> bool:
        """Write all of `data`, if there is room for it."""
        if not self.has_room(len(data)):
            return False
        self._put(data)
        self.fence()
        if self._sleeps[0]:
            self._wake()
        return True

    def take(self, head: bytes, rest: memoryview) -> bool | None:
        """Read a message that begins with `head` and fill `rest` with what follows.

        None where it is not all there yet; False where something else is, or where it lies in two
        parts: then nothing was read.
        """
        size = len(head) + len(rest)
        available = self._in[_HEAD] - self._read
        if available < size:
            return None if available == 0 else False
        place = self._read & _MASK
        middle, end = place + len(head), place + size
        if end > RING_BYTES or self._content_in[place:middle] != head:
            return False
        rest[:] = self._content_in[middle:end]
        self._read += size
        self._in[_TAIL] = self._read
        self.fence()
        if self._in[_STARVED]:
            self._in[_STARVED] = 0
            self._wake()
        return True

    def sendmsg(self, pieces: Sequence[memoryview]) -> int:
        """As `socket.sendmsg`."""
        sent = 0
        for piece in pieces:
            for start in range(0, len(piece), _BLOCK_BYTES):
                block = piece[start : start + _BLOCK_BYTES]
                try:
                    count = self.send(block)
                except BlockingIOError:
                    if sent:
                        return sent
                    raise
                sent += count
                if count < len(block):
                    return sent
        return sent

    def _put(self, data: bytes | memoryview) -> None:
        place, count = self._written & _MASK, len(data)
        content, first = self._content_out, RING_BYTES - place
        if count <= first:
            content[place : place + count] = data
        else:
            content[place:] = data[:first]
            content[: count - first] = data[first:]
        self._written += count
        self._out[_HEAD] = self._written

    def _room_or_starve(self) -> int:
        """Ask to be told when there is room; the peer may have made some just now."""
        self._out[_STARVED] = 1
        self.fence()
        return self.room()

    def fence(self) -> None:
        """A full memory barrier: taking a lock is an interlocked instruction."""
        self._barrier.acquire()
        self._barrier.release()

    def _wake(self) -> None:
        if self._sleeps[0] and self._bell is not None:
            self._sleeps[0] = 0
            try:
                self._bell.send(b"\0")
            except OSError:
                # It is full of bells, or the peer is gone, which is found, and judged, by reading.
                return

    def release(self) -> None:
        """Let go of the memory. The stream cannot be used afterwards."""
        for view in (self._in, self._out, self._content_in, self._content_out, self._sleeps):
            view.release()
