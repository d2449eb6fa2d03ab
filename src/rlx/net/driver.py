"""The driving: links moved until an operation is done, by the threads that wait for one.

There is no reader thread and no queue between threads: whoever waits reads. One thread at a time
drives the selector; the others sleep until the driver has filled their slots, or take over when it
leaves. All state is under one lock, which the driver lets go only while it gives way or sleeps.

Between ranks that share memory a message is there in a few microseconds, and to wake a sleeping
process costs tens. So a driver first looks at the rings for a while, and gives way to other ranks
of its core between two looks; then it asks its peers for a bell, and sleeps.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from rlx.errors import WireError
from rlx.net.deadline import Deadline
from rlx.net.endings import died, left, repeat
from rlx.net.frames import Limits
from rlx.net.links import Ending, Link
from rlx.net.mailbox import Mailbox, Operation, Room
from rlx.net.notices import Notice
from rlx.net.sharing import SharedMemory
from rlx.net.watch import Watch

# How long a data connection that ended without a goodbye waits for the control connection to say
# why: a notice of the peer's failure may still be on its way.
VERDICT_S: Final = 2.0
_WRITE: Final = selectors.EVENT_WRITE
# How often a driver looks at the rings in vain before it sleeps; a look takes about a microsecond.
_LOOKS: Final = 200
# The same for sockets, where a look is a call of the system, in an exchange of small messages.
_SOCKET_LOOKS: Final = 40


class Driver:
    """The links of one transport, its operations, and what has become of both."""

    def __init__(
        self,
        rank: int,
        connections: Mapping[int, socket.socket],
        limits: Limits,
        shared: SharedMemory | None = None,
    ) -> None:
        self._rank = rank
        room = Room(limits.inbox_bytes)
        self._shared = shared
        rings = {} if shared is None else shared.streams
        self._links = {
            peer: Link(peer, sock, room, limits, rings.get(peer))
            for peer, sock in connections.items()
        }
        for peer, ring in rings.items():
            ring.ring_on(connections[peer])
        self._ringing = [self._links[peer] for peer in rings]
        self._looks = _LOOKS if shared is not None and shared.may_spin else 0
        self._express_looks = self._looks or (_SOCKET_LOOKS if shared is None else 1)
        # With ranks of other hosts, each look is at their connections too.
        self._only_rings = len(rings) == len(connections)
        self._own = Mailbox(room)
        self._mutex = threading.Lock()
        self._idle = threading.Condition(self._mutex)
        self._operations: set[Operation] = set()
        self._driver: Operation | None = None
        self._doubted: set[Link] = set()
        self._failure: Notice | None = None
        self._closed: str | None = None
        self._watch = Watch()
        for link in self._links.values():
            self._watch.follow(link)

    def _wait(self, operation: Operation, deadline: Deadline) -> None:
        """Until it is done or the deadline has passed."""
        while not operation.done:
            if self._driver is not None:
                self._sleep(operation, deadline)
            else:
                self._driver = operation
                try:
                    self._drive(operation, deadline)
                finally:
                    self._driver = None
            if deadline.expired():
                return

    def _sleep(self, operation: Operation, deadline: Deadline) -> None:
        """Until the driver has done this operation, or leaves the driving to it."""
        if operation.event is None:
            operation.event = threading.Event()
        operation.event.clear()
        self._mutex.release()
        try:
            operation.event.wait(deadline.remaining())
        finally:
            self._mutex.acquire()

    def _drive(self, operation: Operation, deadline: Deadline) -> None:
        """Move what the selector says can move. Looks at least once, however late it is."""
        for peer in operation.peers:
            link = self._links[peer]
            self._move(link, link.read)
            if operation.done:
                return
        looks = self._looks
        while True:
            if self._ringing and self._turn_rings():
                looks = self._looks
            elif looks and self._only_rings:
                looks -= 1
                self._give_way()
            else:
                self._select(0.0 if looks else self._time_to_sleep(deadline))
                looks = max(0, looks - 1)
            if operation.done or deadline.expired():
                return

    def _turn_rings(self) -> bool:
        """Move what the rings let move; whether that was anything."""
        moved = False
        for link in self._ringing:
            if link.has_work():
                self._move(link, link.turn)
                moved = True
        return moved

    def _give_way(self) -> None:
        self._mutex.release()
        try:
            os.sched_yield()
        finally:
            self._mutex.acquire()

    def _select(self, timeout: float) -> None:
        """Sleep until something can move, and move it."""
        shared = self._shared
        if shared is not None and timeout:
            shared.fall_asleep()
            if self._turn_rings():
                shared.wake_up()
                return
        self._watch.fall_asleep()
        self._mutex.release()
        try:
            ready = self._watch.sleep(timeout)
        finally:
            self._mutex.acquire()
            self._watch.woke_up()
            if shared is not None:
                shared.wake_up()
        for link, mask in ready:
            if link is None:
                self._watch.drain_wakes()
            elif link in self._ringing:
                link.hear_bells()
                self._move(link, link.turn)
                self._watch.follow(link)
            else:
                if mask & _WRITE:
                    self._move(link, link.flush)
                if mask & selectors.EVENT_READ:
                    self._move(link, link.read)
        self._judge_doubts()

    def _time_to_sleep(self, deadline: Deadline) -> float:
        timeout = deadline.remaining()
        for link in self._doubted:
            if link.doubt_since is not None:
                timeout = min(timeout, link.doubt_since + VERDICT_S - time.monotonic())
        return max(0.0, timeout)

    def _move(self, link: Link, action: Callable[[], None]) -> None:
        """Let a link do something, and see to what came of it."""
        try:
            action()
        except WireError as error:
            self._break(link, partial(repeat, error))
            return
        if link.ending is None:
            if link.left or (link.doubt_since is not None and link.left_by_control):
                self._break(link, partial(left, link.peer))
                return
            if link.doubt_since is not None:
                self._doubted.add(link)
            if link.interest != link.registered:
                self._watch.follow(link)

    def _break(self, link: Link, ending: Ending) -> None:
        """No wait on this link can be served any more."""
        if link.ending is None:
            self._doubted.discard(link)
            link.end(ending)
            self._watch.follow(link)
            # A peer that left may still be reading what was sent to it; others hear of the end.
            if not link.left:
                link.socket.close()

    def _judge_doubts(self) -> None:
        for link in self._doubted:
            since = link.doubt_since
            if since is not None and time.monotonic() >= since + VERDICT_S:
                self._fail(died(link.peer))

    def _fail(self, notice: Notice) -> None:
        if self._failure is not None or self._closed is not None:
            return
        self._failure = notice
        for operation in list(self._operations):
            operation.fail(notice.to_error())
            self._take_what_came(operation)
        self._watch.wake()

    def _take_what_came(self, operation: Operation) -> None:
        """Read for an operation that has failed: what has come wrong for it is the cause."""
        for peer in operation.peers:
            link = self._links[peer]
            if link.reads:
                self._move(link, link.read)
