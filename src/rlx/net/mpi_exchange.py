"""One exchange under way over MPI: its streams, polled together.

Every method is called under the transport's lock, and none blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlx.errors import RlxError
from rlx.net.mpi_outbox import Outbox
from rlx.net.mpi_streams import InStream, OutStream
from rlx.net.mpi_wire import encode_small
from rlx.net.transport import Incoming, Mismatch, Outgoing

IDLE_STREAMS = 64
"""More streams than this, or four a rank, are not kept for the next exchange: each of them has the
memory of a header."""


class Streams:
    """What the exchanges of one transport share: what MPI reads, and the streams into this rank."""

    def __init__(self, mpi: Any, comm: Any, chunk_bytes: int) -> None:
        self.mpi = mpi
        self.comm = comm
        self.chunk_bytes = chunk_bytes
        self.outbox = Outbox(mpi, comm)
        self._most_inlets = max(IDLE_STREAMS, 4 * comm.Get_size())
        self._inlets: dict[tuple[int, int], InStream] = {}

    def inlet(self, peer: int, tag: int) -> InStream:
        """The stream of what `peer` sends under `tag`."""
        found = self._inlets.get((peer, tag))
        if found is None:
            self._thin_out()
            found = self._inlets[peer, tag] = InStream(self.mpi, self.comm, peer, tag)
        return found

    def outlet(self, peer: int, tag: int) -> OutStream:
        """A stream of messages to `peer` under `tag`."""
        return OutStream(self.mpi, self.comm, self.outbox, peer, tag, self.chunk_bytes)

    def __len__(self) -> int:
        """How many streams are kept."""
        return len(self._inlets)

    def end(self) -> bool:
        """Listen no more; whether MPI has let go of all memory here."""
        for key, inlet in list(self._inlets.items()):
            if inlet.end():
                del self._inlets[key]
        return not self._inlets and self.outbox.is_empty()

    def _thin_out(self) -> None:
        """Let go of idle streams where there are many."""
        if len(self._inlets) >= self._most_inlets:
            for key, inlet in list(self._inlets.items()):
                if not inlet.is_busy() and not inlet.is_listening() and inlet.end():
                    del self._inlets[key]


class MpiExchange:
    """The sends and receives of one call, one stream for each peer, tag and direction."""

    def __init__(
        self, streams: Streams, sends: Sequence[Outgoing], receives: Sequence[Incoming]
    ) -> None:
        self.mismatches: list[Mismatch] = []
        self._streams = streams
        self._sends = sends
        self._receives = receives
        self._sending: list[OutStream] = []
        self._receiving: list[InStream] = []
        self._withdrawn: list[InStream] = []
        self._broken: set[int] = set()

    def peers(self) -> set[int]:
        """The ranks that it sends to or receives from."""
        return {one.peer for one in self._sends} | {one.peer for one in self._receives}

    def start(self) -> None:
        """Begin; to be called once, before the others."""
        for slot in self._receives:
            inlet = self._streams.inlet(slot.peer, slot.tag)
            if inlet.add(slot, self.mismatches):
                self._receiving.append(inlet)
        if self._sends:
            self._start_sends()

    def advance(self) -> bool:
        """Move on as far as can be now; whether all is done."""
        left = []
        for inlet in self._receiving:
            try:
                if not inlet.advance():
                    left.append(inlet)
            except RlxError:
                # What came was cut off or is no header: what comes after it cannot be told apart.
                self._broken.add(inlet.peer)
                raise
        self._receiving = left
        if self._sending:
            self._sending = [one for one in self._sending if not one.advance()]
        return not (self._sending or self._receiving)

    def awaited(self) -> list[tuple[int, str]]:
        """The peers that this exchange waits for, and for what."""
        waits = [
            (stream.peer, f"{stamp.decode(errors='replace')!r}")
            for stream in self._receiving
            for stamp in stream.awaited()
        ]
        return waits + [(one.peer, f"a receive under tag {one.tag}") for one in self._sending]

    def withdraw(self, kept: list[object]) -> set[int]:
        """Give up what is not done; the peers whose links a half-moved message has broken.

        What MPI still touches goes into `kept`, which outlives this exchange. The slots are the
        caller's again once `is_settled` says so.
        """
        for outlet in self._sending:
            if outlet.withdraw(kept):
                self._broken.add(outlet.peer)
        for inlet in self._receiving:
            if inlet.withdraw(kept):
                self._broken.add(inlet.peer)
                self._withdrawn.append(inlet)
        return self._broken

    def is_settled(self) -> bool:
        """After `withdraw`: whether MPI will write to no slot any more."""
        unsettled = [one for one in self._withdrawn if not one.is_settled()]
        return not unsettled

    def _start_sends(self) -> None:
        """Small messages go at once; those behind a larger one under their tag go after it."""
        outbox = self._streams.outbox
        outlets: dict[tuple[int, int], OutStream] = {}
        for message in self._sends:
            key = message.peer, message.tag
            if not outlets or key not in outlets:
                small = encode_small(message) if outbox.has_room() else None
                if small is not None:
                    outbox.post(small, message.peer, message.tag)
                    continue
                outlets[key] = self._streams.outlet(message.peer, message.tag)
                self._sending.append(outlets[key])
            outlets[key].add(message)
