"""One exchange under way over MPI: its streams, polled together.

Every method is called under the transport's lock, and none blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlx.errors import RlxError
from rlx.net.mpi_outbox import Outbox
from rlx.net.mpi_streams import InStream, OutStream
from rlx.net.transport import Incoming, Mismatch, Outgoing


class MpiExchange:
    """The sends and receives of one call, one stream for each peer, tag and direction."""

    def __init__(
        self,
        mpi: Any,
        comm: Any,
        outbox: Outbox,
        sends: Sequence[Outgoing],
        receives: Sequence[Incoming],
        chunk_bytes: int,
    ) -> None:
        self.mismatches: list[Mismatch] = []
        outlets: dict[tuple[int, int], OutStream] = {}
        for message in sends:
            key = message.peer, message.tag
            if key not in outlets:
                outlets[key] = OutStream(mpi, comm, outbox, *key, chunk_bytes)
            outlets[key].add(message)
        inlets: dict[tuple[int, int], InStream] = {}
        for slot in receives:
            key = slot.peer, slot.tag
            if key not in inlets:
                inlets[key] = InStream(mpi, comm, *key, self.mismatches)
            inlets[key].add(slot)
        self._sending = list(outlets.values())
        self._receiving = list(inlets.values())
        self._withdrawn: list[InStream] = []
        self._broken: set[int] = set()

    def advance(self) -> bool:
        """Move on as far as can be now; whether all is done."""
        self._sending = [one for one in self._sending if not one.advance()]
        self._receiving = self._still_receiving()
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

    def _still_receiving(self) -> list[InStream]:
        left = []
        for inlet in self._receiving:
            try:
                if not inlet.advance():
                    left.append(inlet)
            except RlxError:
                # What came was cut off or is no header: what comes after it cannot be told apart.
                self._broken.add(inlet.peer)
                raise
        return left
