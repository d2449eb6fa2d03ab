"""One direction of a proxied connection: what it has read, what is due, and what befalls it.

It moves bytes when it is told that it can, never waits, and knows no selector and no thread.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from typing import Final

from rlx.testing.links import LinkFault, LinkFaultKind

_READ_BYTES: Final = 64 * 1024
_HELD_BYTES: Final = 256 * 1024
_WRITES_A_TURN: Final = 64
_THROTTLE_STEP_S: Final = 0.005
_RESET: Final = struct.pack("ii", 1, 0)


def reset(sock: socket.socket) -> None:
    """Close with an RST, which drops what was on its way."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    sock.close()


class Flow:
    """Bytes from `source` to `sink`, both of them non-blocking.

    source_ended   nothing more comes; the sink has been told once everything is out
    broken         the connection was reset from one of its ends
    """

    def __init__(self, source: socket.socket, sink: socket.socket, backward: bool) -> None:
        self.source = source
        self.sink = sink
        self.backward = backward
        self.source_ended = False
        self.broken = False
        self.swallows = False
        self.cut = False
        self._told_end = False
        self._held: deque[tuple[float, memoryview]] = deque()
        self._held_bytes = 0
        self._blocked = False
        self._behaviour: LinkFault | None = None
        self._left_bytes: int | None = None
        self._next_write_s = 0.0

    # What befalls it

    def begin(self, fault: LinkFault, piece: memoryview) -> memoryview:
        """Start a fault just before `piece`; what becomes of the piece."""
        match fault.kind:
            case LinkFaultKind.CORRUPT:
                return memoryview(bytes([piece[0] ^ 0x55]) + bytes(piece[1:]))
            case LinkFaultKind.DUPLICATE:
                return memoryview(bytes(piece[: int(fault.amount)]) + bytes(piece))
            case LinkFaultKind.VANISH:
                self.swallows = True
            case LinkFaultKind.HALF_OPEN:
                self.swallows = fault.backward == self.backward
            case LinkFaultKind.CUT:
                self.cut = True
            case LinkFaultKind.DELAY | LinkFaultKind.THROTTLE | LinkFaultKind.FRAGMENT:
                self._behaviour = fault
                self._left_bytes = fault.for_bytes
        return piece

    def heal(self) -> None:
        """End what can end: a delay, a throttle, a fragmentation."""
        self._behaviour = None

    # Moving

    @property
    def wants_to_read(self) -> bool:
        """Whether there is room for more."""
        return not (self.source_ended or self.broken) and self._held_bytes < _HELD_BYTES

    def wants_to_write(self, now_s: float) -> bool:
        """Whether a byte is due and the sink had no room for it."""
        return self._blocked and self.due_s() <= now_s

    def due_s(self) -> float:
        """When the next byte may go out; infinity where none is held."""
        if not self._held or self.broken or self.cut:
            return float("inf")
        return max(self._held[0][0], self._next_write_s)

    def read(self) -> memoryview:
        """What has come, or nothing."""
        try:
            data = self.source.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return memoryview(b"")
        except OSError:
            self.broken = True
            return memoryview(b"")
        self.source_ended = not data
        return memoryview(data)

    def hold(self, piece: memoryview, now_s: float) -> None:
        """Take over a piece that was read."""
        if self.swallows or self.cut or not len(piece):
            return
        delay_s = self._amount(LinkFaultKind.DELAY) or 0.0
        due_s = max(now_s + delay_s, self._held[-1][0] if self._held else 0.0)
        self._held.append((due_s, piece))
        self._held_bytes += len(piece)

    def write(self, now_s: float) -> None:
        """Send what is due, as far as there is room."""
        self._blocked = False
        for _ in range(_WRITES_A_TURN):
            if self.due_s() > now_s:
                break
            due_s, piece = self._held.popleft()
            sent = self._send(piece[: self._bytes_at_a_time()])
            if sent < len(piece):
                self._held.appendleft((due_s, piece[sent:]))
            if self._blocked or self.broken:
                break
            self._count(sent, now_s)
        self.tell_end()

    def tell_end(self) -> None:
        """Pass the source's end on, once everything before it is out."""
        over = self.source_ended and not self._held and not self.swallows
        if (over or self.cut) and not self._told_end and not self.broken:
            self._told_end = True
            try:
                self.sink.shutdown(socket.SHUT_WR)
            except OSError:
                self.broken = True

    def _send(self, piece: memoryview) -> int:
        try:
            sent = self.sink.send(piece)
        except (BlockingIOError, InterruptedError):
            self._blocked = True
            return 0
        except OSError:
            self.broken = True
            return 0
        self._held_bytes -= sent
        self._blocked = sent < len(piece)
        return sent

    def _amount(self, kind: LinkFaultKind) -> float | None:
        behaviour = self._behaviour
        return behaviour.amount if behaviour is not None and behaviour.kind is kind else None

    def _bytes_at_a_time(self) -> int:
        if piece_bytes := self._amount(LinkFaultKind.FRAGMENT):
            return int(piece_bytes)
        if bytes_per_s := self._amount(LinkFaultKind.THROTTLE):
            return max(1, int(bytes_per_s * _THROTTLE_STEP_S))
        return _READ_BYTES

    def _count(self, sent: int, now_s: float) -> None:
        if bytes_per_s := self._amount(LinkFaultKind.THROTTLE):
            self._next_write_s = now_s + sent / bytes_per_s
        if self._left_bytes is not None:
            self._left_bytes -= sent
            if self._left_bytes <= 0:
                self._behaviour = self._left_bytes = None
