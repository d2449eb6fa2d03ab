"""A link: the data connection to one peer. It reads frames into slots and writes frames out.

Frames go through the connection itself or, between ranks that share memory, through a ring; the
connection then wakes a rank that sleeps, and its end is the peer's.

A link never waits: every call moves what can be moved now. Who waits, and for how long, is the
engine's to say, which also holds the lock under which all of this runs.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Iterator
from typing import Final

from rlx.errors import RlxError
from rlx.net.crossovers import DIRECT_BYTES
from rlx.net.frames import GOODBYE, HEADER, Limits, pack_goodbye, unpack_header
from rlx.net.mailbox import Arrival, Mailbox, Operation, Parcel, Room, Slot
from rlx.net.outlet import Outlet
from rlx.net.ring import RingStream
from rlx.net.transport import Outgoing

_BUFFER_BYTES: Final = 64 * 1024
_READ: Final = selectors.EVENT_READ
_WRITE: Final = selectors.EVENT_WRITE

Ending = Callable[[str], RlxError]
"""Makes the error of a wait that a link can no longer serve, from what was waited for."""


class Link:
    """The data connection to `peer`. The engine reads `ending`, `left`, `doubt_since` after calls.

    ending        why no wait on this link can be served any more, or None
    left          the peer has said goodbye, and everything before it has been read
    doubt_since   when the connection ended without a goodbye (monotonic seconds), or None
    """

    def __init__(
        self,
        peer: int,
        sock: socket.socket,
        room: Room,
        limits: Limits,
        ring: RingStream | None = None,
    ) -> None:
        self.peer = peer
        self.socket = sock
        self._ring = ring
        self._stream: socket.socket | RingStream = sock if ring is None else ring
        self._is_cut = False
        self.mailbox = Mailbox(room)
        self.ending: Ending | None = None
        self.left = False
        self.left_by_control = False
        self.doubt_since: float | None = None
        self.registered = 0
        self._limits = limits
        self._outlet = Outlet(self._stream, limits)
        self._arrival: Arrival | None = None
        self._paused_tag: int | None = None
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._start = 0
        self._end = 0
        self._head_bytes = 0

    @property
    def interest(self) -> int:
        """The selector events that this link can use now."""
        if not self._is_usable:
            return 0
        if self._ring is not None:
            return 0 if self._is_cut else _READ
        reads = _READ if self._paused_tag is None else 0
        return reads if self._outlet.is_empty else reads | _WRITE

    @property
    def reads(self) -> bool:
        """Whether this link takes what comes; not where the inbox has no room for it."""
        return self._is_usable and self._paused_tag is None

    @property
    def _is_usable(self) -> bool:
        return self.ending is None and self.doubt_since is None

    # Rings

    def has_work(self) -> bool:
        """Whether the ring has something to read, or room for what waits to go out."""
        ring = self._ring
        if ring is None or not self._is_usable:
            return False
        if not self._outlet.is_empty and ring.has_room():
            return True
        return ring.has_news() and self._paused_tag is None

    # The express way

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is under way to the peer: a frame may go out at once."""
        return self.ending is None and self.doubt_since is None and self._outlet.is_empty

    @property
    def may_take(self) -> bool:
        """Whether the next frame is nobody's yet: none has begun, no slot and no message waits."""
        return self._arrival is None and self._paused_tag is None and not self.mailbox.is_in_use

    def put_whole(self, frame: bytes, operation: Operation) -> bool:
        """Send a frame; False where nothing of it goes out now. `operation` waits for the rest."""
        if self._ring is not None:
            return self._ring.put(frame)
        try:
            sent = self.socket.send(frame)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self._doubt_after_reading()
            return False
        if sent < len(frame):
            self._outlet.keep_rest(operation, frame, sent)
            operation.peers.add(self.peer)
        return True

    def take_expected(self, head: bytes, slot: memoryview) -> bool | None:
        """Fill `slot`, if the next frame is the one that begins with `head`, and all here.

        None where it is not here yet, False where another one is, or the stream has ended.
        """
        if self._ring is not None and self._start == self._end:
            return self._ring.take(head, slot)
        size = len(head) + len(slot)
        if self._end - self._start < size:
            if not self.reads:
                return False
            try:
                count = self._stream.recv_into(self._space())
            except (BlockingIOError, InterruptedError):
                return None
            except OSError:
                count = 0
            if count == 0:
                self._doubt()
                return False
            self._end += count
            if self._end - self._start < size:
                return None
        start = self._start
        middle = start + len(head)
        if self._buffer[start:middle] != head:
            return False
        slot[:] = self._buffer[middle : start + size]
        self._start = start + size
        return True

    def turn(self) -> None:
        """Move what the ring lets move."""
        self.flush()
        self.read()

    def hear_bells(self) -> None:
        """Take the bytes that woke this rank, and see whether the connection has ended."""
        try:
            self._is_cut = not self.socket.recv(_BUFFER_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._is_cut = True

    # Receiving

    def post(self, slot: Slot) -> None:
        """Expect a message; one that is here, or on its way into the inbox, is handed over."""
        parcel = self.mailbox.post(slot)
        if parcel is not None:
            self._adopt(parcel, slot)
        elif self._arrival is None and len(slot.view) > DIRECT_BYTES:
            self._head_bytes = HEADER.size + len(slot.incoming.stamp)
        if self._paused_tag == slot.incoming.tag:
            self._paused_tag = None
            self._parse()

    def read(self, *, to_the_end: bool = False) -> None:
        """Take what has come. A bad frame raises a WireError.

        Not always all of it: a read in vain costs an exception, and the selector tells of the rest.
        """
        if self._start != self._end and self.reads:
            self._parse()
        while self.reads:
            arrival = self._arrival
            direct = (
                arrival is not None
                and arrival.view is not None
                and self._start == self._end
                and arrival.size - arrival.at > DIRECT_BYTES
            )
            target = self._rest_of(arrival) if arrival is not None and direct else self._space()
            try:
                count = self._stream.recv_into(target)
            except (BlockingIOError, InterruptedError):
                if self._is_cut:
                    self._doubt()
                return
            except OSError:
                count = 0
            if count == 0:
                self._doubt()
                return
            if arrival is not None and direct:
                self._advance(arrival, count)
                more = self._arrival is not None and count == len(target)
            else:
                self._end += count
                self._parse()
                more = count == len(target)
            if not (more or to_the_end or self._is_cut):
                return

    def _rest_of(self, arrival: Arrival) -> memoryview:
        assert arrival.view is not None
        end = min(arrival.size, arrival.at + self._limits.call_bytes)
        return arrival.view[arrival.at : end]

    def _space(self) -> memoryview:
        if self._start == self._end:
            self._start = self._end = 0
            if self._head_bytes:
                # A large content is expected, which can then go straight into its slot.
                size, self._head_bytes = self._head_bytes, 0
                return self._buffer[: min(size, self._limits.call_bytes)]
        elif self._end > _BUFFER_BYTES // 2:
            kept = bytes(self._buffer[self._start : self._end])
            self._start, self._end = 0, len(kept)
            self._buffer[: len(kept)] = kept
        if self._end == 0 and self._limits.call_bytes >= _BUFFER_BYTES:
            return self._buffer
        return self._buffer[self._end : min(_BUFFER_BYTES, self._end + self._limits.call_bytes)]

    def _parse(self) -> None:
        """Turn what is in the buffer into frames, as far as it goes."""
        while True:
            arrival = self._arrival
            if arrival is None:
                if not self._begin_frame():
                    return
                continue
            count = min(self._end - self._start, arrival.size - arrival.at)
            if count == 0:
                return
            if arrival.view is not None:
                part = self._buffer[self._start : self._start + count]
                arrival.view[arrival.at : arrival.at + count] = part
            self._start += count
            self._advance(arrival, count)

    def _begin_frame(self) -> bool:
        """Read a header and a stamp, and choose where the content goes; False: not yet."""
        start = self._start
        available = self._end - start
        if available < HEADER.size or self.left:
            return False
        kind, tag, stamp_bytes, size = unpack_header(
            self._buffer, start, peer=self.peer, limit_bytes=self._limits.frame_bytes
        )
        if kind == GOODBYE:
            self.left = True
            return False
        content_start = start + HEADER.size + stamp_bytes
        if content_start > self._end:
            return False
        arrival = Arrival(bytes(self._buffer[start + HEADER.size : content_start]), size)
        if not self._route(tag, arrival):
            self._paused_tag = tag
            return False
        self._start = content_start
        self._arrival = arrival
        if size == 0:
            self._advance(arrival, 0)
        return True

    def _route(self, tag: int, arrival: Arrival) -> bool:
        slot = self.mailbox.take_slot(tag)
        if slot is not None:
            arrival.slot = slot
            arrival.view = slot.view if slot.agrees(arrival.stamp, arrival.size) else None
            return True
        parcel = self.mailbox.keep(tag, arrival.stamp, arrival.size)
        if parcel is None:
            return False
        arrival.parcel = parcel
        assert parcel.content is not None
        arrival.view = memoryview(parcel.content)
        return True

    def _adopt(self, parcel: Parcel, slot: Slot) -> None:
        """A slot takes over the message that was arriving in the inbox."""
        arrival = self._arrival
        assert arrival is not None
        assert arrival.parcel is parcel
        arrival.parcel = None
        arrival.slot = slot
        if slot.agrees(arrival.stamp, arrival.size):
            assert arrival.view is not None
            slot.view[: arrival.at] = arrival.view[: arrival.at]
            arrival.view = slot.view
        else:
            arrival.view = None

    def _advance(self, arrival: Arrival, count: int) -> None:
        arrival.at += count
        if arrival.at < arrival.size:
            return
        self._arrival = None
        slot = arrival.slot
        if arrival.parcel is not None:
            arrival.parcel.complete = True
        elif slot is not None and arrival.view is not None:
            slot.operation.settle()
        elif slot is not None:
            slot.settle_wrong(arrival.stamp, arrival.size)

    # Sending

    def send(self, operation: Operation, message: Outgoing) -> None:
        """Send a message, or as much of it as goes out now; the rest goes out by `flush`."""
        try:
            self._outlet.send(operation, message, now=self._is_usable)
        except OSError:
            self._doubt_after_reading()

    def flush(self) -> None:
        """Write what waits to go out, until the connection takes no more."""
        if self._is_usable:
            try:
                self._outlet.flush()
            except OSError:
                self._doubt_after_reading()

    # Endings

    def _doubt(self) -> None:
        if not self.left and self.doubt_since is None:
            self.doubt_since = time.monotonic()

    def _doubt_after_reading(self) -> None:
        """A refused write may have a goodbye waiting to be read, which then says why."""
        if self._paused_tag is None:
            self.read(to_the_end=True)
        self._doubt()

    def withdraw(self, operation: Operation) -> bool:
        """Forget an operation; True if that cut one of its frames in the middle."""
        self.mailbox.withdraw(operation)
        cut = self._outlet.withdraw(operation)
        arrival = self._arrival
        slot = arrival.slot if arrival is not None else None
        if arrival is not None and slot is not None and slot.operation is operation:
            # What is being dropped touches no buffer, and can go on being dropped.
            cut = cut or arrival.view is not None
            arrival.slot = arrival.view = None
        return cut

    def end(self, ending: Ending) -> None:
        """Serve no wait any more: fail those that there are, and close the connection."""
        self.ending = ending
        for operation, what in list(self._waits()):
            operation.fail(ending(what))
        self._outlet.clear()

    def _waits(self) -> Iterator[tuple[Operation, str]]:
        arrival = self._arrival
        if arrival is not None and arrival.slot is not None:
            what = arrival.slot.describe()
            yield arrival.slot.operation, f"the rest of a message ({what}) was expected of it"
        for slot in self.mailbox.slots():
            yield slot.operation, f"a message ({slot.describe()}) was expected of it"
        yield from self._outlet.waits()

    def waits_of(self, operation: Operation) -> list[str]:
        """What an operation still waits for on this link, in words."""
        return [what for owner, what in self._waits() if owner is operation]

    def say_goodbye(self) -> bool:
        """Send the last frame and close this direction; False where there is no room for it yet."""
        if self._ring is not None and not self._ring.has_room(HEADER.size):
            return False
        try:
            self._stream.send(pack_goodbye())
            self.socket.shutdown(socket.SHUT_WR)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True  # The connection is gone, and with it whom to tell.
        return True
