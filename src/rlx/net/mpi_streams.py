"""The two ends of what one rank sends another under one tag, as MPI requests that are polled.

Every method is called under the transport's lock, and none blocks.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from rlx.errors import TransportError, UsageError
from rlx.net.crossovers import INLINE_BYTES
from rlx.net.mpi_outbox import Outbox
from rlx.net.mpi_wire import (
    CUT,
    MAX_CHUNK_BYTES,
    MAX_HEADER_BYTES,
    WHOLE,
    Header,
    cut_by,
    decode,
    decode_table,
    encode_large,
    encode_small,
    head,
    table_bytes,
)
from rlx.net.transport import Incoming, Mismatch, Outgoing


class OutStream:
    """The messages of one exchange to `peer` under `tag`, in their order.

    A large message holds up those behind it until MPI has read it: its tail comes first.
    """

    def __init__(
        self, mpi: Any, comm: Any, outbox: Outbox, peer: int, tag: int, chunk_bytes: int
    ) -> None:
        self.peer = peer
        self.tag = tag
        self._comm = comm
        self._byte = mpi.BYTE
        self._error = mpi.Exception
        self._outbox = outbox
        self._chunk_bytes = chunk_bytes
        self._queue: deque[Outgoing] = deque()
        self._pieces: list[memoryview] = []  # what MPI reads stays alive with its request
        self._requests: list[Any] | None = None

    def add(self, message: Outgoing) -> None:
        """Send `message` after those before it."""
        self._queue.append(message)

    def advance(self) -> bool:
        """Hand over what can go now; whether MPI reads none of the callers' memory any more."""
        while True:
            if self._requests is not None:
                self._requests = [one for one in self._requests if not one.Test()]
                if self._requests:
                    return False
                self._requests = None
                self._outbox.post(WHOLE, self.peer, self.tag)
            if not self._queue:
                return True
            if not self._outbox.has_room():
                return False
            self._start(self._queue.popleft())

    def withdraw(self, kept: list[object]) -> bool:
        """Send no more; whether a message was under way. Then `kept` holds what MPI still reads."""
        self._queue.clear()
        if self._requests is None:
            return False
        kept.append(self)
        try:
            # Behind the pieces: whoever takes them is told not to believe them.
            self._outbox.post(CUT, self.peer, self.tag)
        except self._error:
            # The library reports that the peer is dead: there is nobody to tell.
            return True
        return True

    def _start(self, message: Outgoing) -> None:
        small = encode_small(message)
        if small is not None:
            self._outbox.post(small, self.peer, self.tag)
            return
        parcel = encode_large(message, self._chunk_bytes)
        for copy in parcel.copies:
            self._outbox.post(copy, self.peer, self.tag)
        self._pieces, self._requests = parcel.pieces, []
        for piece in parcel.pieces:
            self._requests.append(self._comm.Isend((piece, self._byte), self.peer, self.tag))


