"""Where messages meet the slots that expect them: by peer and tag, oldest first.

One mailbox a peer. It knows slots, messages that came before their slot, and what they may take;
it knows no sockets. All of it is used under the engine's one lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

from rlx.errors import RlxError
from rlx.net.frames import byte_view
from rlx.net.transport import Incoming, Mismatch, Outgoing

# An unexpected message costs objects beside its content, so that a flood of empty ones is bounded.
PARCEL_OVERHEAD_BYTES = 256


def describe(tag: int, stamp: bytes) -> str:
    """A message as it is named in errors."""
    return f"tag {tag}, {stamp.decode('utf-8', 'replace')!r}"


class Operation:
    """One exchange under way: how much of it is not done, what was wrong, and why it failed."""

    __slots__ = ("error", "event", "mismatches", "peers", "pending")

    def __init__(self, pending: int) -> None:
        self.pending = pending
        self.peers: set[int] = set()
        self.mismatches: list[Mismatch] = []
        self.error: RlxError | None = None
        self.event: threading.Event | None = None

    @property
    def done(self) -> bool:
        """Whether its caller may return: everything moved, or it failed."""
        return self.pending == 0 or self.error is not None

    def settle(self) -> None:
        """One message of it is done."""
        self.pending -= 1
        if self.pending == 0 and self.event is not None:
            self.event.set()

    def fail(self, error: RlxError) -> None:
        """It cannot be done. The first reason stays."""
        if self.error is None:
            self.error = error
            if self.event is not None:
                self.event.set()


class Slot:
    """One message that an operation expects."""

    __slots__ = ("incoming", "operation", "view")

    def __init__(self, operation: Operation, incoming: Incoming) -> None:
        self.operation = operation
        self.incoming = incoming
        self.view = byte_view(incoming.buffer)

    def agrees(self, stamp: bytes, size: int) -> bool:
        """Whether a message is the one that is expected."""
        return size == len(self.view) and stamp == self.incoming.stamp

    def settle_wrong(self, stamp: bytes, size: int) -> None:
        """Another message came in its place, and has been dropped."""
        expected = self.incoming
        self.operation.mismatches.append(
            Mismatch(
                peer=expected.peer,
                tag=expected.tag,
                expected_stamp=expected.stamp,
                expected_bytes=len(self.view),
                stamp=stamp,
                bytes=size,
            )
        )
        self.operation.settle()

    def describe(self) -> str:
        """The message in words."""
        return describe(self.incoming.tag, self.incoming.stamp)


class Parcel:
    """A message that no slot expected when it came.

    `content` is what has arrived of it; `complete` says whether that is all. A message to oneself
    that did not fit in the inbox has its sender's `pieces` instead, and its sender waits.
    """

    __slots__ = (
        "complete",
        "content",
        "operation",
        "pieces",
        "room_bytes",
        "size",
        "slot",
        "stamp",
    )

    def __init__(self, stamp: bytes, size: int) -> None:
        self.stamp = stamp
        self.size = size
        self.room_bytes = 0
        self.complete = False
        self.content: bytearray | None = None
        self.pieces: list[memoryview] = []
        self.operation: Operation | None = None
        self.slot: Slot | None = None

    def copy_to(self, slot: Slot) -> None:
        """Fill a slot that it fits, from a complete content or from the sender's pieces."""
        if self.content is not None:
            slot.view[:] = self.content
            return
        at = 0
        for piece in self.pieces:
            slot.view[at : at + len(piece)] = piece
            at += len(piece)


class Arrival:
    """A frame of which the header is read and the content is under way. No view: it is dropped."""

    __slots__ = ("at", "parcel", "size", "slot", "stamp", "view")

    def __init__(self, stamp: bytes, size: int) -> None:
        self.stamp = stamp
        self.size = size
        self.at = 0
        self.view: memoryview | None = None
        self.slot: Slot | None = None
        self.parcel: Parcel | None = None


