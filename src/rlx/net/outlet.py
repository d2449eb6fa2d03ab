"""The sending half of a link: frames go out in order, as far as the stream takes them."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator
from typing import Final

from rlx.net.crossovers import JOIN_BYTES
from rlx.net.frames import (
    Limits,
    byte_view,
    content_bytes,
    drop_sent,
    pack_message_header,
    pieces_for_one_call,
)
from rlx.net.mailbox import Operation, describe
from rlx.net.ring import RingStream
from rlx.net.transport import Outgoing

_REST: Final = Outgoing(0, 0, b"the rest of a message")


class _Sending:
    """A frame that is not wholly out."""

    __slots__ = ("begun", "operation", "stamp", "tag", "views")

    def __init__(
        self, operation: Operation, message: Outgoing, views: deque[memoryview], begun: bool
    ) -> None:
        self.operation = operation
        self.tag = message.tag
        self.stamp = message.stamp
        self.views = views
        self.begun = begun


class Outlet:
    """What waits to go out on one stream. Never waits; an OSError of the stream is the caller's."""

    def __init__(self, stream: socket.socket | RingStream, limits: Limits) -> None:
        self._stream = stream
        self._call_bytes = limits.call_bytes
        self._join_bytes = JOIN_BYTES if limits.call_bytes >= 2 * JOIN_BYTES else -1
        self._queue: deque[_Sending] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether everything is out."""
        return not self._queue

    def send(self, operation: Operation, message: Outgoing, *, now: bool) -> None:
        """Send a message, or as much of it as goes out now; the rest goes out by `flush`.

        Where `now` is false it only waits to be withdrawn: the stream has ended.
        """
        buffers = message.buffers
        size = content_bytes(buffers)
        head = pack_message_header(message.tag, len(message.stamp), size) + message.stamp
        if size <= self._join_bytes and now and not self._queue:
            frame = b"".join((head, *buffers))
            self._send_at_once(operation, message, deque((memoryview(frame),)), len(frame))
            return
        views = deque((memoryview(head),))
        views.extend(view for view in map(byte_view, buffers) if len(view))
        if now and not self._queue:
            self._send_at_once(operation, message, views, len(head) + size)
            return
        self._queue.append(_Sending(operation, message, views, False))
        if now:
            self.flush()

    def _send_at_once(
        self, operation: Operation, message: Outgoing, views: deque[memoryview], size: int
    ) -> None:
        """Send a frame on a stream on which nothing waits; what does not go out now, waits."""
        sent = 0
        try:
            if len(views) == 1:
                sent = self._stream.send(views[0])
            else:
                sent = self._stream.sendmsg(pieces_for_one_call(views, self._call_bytes))
        except (BlockingIOError, InterruptedError):
            pass
        finally:
            if sent < size:
                drop_sent(views, sent)
                self._queue.append(_Sending(operation, message, views, sent > 0))
        if sent == size:
            operation.settle()
        elif sent:
            self.flush()  # until the stream refuses: only then does a ring tell of room

    def keep_rest(self, operation: Operation, frame: bytes, sent_bytes: int) -> None:
        """Send the rest of a frame by `flush`; the operation waits for it."""
        operation.pending += 1
        rest = deque((memoryview(frame)[sent_bytes:],))
        self._queue.append(_Sending(operation, _REST, rest, True))

    def flush(self) -> None:
        """Write what waits to go out, until the stream takes no more."""
        while self._queue:
            first = self._queue[0]
            try:
                pieces = pieces_for_one_call(first.views, self._call_bytes)
                sent = self._stream.sendmsg(pieces)
            except (BlockingIOError, InterruptedError):
                return
            first.begun = True
            drop_sent(first.views, sent)
            if not first.views:
                self._queue.popleft()
                first.operation.settle()

    def withdraw(self, operation: Operation) -> bool:
        """Forget an operation; True if that cut one of its frames in the middle."""
        cut = any(one.begun for one in self._queue if one.operation is operation)
        self._queue = deque(one for one in self._queue if one.operation is not operation)
        return cut

    def clear(self) -> None:
        """Forget everything."""
        self._queue.clear()

    def waits(self) -> Iterator[tuple[Operation, str]]:
        """Each operation that waits for something to go out, and for what."""
        for sending in self._queue:
            what = describe(sending.tag, sending.stamp)
            yield sending.operation, f"a message ({what}) was being sent to it"