class InStream:
    """What `peer` sends under `tag`, into slots that are filled in their order.

    It outlives an exchange, and so does its receive for the next header, posted at the first wait
    for one: a header that comes after its slot was withdrawn is there for the next slot.
    """

    def __init__(self, mpi: Any, comm: Any, peer: int, tag: int) -> None:
        self.peer = peer
        self.tag = tag
        self._comm = comm
        self._byte = mpi.BYTE
        self._error = mpi.Exception
        self._status = mpi.Status()
        self._slots: deque[Incoming] = deque()
        self._mismatches: list[Mismatch] = []
        self._header_bytes = bytearray(MAX_HEADER_BYTES)
        self._header_view = memoryview(self._header_bytes)
        self._listener = comm.Recv_init((self._header_bytes, self._byte), peer, tag)
        self._listens = False
        self._header: Header | None = None  # of the message under way
        self._table = bytearray()
        self._parts: deque[memoryview] = deque()  # of a message to drop: one receive at a time
        # The receives of the message under way, each beside the memory that it writes.
        self._requests: list[tuple[object, Any]] | None = None
        self._tail = bytearray(len(WHOLE))

    def add(self, slot: Incoming, mismatches: list[Mismatch]) -> bool:
        """Fill `slot` after those before it, or add to `mismatches` what came instead; whether it
        is the first. The list belongs to one exchange, and a stream to one at a time."""
        first = not self._slots
        if not first and self._mismatches is not mismatches:
            raise UsageError(
                f"two threads receive from rank {self.peer} under tag {self.tag} at the same time"
            )
        self._slots.append(slot)
        self._mismatches = mismatches
        if not self._listens and self._requests is None:
            self._listener.Start()
            self._listens = True
        return first

    def is_busy(self) -> bool:
        """Whether slots wait for what comes here."""
        return bool(self._slots)

    def is_listening(self) -> bool:
        """Whether MPI may write a header here."""
        return self._listens

    def awaited(self) -> list[bytes]:
        """The stamps of the slots that are not filled."""
        return [slot.stamp for slot in self._slots]

    def advance(self) -> bool:
        """Take what has come; whether every slot is filled or was found wrong."""
        slots = self._slots
        while slots:
            if self._requests is not None:
                if not self._take_pieces():
                    return False
            elif not self._listens:
                self._listener.Start()
                self._listens = True
            elif not self._listener.Test(self._status):
                return False
            else:
                self._listens = False
                self._take_header(self._status.Get_count(self._byte))
        return True

    def withdraw(self, kept: list[object]) -> bool:
        """Give up the slots and cancel their receives; whether a message had begun to come.

        Then `kept` holds what MPI may still write to, and `is_settled` says when no slot is among
        it.
        """
        self._slots.clear()
        if self._requests is None:
            return False
        kept.append(self)
        for _, request in self._requests:
            request.Cancel()
        return True

    def is_settled(self) -> bool:
        """After `withdraw`: whether MPI will write to no slot any more."""
        try:
            self._requests = [one for one in self._requests or () if not one[1].Test()]
        except self._error:
            # A receive that failed has ended; those behind it are looked at next time.
            return False
        return not self._requests

    def end(self) -> bool:
        """Listen no more; whether MPI has let go of everything here."""
        if self._requests:
            return False
        if self._listens:
            self._listener.Cancel()
            if not self._listener.Test():
                return False
            self._listens = False
        self._listener.Free()
        return True

    def _take_header(self, size: int) -> None:
        """Begin with the message whose header has come, in `size` bytes."""
        slot = self._slots[0]
        target = _view(slot)
        length = len(target)
        # The header that is expected is compared as a whole, which costs less than taking it apart.
        start = head(slot.stamp, length, length > INLINE_BYTES)
        if self._header_bytes.startswith(start):
            if length <= INLINE_BYTES and size == len(start) + length:
                target[:] = self._header_view[len(start) : size]
                self._slots.popleft()
                return
            if INLINE_BYTES < length <= MAX_CHUNK_BYTES and size == len(start):
                self._requests = [self._receive(target), self._receive(self._tail)]
                return
        header = decode(self._header_view[:size])
        if table_bytes(header):
            self._header, self._table = header, bytearray(table_bytes(header))
            self._requests = [self._receive(self._table)]
        else:
            self._accept(header, (header.payload_bytes,) if header.pieces else ())

    def _accept(self, header: Header, pieces: tuple[int, ...]) -> None:
        """Fill the slot, or read the message off beside it where it is another one."""
        slot = self._slots[0]
        target = _view(slot)
        if header.stamp != slot.stamp or header.payload_bytes != len(target):
            self._mismatches.append(
                Mismatch(
                    peer=slot.peer,
                    tag=slot.tag,
                    expected_stamp=slot.stamp,
                    expected_bytes=len(target),
                    stamp=header.stamp,
                    bytes=header.payload_bytes,
                )
            )
            self._drop(pieces)
        elif pieces:
            self._requests = [self._receive(part) for part in cut_by(target, pieces)]
            self._requests.append(self._receive(self._tail))
        else:
            target[:] = header.payload
            self._slots.popleft()

    def _drop(self, pieces: tuple[int, ...]) -> None:
        if not pieces:
            self._slots.popleft()
            return
        # One scratch for all pieces, one piece at a time: MPI forbids receives that overlap.
        scratch = memoryview(bytearray(max(pieces)))
        self._parts.extend(scratch[:size] for size in pieces)
        self._parts.append(memoryview(self._tail))
        self._requests = [self._receive(self._parts.popleft())]

    def _take_pieces(self) -> bool:
        """Whether the message under way has come whole, or its table has."""
        self._requests = [one for one in self._requests or () if not one[1].Test()]
        while not self._requests and self._parts:
            receive = self._receive(self._parts.popleft())
            if not receive[1].Test():
                self._requests = [receive]
        if self._requests:
            return False
        self._requests = None
        if self._header is not None:
            header, table, self._header = self._header, self._table, None
            self._accept(header, decode_table(header, table))
            return True
        slot = self._slots.popleft()
        if self._tail != WHOLE:
            raise TransportError(
                f"rank {self.peer} gave up sending {slot.stamp.decode(errors='replace')!r} under "
                f"tag {self.tag} before it had all gone; what came of it cannot be trusted",
            )
        return True

    def _receive(self, part: memoryview | bytearray) -> tuple[object, Any]:
        """A receive into `part`, which lives as long as its request."""
        return part, self._comm.Irecv((part, self._byte), self.peer, self.tag)


def _view(slot: Incoming) -> memoryview:
    view = memoryview(slot.buffer)
    return view.cast("B") if view.nbytes else view