class Room:
    """The bytes that unexpected messages may take, for all peers of a transport together."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def take(self, parcel: Parcel) -> bool:
        """Make room for a parcel and its content, or say that there is none."""
        needed = parcel.size + len(parcel.stamp) + PARCEL_OVERHEAD_BYTES
        if self.used_bytes + needed > self.limit_bytes:
            return False
        self.used_bytes += needed
        parcel.room_bytes = needed
        parcel.content = bytearray(parcel.size)
        return True

    def give_back(self, parcel: Parcel) -> None:
        """The parcel's content has been delivered."""
        self.used_bytes -= parcel.room_bytes
        parcel.room_bytes = 0


class Mailbox:
    """The slots and the early messages of one peer. A tag never has both."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._slots: dict[int, deque[Slot]] = {}
        self._parcels: dict[int, deque[Parcel]] = {}

    @property
    def is_in_use(self) -> bool:
        """Whether a slot or an early message waits in it."""
        return bool(self._slots or self._parcels)

    def post(self, slot: Slot) -> Parcel | None:
        """Expect a message. A parcel that is still arriving is returned, for the slot to adopt."""
        tag = slot.incoming.tag
        parcels = self._parcels.get(tag)
        if not parcels:
            self._slots.setdefault(tag, deque()).append(slot)
            return None
        parcel = parcels.popleft()
        if not parcels:
            del self._parcels[tag]
        self._room.give_back(parcel)
        if not parcel.complete:
            return parcel
        if slot.agrees(parcel.stamp, parcel.size):
            parcel.copy_to(slot)
            slot.operation.settle()
        else:
            slot.settle_wrong(parcel.stamp, parcel.size)
        if parcel.operation is not None:
            parcel.operation.settle()
        return None

    def take_slot(self, tag: int) -> Slot | None:
        """The oldest slot under a tag, taken out."""
        slots = self._slots.get(tag)
        if not slots:
            return None
        slot = slots.popleft()
        if not slots:
            del self._slots[tag]
        return slot

    def keep(self, tag: int, stamp: bytes, size: int) -> Parcel | None:
        """Room for an unexpected message, or None where the inbox is full."""
        parcel = Parcel(stamp, size)
        if not self._room.take(parcel):
            return None
        self._parcels.setdefault(tag, deque()).append(parcel)
        return parcel

    def send_to_self(self, operation: Operation, message: Outgoing) -> None:
        """A message from this rank to itself: copied to its slot, or kept until there is one."""
        pieces = [byte_view(buffer) for buffer in message.buffers]
        parcel = Parcel(message.stamp, sum(map(len, pieces)))
        parcel.pieces = pieces
        slot = self.take_slot(message.tag)
        if slot is not None:
            if slot.agrees(parcel.stamp, parcel.size):
                parcel.copy_to(slot)
                slot.operation.settle()
            else:
                slot.settle_wrong(parcel.stamp, parcel.size)
            operation.settle()
            return
        parcel.complete = True
        if self._room.take(parcel):
            parcel.content = bytearray().join(pieces)
            parcel.pieces = []
            operation.settle()
        else:
            parcel.operation = operation
        self._parcels.setdefault(message.tag, deque()).append(parcel)

    def slots(self) -> Iterator[Slot]:
        """Every slot that still waits for its message to begin."""
        for queue in self._slots.values():
            yield from queue

    def held_back(self) -> Iterator[tuple[int, Parcel]]:
        """Messages to oneself whose sender still waits, each with its tag."""
        for tag, queue in self._parcels.items():
            for parcel in queue:
                if parcel.operation is not None:
                    yield tag, parcel

    def withdraw(self, operation: Operation) -> None:
        """Forget the slots of an operation, and its messages to oneself that were never taken."""
        self._slots = {
            tag: kept
            for tag, queue in self._slots.items()
            if (kept := deque(slot for slot in queue if slot.operation is not operation))
        }
        self._parcels = {
            tag: left
            for tag, parcels in self._parcels.items()
            if (left := deque(parcel for parcel in parcels if parcel.operation is not operation))
        }
