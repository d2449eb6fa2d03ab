"""The memory form: ranks are threads of one process. The reference form, with nothing between.

A small message is copied when it is sent. A larger one is handed over by reference: its receiver
copies it once, straight into the slot, and its sender waits for that.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from rlx.errors import ClosedError, DeadlineExceeded, PeerLost, TransportError, UsageError
from rlx.net.deadline import Deadline
from rlx.net.notices import Notice
from rlx.net.transport import Incoming, MessageMismatch, Mismatch, NetTransport, Outgoing

COPY_BYTES = 1 << 16
"""Up to this size a copy costs less than the wake-up of a sender that waits."""

_LONGEST_WAIT_S = 3600.0
"""One wait of a condition: its clock overflows at deadlines that a user may well give (1e10 s)."""

_LONGEST_COPY_S = 60.0
"""How long a sender lets a receiver finish a copy. One cut short by Ctrl-C may never say so."""


class _Message:
    """A message on its way. `taken` means that its receiver reads it at this moment."""

    __slots__ = ("done", "pieces", "sender", "size", "stamp", "taken")

    def __init__(self, sender: int, message: Outgoing) -> None:
        pieces = [memoryview(buffer).cast("B") for buffer in message.buffers if len(buffer)]
        self.sender = sender
        self.stamp = message.stamp
        self.size = sum(len(piece) for piece in pieces)
        self.pieces: list[memoryview] = pieces
        self.taken = False
        self.done = self.size <= COPY_BYTES
        if self.done and pieces:
            self.pieces = [memoryview(b"".join(pieces))]

    def copy_to(self, target: memoryview) -> None:
        place = 0
        for piece in self.pieces:
            target[place : place + len(piece)] = piece
            place += len(piece)


class _World:
    """What the ranks of one mesh share: the first failure, who has left, and a mailbox for each."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.lock = threading.Lock()
        self.changed = [threading.Condition(self.lock) for _ in range(size)]
        self.mail: list[dict[tuple[int, int], deque[_Message]]] = [{} for _ in range(size)]
        self.failure: Notice | None = None
        self.left = [False] * size

    def wake_all(self) -> None:
        for condition in self.changed:
            condition.notify_all()

    def fail(self, notice: Notice) -> None:
        """Record why the job ends; the first reason stays."""
        with self.lock:
            if self.failure is None:
                self.failure = notice
            self.wake_all()


class MemoryTransport(NetTransport):
    """One rank of a mesh of threads; `MemoryTransport.mesh(n)` makes all of them."""

    def __init__(self, rank: int, world: _World) -> None:
        self._rank = rank
        self._world = world
        self._closed = False

    @classmethod
    def mesh(cls, world_size: int) -> list[MemoryTransport]:
        """The transports of all ranks, in rank order, each for one thread or several."""
        if world_size < 1:
            raise UsageError(f"a world has at least one rank; got {world_size}")
        world = _World(world_size)
        return [cls(rank, world) for rank in range(world_size)]

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world_size(self) -> int:
        return self._world.size

    def exchange(
        self,
        sends: Sequence[Outgoing],
        receives: Sequence[Incoming],
        *,
        deadline: Deadline,
    ) -> None:
        self._check_exchange(sends, receives)
        exchange = _Exchange(self._rank, self._world, sends, receives)
        try:
            self._post(exchange)
            while not self._collect(exchange):
                self._wait(exchange, deadline)
        finally:
            exchange.end()
        if exchange.mismatches:
            raise MessageMismatch(exchange.mismatches)

    def abort(self, reason: str | BaseException) -> None:
        if not self._closed:
            self._world.fail(Notice.of_reason(self._rank, reason))
            self._leave()

    def vanish(self) -> None:
        """The memory form's way to die: as if this rank had been killed without a word."""
        if not self._closed:
            self._world.fail(Notice.of_loss(self._rank, f"rank {self._rank} died"))
            self._leave()

    def close(self) -> None:
        if not self._closed:
            self._leave()

    def _leave(self) -> None:
        with self._world.lock:
            self._closed = True
            self._world.left[self._rank] = True
            self._world.wake_all()

    def _post(self, exchange: _Exchange) -> None:
        with self._world.lock:
            self._check_open()
            for peer, tag, message in exchange.outgoing:
                queue = self._world.mail[peer].setdefault((self._rank, tag), deque())
                queue.append(message)
                self._world.changed[peer].notify_all()

    def _collect(self, exchange: _Exchange) -> bool:
        """Take what has come for the open slots; whether the exchange is done."""
        while True:
            with self._world.lock:
                found = exchange.take()
                if found is None:
                    return not exchange.slots and exchange.is_consumed()
            exchange.fill(*found)

    def _wait(self, exchange: _Exchange, deadline: Deadline) -> None:
        """Sleep until something changes; raise where nothing can, or time is up."""
        condition = self._world.changed[self._rank]
        with condition:
            if exchange.has_mail() or (not exchange.slots and exchange.is_consumed()):
                return
            self._check_open()
            if self._world.failure is not None:
                raise self._world.failure.to_error()
            self._check_left(exchange)
            if deadline.expired():
                raise exchange.overdue(deadline)
            condition.wait(min(deadline.remaining(), _LONGEST_WAIT_S))

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"rank {self._rank}: this transport is closed")

    def _check_left(self, exchange: _Exchange) -> None:
        for peer, what in exchange.awaited():
            if self._world.left[peer]:
                raise PeerLost(
                    peer,
                    f"rank {peer} left (closed its transport) while {what} was expected of it "
                    f"by rank {self._rank}",
                )


