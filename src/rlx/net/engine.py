"""The engine: exchanges over links, and how they end.

Small messages take the express way where nothing else is under way (see `express`); all others, and
what the express way leaves, are slots and frames that a driver moves. It knows links and failures,
and nothing of how they came to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from rlx.errors import ClosedError
from rlx.net.crossovers import EXPRESS_BYTES
from rlx.net.deadline import Deadline
from rlx.net.driver import Driver
from rlx.net.endings import cut, late
from rlx.net.express import Expected, expected, put, take
from rlx.net.frames import pack_message_header
from rlx.net.linger import close_softly, nothing_to_say
from rlx.net.mailbox import Operation, Slot
from rlx.net.notices import Notice
from rlx.net.transport import Incoming, MessageMismatch, Outgoing, raise_cause

_LINGER_S: Final = 2.0
_LEAVE_S: Final = 5.0


class Engine(Driver):
    """Every exchange of one transport. All methods may be called from any thread."""

    # Exchanges

    def exchange(
        self, sends: Sequence[Outgoing], receives: Sequence[Incoming], deadline: Deadline
    ) -> None:
        """As `NetTransport.exchange`, whose arguments have been checked."""
        with self._mutex:
            operation = Operation(0)
            if self._may_take_express():
                sends, receives = self._by_express(operation, sends, receives)
            self._finish(operation, sends, receives, deadline)

    def trade(
        self,
        tag: int,
        stamp: bytes,
        content: bytes,
        slots: Sequence[tuple[int, memoryview]],
        deadline: Deadline,
    ) -> None:
        """As `NetTransport.trade`, whose arguments have been checked."""
        unsent = unfilled = slots
        with self._mutex:
            operation = Operation(0)
            if len(content) <= EXPRESS_BYTES and self._may_take_express():
                head = pack_message_header(tag, len(stamp), len(content)) + stamp
                unsent, unfilled = self._trade(operation, head, content, slots)
            self._finish(
                operation,
                [Outgoing(peer, tag, stamp, (content,)) for peer, _ in unsent],
                [Incoming(peer, tag, stamp, slot) for peer, slot in unfilled],
                deadline,
            )

    def _finish(
        self,
        operation: Operation,
        sends: Sequence[Outgoing],
        receives: Sequence[Incoming],
        deadline: Deadline,
    ) -> None:
        """Move what is left of an exchange; `operation` may wait for the rest of a frame."""
        if not (sends or receives or operation.pending):
            return
        operation.pending += len(sends) + len(receives)
        try:
            slots = [Slot(operation, incoming) for incoming in receives]
            self._refuse_if_unusable(operation, sends, receives)
            self._operations.add(operation)
            if self._failure is None:
                self._begin(operation, sends, slots)
                self._wait(operation, deadline)
            else:
                operation.fail(self._failure.to_error())
                self._begin(operation, (), slots)
                self._take_what_came(operation)
            if not operation.done:
                operation.error = late(self._rank, operation, self._links, self._own, deadline)
        finally:
            self._leave(operation)
        if operation.error is not None:
            raise_cause(operation.error, operation.mismatches)
        if operation.mismatches:
            raise MessageMismatch(operation.mismatches)

    # The express way

    def _may_take_express(self) -> bool:
        return self._failure is None and self._closed is None and not self._operations

    def _by_express(
        self, operation: Operation, sends: Sequence[Outgoing], receives: Sequence[Incoming]
    ) -> tuple[Sequence[Outgoing], Sequence[Incoming]]:
        """Move small messages; returns what is left, in order."""
        for place, message in enumerate(sends):
            if not put(self._links, message, operation):
                return sends[place:], receives
        wanted = expected(self._links, receives)
        if not wanted:
            return (), receives
        return (), [receives[place] for place in self._take(operation, wanted)]

    def _trade(
        self,
        operation: Operation,
        head: bytes,
        content: bytes,
        slots: Sequence[tuple[int, memoryview]],
    ) -> tuple[Sequence[tuple[int, memoryview]], Sequence[tuple[int, memoryview]]]:
        """Send a frame to each peer and take one that begins alike; returns what is left."""
        frame, size, links = head + content, len(content), self._links
        wanted = []
        for place, (peer, slot) in enumerate(slots):
            link = links.get(peer)
            if link is None or not link.is_quiet or not link.put_whole(frame, operation):
                return slots[place:], slots
            if not link.may_take or len(slot) != size:
                return slots[place + 1 :], slots
            wanted.append((link, head, slot))
        return (), [slots[place] for place in self._take(operation, wanted)]

    def _take(self, operation: Operation, wanted: Sequence[Expected]) -> list[int]:
        """Take what comes soon; the places in `wanted` of what does not."""
        operations = self._operations

        def go_on() -> bool:
            self._give_way()
            # Another thread may have begun an exchange meanwhile, or a failure have been told.
            return operation.error is None and len(operations) == 1

        operations.add(operation)
        try:
            return take(wanted, self._express_looks, go_on)
        finally:
            operations.discard(operation)
            if self._closed is not None:
                self._idle.notify_all()

    def _refuse_if_unusable(
        self, operation: Operation, sends: Sequence[Outgoing], receives: Sequence[Incoming]
    ) -> None:
        if self._closed is not None:
            raise ClosedError(self._closed)
        peers = operation.peers
        for message in sends:
            peers.add(message.peer)
        for incoming in receives:
            peers.add(incoming.peer)
        peers.discard(self._rank)
        for peer in peers:
            link = self._links[peer]
            if link.ending is not None and not link.left and not link.left_by_control:
                if self._failure is not None:
                    raise self._failure.to_error()
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

    def _leave(self, operation: Operation) -> None:
        """Take back what was not done, and hand the driving to another thread that waits."""
        self._operations.discard(operation)
        if operation.pending:
            self._own.withdraw(operation)
            for peer in operation.peers:
                link = self._links[peer]
                if link.withdraw(operation):
                    self._break(link, partial(cut, self._rank, peer))
                elif link.ending is None:
                    self._watch.follow(link)
        if not self._operations:
            self._idle.notify_all()
        elif self._driver is not None:
            if self._driver.done:  # This thread has just filled the sleeping driver's last slot.
                self._watch.wake()
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
            self._watch.wake()

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
            self._watch.wake()
            self._idle.wait_for(lambda: not self._operations, _LEAVE_S)
            return True

    def close(self, *, in_order: bool) -> None:
        """Close every connection, after `stop`. In order: what was sent arrives, and a goodbye."""
        self._watch.close()
        open_sockets = []
        for link in self._links.values():
            if link.ending is None or link.left:
                open_sockets.append((link.socket, link.say_goodbye if in_order else nothing_to_say))
        close_softly(open_sockets, _LINGER_S if in_order else 0.0)
        if self._shared is not None:
            self._shared.close()
