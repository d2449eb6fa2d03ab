"""How a group moves the rounds of its calls: over its transport, with the call's stamp on each."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.group.calls import Call, disagreement
from rlx.net import COLLECTIVE_TAG, Incoming, MessageMismatch, NetTransport, Outgoing


class Moves:
    """The rounds of one rank. A rank that calls something else is a `DisagreementError`."""

    def __init__(self, transport: NetTransport) -> None:
        self._transport = transport
        others = [peer for peer in range(transport.world_size) if peer != transport.rank]
        self._nothing = [(peer, memoryview(bytearray())) for peer in others]

    def exchange(self, call: Call, sends: Sequence[Outgoing], receives: Sequence[Incoming]) -> None:
        """Any messages, which have the call's stamp already."""
        try:
            self._transport.exchange(sends, receives, deadline=call.deadline)
        except MessageMismatch as error:
            raise self._disagreement(call, error) from None

    def trade(
        self,
        call: Call,
        round_number: int,
        content: bytes,
        slots: Sequence[tuple[int, memoryview]],
    ) -> None:
        """The same bytes to each peer of `slots`, and a message into each of these slots."""
        stamp = call.stamp(round_number)
        try:
            self._transport.trade(COLLECTIVE_TAG, stamp, content, slots, deadline=call.deadline)
        except MessageMismatch as error:
            raise self._disagreement(call, error) from None

    def meet(self, call: Call, round_number: int = 1) -> None:
        """Wait until every rank is at this round."""
        self.trade(call, round_number, b"", self._nothing)

    def _disagreement(self, call: Call, error: MessageMismatch) -> Exception:
        transport = self._transport
        return disagreement(call, transport.rank, transport.world_size, error.mismatches)
