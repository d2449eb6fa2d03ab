"""One exchange under way over MPI. Every method is called under the transport's lock; none
blocks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlx.errors import Malformed
from rlx.net.mpi_wire import MAX_HEADER_BYTES, Header, cut_by, decode, encode
from rlx.net.transport import Incoming, Mismatch, Outgoing

if TYPE_CHECKING:
    from mpi4py import MPI

_CANCEL_S = 1.0


class MpiExchange:
    """The requests of one exchange, and the slots whose headers have not come yet."""

    def __init__(self, mpi: Any, comm: MPI.Intracomm, receives: Sequence[Incoming]) -> None:
        self._mpi = mpi
        self._comm = comm
        self._slots: dict[tuple[int, int], deque[Incoming]] = {}
        for slot in receives:
            self._slots.setdefault((slot.peer, slot.tag), deque()).append(slot)
        self._sending: list[tuple[int, int, Any]] = []  # peer, tag, request
        self._receiving: list[tuple[Incoming, Any]] = []
        self._buffers: list[object] = []  # what MPI reads and writes stays alive with its request
        self._status = mpi.Status()
        self.mismatches: list[Mismatch] = []

    def start(self, sends: Sequence[Outgoing], chunk_bytes: int) -> None:
        """Hand every message to MPI."""
        for message in sends:
            header, pieces = encode(message, chunk_bytes)
            self._buffers += [header, *pieces]
            for part in (header, *pieces):
                request = self._comm.Isend([part, self._mpi.BYTE], message.peer, message.tag)
                self._sending.append((message.peer, message.tag, request))

    def advance(self) -> bool:
        """Move on as far as can be now; whether all is done."""
        for key in list(self._slots):
            while key in self._slots and self._take_header(key):
                pass
        self._receiving = [one for one in self._receiving if not one[1].Test()]
        self._sending = [one for one in self._sending if not one[2].Test()]
        return not (self._slots or self._receiving or self._sending)

    def awaited(self) -> list[tuple[int, str]]:
        """The peers that this exchange waits for, and for what."""
        slots = [slot for queue in self._slots.values() for slot in queue]
        slots += [slot for slot, _ in self._receiving]
        waits = [(slot.peer, f"{slot.stamp.decode(errors='replace')!r}") for slot in slots]
        return waits + [(peer, f"a receive under tag {tag}") for peer, tag, _ in self._sending]

    def withdraw(self, kept: list[Any]) -> set[int]:
        """Give up what is not done; the peers whose links a half-moved message has broken.

        A receive is cancelled, so that MPI writes to no buffer of the caller. What MPI still reads
        is put into `kept`, which outlives it.
        """
        broken = {peer for peer, _, _ in self._sending} | {slot.peer for slot, _ in self._receiving}
        for _, request in self._receiving:
            request.Cancel()
        end = time.monotonic() + _CANCEL_S
        waiting = self._receiving
        while waiting and time.monotonic() < end:
            waiting = [one for one in waiting if not one[1].Test()]
        if self._sending or waiting:
            kept += [self._buffers, self._sending, waiting]
        return broken

    def _take_header(self, key: tuple[int, int]) -> bool:
        """Receive the header for the oldest slot under `key`, if it has come."""
        peer, tag = key
        message = self._comm.Improbe(peer, tag, self._status)
        if message is None:
            return False
        size = self._status.Get_count(self._mpi.BYTE)
        if size > MAX_HEADER_BYTES:
            raise Malformed(f"rank {peer} sent a header of {size} bytes")
        content = bytearray(size)
        message.Recv([content, self._mpi.BYTE])
        queue = self._slots[key]
        slot = queue.popleft()
        if not queue:
            del self._slots[key]
        self._accept(slot, decode(bytes(content)))
        return True

    def _accept(self, slot: Incoming, header: Header) -> None:
        """Fill the slot, or read the message off beside it where it is another one."""
        target = memoryview(slot.buffer).cast("B") if len(slot.buffer) else memoryview(b"")
        if header.stamp != slot.stamp or header.payload_bytes != len(target):
            self.mismatches.append(
                Mismatch(
                    peer=slot.peer,
                    tag=slot.tag,
                    expected_stamp=slot.stamp,
                    expected_bytes=len(target),
                    stamp=header.stamp,
                    bytes=header.payload_bytes,
                )
            )
            # One scratch for all pieces: nobody reads it.
            scratch = memoryview(bytearray(max(header.pieces, default=0)))
            parts = [scratch[:size] for size in header.pieces]
        elif not header.pieces:
            if target:
                target[:] = header.payload
            return
        else:
            parts = list(cut_by(target, header.pieces))
        for part in parts:
            request = self._comm.Irecv([part, self._mpi.BYTE], slot.peer, slot.tag)
            self._buffers.append(part)
            self._receiving.append((slot, request))
