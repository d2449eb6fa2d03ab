"""The two ends of what one rank sends another under one tag, as MPI requests that are polled.

Every method is called under the transport's lock, and none blocks.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from rlx.errors import Malformed, TransportError
from rlx.net.mpi_outbox import Outbox
from rlx.net.mpi_wire import CUT, MAX_HEADER_BYTES, WHOLE, Header, cut_by, decode, encode
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
        parcel = encode(message, self._chunk_bytes)
        for copy in parcel.copies:
            self._outbox.post(copy, self.peer, self.tag)
        if parcel.pieces:
            self._pieces, self._requests = parcel.pieces, []
            for piece in parcel.pieces:
                self._requests.append(self._comm.Isend([piece, self._byte], self.peer, self.tag))


class InStream:
    """The slots of one exchange for `peer` under `tag`, filled in their order."""

    def __init__(
        self, mpi: Any, comm: Any, peer: int, tag: int, mismatches: list[Mismatch]
    ) -> None:
        self.peer = peer
        self.tag = tag
        self._comm = comm
        self._byte = mpi.BYTE
        self._error = mpi.Exception
        self._status = mpi.Status()
        self._mismatches = mismatches
        self._slots: deque[Incoming] = deque()
        self._header = bytearray()
        self._header_request: Any = None
        self._parts: deque[memoryview] = deque()  # of a message to drop: one receive at a time
        self._requests: list[Any] | None = None  # the receives of the message under way
        self._tail = bytearray(WHOLE)  # a message without a tail is whole when it is there
        self._buffers: list[object] = []

    def add(self, slot: Incoming) -> None:
        """Fill `slot` after those before it."""
        self._slots.append(slot)

    def awaited(self) -> list[bytes]:
        """The stamps of the slots that are not filled."""
        return [slot.stamp for slot in self._slots]

    def advance(self) -> bool:
        """Take what has come; whether every slot is filled or was found wrong."""
        while self._slots:
            if self._requests is not None:
                if not self._take_pieces():
                    return False
            elif not self._take_header():
                return False
        return True

    def withdraw(self, kept: list[object]) -> bool:
        """Cancel the receives; whether a message had begun to come.

        Then `kept` holds what MPI may still write to, and `is_settled` says when no slot is among
        it.
        """
        if self._header_request is None and self._requests is None:
            return False
        kept.append(self)
        for request in self._requests or ():
            request.Cancel()
        return True

    def is_settled(self) -> bool:
        """After `withdraw`: whether MPI will write to no slot any more."""
        try:
            self._requests = [one for one in self._requests or () if not one.Test()]
        except self._error:
            # A receive that failed has ended; those behind it are looked at next time.
            return False
        return not self._requests

    def _take_header(self) -> bool:
        if self._header_request is None:
            message = self._comm.Improbe(self.peer, self.tag, self._status)
            if message is None:
                return False
            size = self._status.Get_count(self._byte)
            if size > MAX_HEADER_BYTES:
                raise Malformed(f"rank {self.peer} sent a header of {size} bytes")
            self._header = bytearray(size)
            # Not Recv: a header that exceeds MPI's eager limit comes when its sender moves on.
            self._header_request = message.Irecv([self._header, self._byte])
        if not self._header_request.Test():
            return False
        self._header_request = None
        self._accept(self._slots[0], decode(self._header))
        return True

    def _accept(self, slot: Incoming, header: Header) -> None:
        """Fill the slot, or read the message off beside it where it is another one."""
        target = memoryview(slot.buffer).cast("B") if len(slot.buffer) else memoryview(bytearray())
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
            self._drop(header)
        elif header.pieces:
            parts = list(cut_by(target, header.pieces))
            self._buffers += parts
            self._requests = [self._receive(part) for part in parts]
            if header.has_tail:
                self._requests.append(self._receive(self._tail))
        else:
            target[:] = header.payload
            self._slots.popleft()

    def _drop(self, header: Header) -> None:
        if not header.pieces:
            self._slots.popleft()
            return
        # One scratch for all pieces, one piece at a time: MPI forbids receives that overlap.
        scratch = memoryview(bytearray(max(header.pieces)))
        self._buffers.append(scratch)
        self._parts.extend(scratch[:size] for size in header.pieces)
        if header.has_tail:
            self._parts.append(memoryview(self._tail))
        self._requests = [self._receive(self._parts.popleft())]

    def _take_pieces(self) -> bool:
        """Whether the message under way has come whole."""
        self._requests = [one for one in self._requests or () if not one.Test()]
        while not self._requests and self._parts:
            request = self._receive(self._parts.popleft())
            if not request.Test():
                self._requests = [request]
        if self._requests:
            return False
        self._requests = None
        slot = self._slots.popleft()
        if self._tail != WHOLE:
            raise TransportError(
                f"rank {self.peer} gave up sending {slot.stamp.decode(errors='replace')!r} under "
                f"tag {self.tag} before it had all gone; what came of it cannot be trusted",
            )
        return True

    def _receive(self, part: memoryview | bytearray) -> Any:
        return self._comm.Irecv([part, self._byte], self.peer, self.tag)
