"""The engine: exchanges over links, moved by the threads that wait for them.

There is no reader thread and no queue between threads: whoever waits reads. One thread at a time
drives the selector; the others sleep until the driver has filled their slots, or take over when it
leaves. All state is under one lock, which the driver lets go only while it sleeps in the selector.
It knows links and failures, and nothing of how they came to be.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from rlx.errors import (
    ClosedError,
    DeadlineExceeded,
    PeerLost,
    RlxError,
    TransportError,
    WireError,
)
from rlx.net.deadline import Deadline
from rlx.net.frames import Limits
from rlx.net.linger import close_softly, nothing_to_say
from rlx.net.links import Ending, Link
from rlx.net.mailbox import Mailbox, Operation, Room, Slot, describe
from rlx.net.notices import Notice
from rlx.net.transport import Incoming, MessageMismatch, Outgoing

# How long a data connection that ended without a goodbye waits for the control connection to say
# why: a notice of the peer's failure may still be on its way.
VERDICT_S: Final = 2.0
_LINGER_S: Final = 2.0
_LEAVE_S: Final = 5.0
_WRITE: Final = selectors.EVENT_WRITE


class Engine:
    """Every exchange of one transport. All methods may be called from any thread."""

    def __init__(self, rank: int, connections: Mapping[int, socket.socket], limits: Limits) -> None:
        self._rank = rank
        room = Room(limits.inbox_bytes)
        self._links = {peer: Link(peer, sock, room, limits) for peer, sock in connections.items()}
        self._own = Mailbox(room)
        self._mutex = threading.Lock()
        self._idle = threading.Condition(self._mutex)
        self._operations: set[Operation] = set()
        self._driver: Operation | None = None
        self._asleep = False
        self._doubted: set[Link] = set()
        self._failure: Notice | None = None
        self._closed: str | None = None
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, None)
        for link in self._links.values():
            self._follow(link)

    # Exchanges

    def exchange(
        self, sends: Sequence[Outgoing], receives: Sequence[Incoming], deadline: Deadline
    ) -> None:
        """As `NetTransport.exchange`, whose arguments have been checked."""
        operation = Operation(len(sends) + len(receives))
        slots = [Slot(operation, incoming) for incoming in receives]
        with self._mutex:
            self._refuse_if_unusable(operation, sends, receives)
            self._operations.add(operation)
            try:
                self._begin(operation, sends, slots)
                self._wait(operation, deadline)
                if not operation.done:
                    operation.error = self._late(operation, deadline)
            finally:
                self._leave(operation)
        if operation.error is not None:
            raise operation.error
        if operation.mismatches:
            raise MessageMismatch(operation.mismatches)

    def _refuse_if_unusable(
        self, operation: Operation, sends: Sequence[Outgoing], receives: Sequence[Incoming]
    ) -> None:
        if self._closed is not None:
            raise ClosedError(self._closed)
        if self._failure is not None:
            raise self._failure.to_error()
        peers = operation.peers
        for message in sends:
            peers.add(message.peer)
        for incoming in receives:
            peers.add(incoming.peer)
        peers.discard(self._rank)
        for peer in peers:
            link = self._links[peer]
            if link.ending is not None and not link.left and not link.left_by_control:
                raise link.ending("it is used again")

    def _begin(
        self, operation: Operation, sends: Sequence[Outgoing], slots: Sequence[Slot]
    ) -> None:
        for slot in slots:
            if slot.incoming.peer == self._rank:
                self._own.post(slot)
            else:
                link = self._links[slot.incoming.peer]
                self._move(link, partial(link.post, slot))
        for message in sends:
            if message.peer == self._rank:
                self._own.send_to_self(operation, message)
            else:
                link = self._links[message.peer]
                self._move(link, partial(link.send, operation, message))
        for peer in operation.peers:
            link = self._links[peer]
            if link.ending is not None:
                link.end(link.ending)

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
        while True:
            timeout = self._time_to_sleep(deadline)
            self._asleep = True
            self._mutex.release()
            try:
                ready = self._selector.select(timeout)
            finally:
                self._mutex.acquire()
                self._asleep = False
            for key, mask in ready:
                link = key.data
                if link is None:
                    self._drain_wakes()
                    continue
                if mask & _WRITE:
                    self._move(link, link.flush)
                if mask & selectors.EVENT_READ:
                    self._move(link, link.read)
            self._judge_doubts()
            if operation.done or deadline.expired():
                return

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
            self._break(link, partial(_repeat, error))
            return
        if link.ending is None:
            if link.left or (link.doubt_since is not None and link.left_by_control):
                self._break(link, partial(_left, link.peer))
                return
            if link.doubt_since is not None:
                self._doubted.add(link)
            if link.interest != link.registered:
                self._follow(link)

    def _follow(self, link: Link) -> None:
        """Have the selector watch what the link can use now."""
        interest = link.interest
        if interest == link.registered:
            return
        if link.registered == 0:
            self._selector.register(link.socket, interest, link)
        elif interest == 0:
            self._selector.unregister(link.socket)
        else:
            self._selector.modify(link.socket, interest, link)
        link.registered = interest
        self._wake()

    def _break(self, link: Link, ending: Ending) -> None:
        """No wait on this link can be served any more."""
        if link.ending is None:
            self._doubted.discard(link)
            link.end(ending)
            self._follow(link)
            # A peer that left may still be reading what was sent to it; others hear of the end.
            if not link.left:
                link.socket.close()

    def _judge_doubts(self) -> None:
        for link in self._doubted:
            since = link.doubt_since
            if since is not None and time.monotonic() >= since + VERDICT_S:
                self._fail(_died(link.peer))

    def _late(self, operation: Operation, deadline: Deadline) -> DeadlineExceeded:
        missing = {
            peer: waits
            for peer in sorted(operation.peers)
            if (waits := self._links[peer].waits_of(operation))
        }
        if own := self._own_waits(operation):
            missing[self._rank] = own
        text = "; ".join(
            f"rank {peer}: {waits[0]}" + (f" and {len(waits) - 1} more" if waits[1:] else "")
            for peer, waits in missing.items()
        )
        return DeadlineExceeded(
            f"rank {self._rank} waited {deadline.elapsed():.3g} s in vain for {text}",
            missing,
        )

    def _own_waits(self, operation: Operation) -> list[str]:
        waits = [
            f"a message ({slot.describe()}) was expected of it"
            for slot in self._own.slots()
            if slot.operation is operation
        ]
        waits += [
            f"a message ({describe(tag, parcel.stamp)}) that no slot takes"
            for tag, parcel in self._own.held_back()
            if parcel.operation is operation
        ]
        return waits

    def _leave(self, operation: Operation) -> None:
        """Take back what was not done, and hand the driving to another thread that waits."""
        self._operations.discard(operation)
        if operation.pending:
            self._own.withdraw(operation)
            for peer in operation.peers:
                link = self._links[peer]
                if link.withdraw(operation):
                    self._break(link, partial(_cut, self._rank, peer))
                elif link.ending is None:
                    self._follow(link)
        if not self._operations:
            self._idle.notify_all()
        elif self._driver is not None:
            if self._driver.done:  # This thread has just filled the sleeping driver's last slot.
                self._wake()
        else:
            for other in self._operations:
                if other.event is not None and not other.done:
                    other.event.set()
                    break

    # Failures and endings, told by other threads

    def fail(self, notice: Notice) -> None:
        """A rank failed: every present and later wait raises that. The first one told stays."""
        with self._mutex:
            self._fail(notice)

    def _fail(self, notice: Notice) -> None:
        if self._failure is not None or self._closed is not None:
            return
        self._failure = notice
        for operation in self._operations:
            operation.fail(notice.to_error())
        self._wake()

    @property
    def failure(self) -> Notice | None:
        """The first failure that this rank was told of."""
        return self._failure

    def peer_left(self, peer: int) -> None:
        """The peer's goodbye came on its control connection; its data is read first."""
        with self._mutex:
            if self._closed is not None:
                return
            link = self._links[peer]
            link.left_by_control = True
            self._move(link, lambda: None)
            self._wake()

    def stop(self, reason: str) -> bool:
        """Every present and later wait raises ClosedError; False if that had been said before.

        Returns when no thread waits any more, within a few seconds.
        """
        with self._mutex:
            if self._closed is not None:
                return False
            self._closed = reason
            for operation in self._operations:
                operation.fail(ClosedError(reason))
            self._wake()
            self._idle.wait_for(lambda: not self._operations, _LEAVE_S)
            return True

    def close(self, *, in_order: bool) -> None:
        """Close every connection, after `stop`. In order: what was sent arrives, and a goodbye."""
        self._selector.close()
        open_sockets = []
        for link in self._links.values():
            if link.ending is None or link.left:
                open_sockets.append((link.socket, link.say_goodbye if in_order else nothing_to_say))
        close_softly(open_sockets, _LINGER_S if in_order else 0.0)
        self._wake_reader.close()
        self._wake_writer.close()

    def _wake(self) -> None:
        if self._asleep:
            try:
                self._wake_writer.send(b"\0")
            except BlockingIOError:
                return  # It is full of wakes already.

    def _drain_wakes(self) -> None:
        try:
            self._wake_reader.recv(4096)
        except BlockingIOError:
            return


def _died(peer: int) -> Notice:
    return Notice.of_loss(peer, f"rank {peer} died: its connection ended without a goodbye")


def _left(peer: int, what: str) -> PeerLost:
    return PeerLost(peer, f"rank {peer} left (closed its transport) while {what}")


def _cut(rank: int, peer: int, what: str) -> TransportError:
    return TransportError(
        f"rank {rank}: the link to rank {peer} is broken, because an exchange on it ended in the "
        f"middle of a message; {what}"
    )


def _repeat(error: WireError, what: str) -> RlxError:
    return type(error)(f"{error} (while {what}); the link is closed")
