"""The memory form: ranks are threads of one process. The reference form, with nothing between.

A small message is copied when it is sent. A larger one is handed over by reference: its receiver
copies it once, straight into the slot, and its sender waits for that.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.errors import (
    ClosedError,
    DeadlineExceeded,
    PeerLost,
    RemoteError,
    TransportError,
    UsageError,
)
from rlx.net.crossovers import COPY_BYTES
from rlx.net.deadline import Deadline
from rlx.net.frames import byte_view
from rlx.net.memory_heap import MemoryHeap
from rlx.net.memory_world import Message, World
from rlx.net.notices import Notice
from rlx.net.transport import (
    Incoming,
    MessageMismatch,
    Mismatch,
    NetTransport,
    Outgoing,
    raise_cause,
)

_LONGEST_COPY_S = 60.0
"""How long a sender lets a receiver finish a copy. One cut short by Ctrl-C may never say so."""


class MemoryTransport(NetTransport):
    """One rank of a mesh of threads; `MemoryTransport.mesh(n)` makes all of them."""

    def __init__(self, rank: int, world: World) -> None:
        self._rank = rank
        self._world = world
        self._closed = False
        others = frozenset(peer for peer in range(world.size) if peer != rank)
        self._heap = MemoryHeap(others, world.lent)

    @classmethod
    def mesh(cls, world_size: int) -> list[MemoryTransport]:
        """The transports of all ranks, in rank order, each for one thread or several."""
        if world_size < 1:
            raise UsageError(f"a world has at least one rank; got {world_size}")
        world = World(world_size)
        return [cls(rank, world) for rank in range(world_size)]

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world_size(self) -> int:
        return self._world.size

    @property
    def heap(self) -> MemoryHeap:
        """Any memory of these threads can be lent."""
        return self._heap

    def exchange(
        self,
        sends: Sequence[Outgoing],
        receives: Sequence[Incoming],
        *,
        deadline: Deadline,
    ) -> None:
        self._check_exchange(sends, receives)
        outgoing = [Message(self._rank, one) for one in sends]
        receives = self._at_once(sends, outgoing, receives)
        if not receives and not any(one.pieces for one in outgoing):
            return
        self._complete(_Exchange(self._rank, self._world, sends, outgoing, receives), deadline)

    def trade(
        self,
        tag: int,
        stamp: bytes,
        content: bytes,
        slots: Sequence[tuple[int, memoryview]],
        *,
        deadline: Deadline,
    ) -> None:
        """As `NetTransport.trade`: small messages that come as expected need no `_Exchange`."""
        world, rank = self._world, self._rank
        if len(content) > COPY_BYTES or not self._may_shorten(tag, stamp, slots):
            super().trade(tag, stamp, content, slots, deadline=deadline)
            return
        message = Message(rank, Outgoing(rank, tag, stamp, (content,)))
        with world.lock:
            self._check_open()
            for peer, _ in slots:
                world.post(peer, tag, message)
        done = 0
        while True:
            with world.lock:
                done = self._take_as_expected(tag, stamp, slots, done)
                if done == len(slots):
                    return
                if (slots[done][0], tag) in world.mail[rank] or not self._may_sleep(deadline):
                    break
                sleeper = world.lie_down(rank)
            world.sleep(rank, sleeper, deadline.remaining())
        # What came is not what was expected, or nothing will: the long way says so.
        receives = [Incoming(peer, tag, stamp, slot) for peer, slot in slots[done:]]
        self._complete(_Exchange(rank, world, (), (), receives), deadline)

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

    def _at_once(
        self, sends: Sequence[Outgoing], outgoing: Sequence[Message], receives: Sequence[Incoming]
    ) -> Sequence[Incoming]:
        """Post the messages, and fill the slots whose small messages are here; returns the rest."""
        world = self._world
        with world.lock:
            self._check_open()
            for one, message in zip(sends, outgoing, strict=True):
                world.post(one.peer, one.tag, message)
            mail = world.mail[self._rank]
            for place, slot in enumerate(receives):
                key = slot.peer, slot.tag
                queue = mail.get(key)
                if not queue or not queue[0].fits(slot.stamp, memoryview(slot.buffer).nbytes):
                    return receives[place:]
                message = queue.popleft()
                if not queue:
                    del mail[key]
                if message.size:
                    memoryview(slot.buffer).cast("B")[:] = message.content
        return ()

    def _take_as_expected(
        self, tag: int, stamp: bytes, slots: Sequence[tuple[int, memoryview]], done: int
    ) -> int:
        """Fill slots, from number `done` on, by small messages that are as expected; how many are
        done then. Called under the world's lock."""
        mail = self._world.mail[self._rank]
        while done < len(slots):
            peer, slot = slots[done]
            key = peer, tag
            queue = mail.get(key)
            if queue is None or not queue[0].fits(stamp, slot.nbytes):
                break
            content = queue[0].content
            if len(queue) == 1:
                del mail[key]
            else:
                queue.popleft()
            if content:
                slot[:] = content
            done += 1
        return done

    def _may_sleep(self, deadline: Deadline) -> bool:
        """Whether nothing is known that would end a wait. Called under the world's lock."""
        world = self._world
        ended = self._closed or world.failure is not None or True in world.left
        return not ended and not deadline.expired()

    def _complete(self, exchange: _Exchange, deadline: Deadline) -> None:
        """Wait until all of an exchange is done."""
        try:
            while not self._collect(exchange):
                self._wait(exchange, deadline)
        except (PeerLost, RemoteError) as error:
            raise_cause(error, exchange.mismatches)
        finally:
            exchange.end()
        if exchange.mismatches:
            raise MessageMismatch(exchange.mismatches)

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
        world = self._world
        with world.lock:
            if exchange.has_mail() or (not exchange.slots and exchange.is_consumed()):
                return
            self._check_open()
            if world.failure is not None:
                raise world.failure.to_error()
            if True in world.left:
                self._check_left(exchange)
            if deadline.expired():
                raise exchange.overdue(deadline)
            sleeper = world.lie_down(self._rank)
        world.sleep(self._rank, sleeper, deadline.remaining())

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
        world: World,
        sends: Sequence[Outgoing],
        outgoing: Sequence[Message],
        receives: Sequence[Incoming],
    ) -> None:
        self._rank = rank
        self._world = world
        self._by_reference = [
            (one.peer, one.tag, message)
            for one, message in zip(sends, outgoing, strict=True)
            if message.pieces
        ]
        self.slots = [(one, byte_view(one.buffer)) for one in receives]
        self.mismatches: list[Mismatch] = []

    def take(self) -> tuple[Incoming, memoryview, Message] | None:
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

    def fill(self, slot: Incoming, target: memoryview, message: Message) -> None:
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
                    self._world.wake(message.sender)

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
        end = Deadline(_LONGEST_COPY_S)
        with self._world.lock:
            for peer, tag, message in pending:
                queue = self._world.mail[peer].get((self._rank, tag))
                if queue and message in queue:
                    queue.remove(message)
                    if not queue:
                        del self._world.mail[peer][self._rank, tag]
        # The copy that a receiver has begun ends by itself: there is nothing in it to wait for.
        while not end.expired():
            with self._world.lock:
                if all(message.done or not message.taken for _, _, message in pending):
                    return
                sleeper = self._world.lie_down(self._rank)
            self._world.sleep(self._rank, sleeper, end.remaining())


def _mismatch(slot: Incoming, size: int, message: Message) -> Mismatch:
    return Mismatch(
        peer=slot.peer,
        tag=slot.tag,
        expected_stamp=slot.stamp,
        expected_bytes=size,
        stamp=message.stamp,
        bytes=message.size,
    )