class _Exchange:
    """One exchange under way. Everything but `fill` is called under the world's lock."""

    def __init__(
        self,
        rank: int,
        world: _World,
        sends: Sequence[Outgoing],
        receives: Sequence[Incoming],
    ) -> None:
        self._rank = rank
        self._world = world
        self.outgoing = [(one.peer, one.tag, _Message(rank, one)) for one in sends]
        self._by_reference = [
            (peer, tag, message) for peer, tag, message in self.outgoing if not message.done
        ]
        self.slots = [(one, _bytes_of(one.buffer)) for one in receives]
        self.mismatches: list[Mismatch] = []

    def take(self) -> tuple[Incoming, memoryview, _Message] | None:
        """The next message that has come for one of the slots, with its slot."""
        mail = self._world.mail[self._rank]
        blocked: set[tuple[int, int]] = set()
        for place, (slot, target) in enumerate(self.slots):
            key = (slot.peer, slot.tag)
            queue = mail.get(key)
            if key in blocked or not queue:
                blocked.add(key)
                continue
            message = queue.popleft()
            if not queue:
                del mail[key]
            message.taken = True
            del self.slots[place]
            return slot, target, message
        return None

    def has_mail(self) -> bool:
        """Whether `take` would find something."""
        mail = self._world.mail[self._rank]
        return any((slot.peer, slot.tag) in mail for slot, _ in self.slots)

    def fill(self, slot: Incoming, target: memoryview, message: _Message) -> None:
        """Copy a message into its slot, or note that it is not the one expected."""
        try:
            if message.stamp == slot.stamp and message.size == len(target):
                message.copy_to(target)
            else:
                self.mismatches.append(_mismatch(slot, len(target), message))
        finally:
            # Even a copy that Ctrl-C cut short reads no more: its sender need not wait for it.
            if not message.done:
                with self._world.lock:
                    message.done = True
                    self._world.changed[message.sender].notify_all()

    def is_consumed(self) -> bool:
        """Whether every message handed over by reference has been read."""
        return all(message.done for _, _, message in self._by_reference)

    def awaited(self) -> list[tuple[int, str]]:
        """The peers that this exchange waits for, and for what."""
        waits = [(slot.peer, f"{slot.stamp.decode(errors='replace')!r}") for slot, _ in self.slots]
        return waits + [
            (peer, f"a receive under tag {tag}")
            for peer, tag, message in self._by_reference
            if not message.done
        ]

    def overdue(self, deadline: Deadline) -> TransportError:
        """The error of an exchange whose time is up."""
        awaited = self.awaited()
        peers = sorted({peer for peer, _ in awaited})
        wanted = "; ".join(dict.fromkeys(f"{what} of rank {peer}" for peer, what in awaited))
        return DeadlineExceeded(
            f"rank {self._rank} waited {deadline.elapsed():.3g} s for "
            f"rank {', '.join(str(peer) for peer in peers)}: {wanted}",
            peers,
        )

    def end(self) -> None:
        """Take back what is not done, and let go of the caller's buffers.

        An error that is kept holds this exchange, by its traceback; it must not hold the buffers,
        since a `bytearray` with a view on it cannot be resized.
        """
        self._withdraw()
        self.slots.clear()
        for _, _, message in self._by_reference:
            message.pieces = []

    def _withdraw(self) -> None:
        """Take back what nobody has begun to read, and wait for what somebody reads just now."""
        pending = [one for one in self._by_reference if not one[2].done]
        if not pending:
            return
        condition = self._world.changed[self._rank]
        with condition:
            for peer, tag, message in pending:
                queue = self._world.mail[peer].get((self._rank, tag))
                if queue and message in queue:
                    queue.remove(message)
                    if not queue:
                        del self._world.mail[peer][self._rank, tag]
            # The copy that a receiver has begun ends by itself: there is nothing in it to wait for.
            condition.wait_for(
                lambda: all(message.done or not message.taken for _, _, message in pending),
                _LONGEST_COPY_S,
            )


def _bytes_of(buffer: bytearray | memoryview) -> memoryview:
    # An empty view may have a shape that cannot be cast.
    return memoryview(buffer).cast("B") if len(buffer) else memoryview(b"")


def _mismatch(slot: Incoming, size: int, message: _Message) -> Mismatch:
    return Mismatch(
        peer=slot.peer,
        tag=slot.tag,
        expected_stamp=slot.stamp,
        expected_bytes=size,
        stamp=message.stamp,
        bytes=message.size,
    )
