"""What every collective stands on: numbering, stamps, rounds, and one call at a time."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import TracebackType

import numpy as np

from rlx.errors import (
    ClosedError,
    DisagreementError,
    RemoteError,
    TransportError,
    UsageError,
)
from rlx.group import arrays
from rlx.group.calls import Call, described, shown
from rlx.group.moves import Moves
from rlx.net import (
    COLLECTIVE_TAG,
    Deadline,
    Incoming,
    NetTransport,
    Outgoing,
)


class GroupBase:
    """The rank's side of a group: it makes calls and moves their rounds.

    Every round has one message, perhaps empty, between each pair of ranks, so that each rank hears
    every other one's stamp, whatever the call's own pattern is.
    """

    def __init__(self, transport: NetTransport, *, deadline: float) -> None:
        Deadline(deadline)  # refuses what is no number of seconds
        self._transport = transport
        self._moves = Moves(transport)
        self._deadline_s = deadline
        self._calls = 0
        self._others_here = [peer for peer in range(transport.world_size) if peer != transport.rank]
        self._busy = threading.Lock()
        self._broken: str | None = None

    @property
    def rank(self) -> int:
        """This process's number, 0 <= rank < world_size."""
        return self._transport.rank

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self._transport.world_size

    @property
    def transport(self) -> NetTransport:
        """The transport that moves the bytes."""
        return self._transport

    def _calling(self, name: str, details: Sequence[str], caller_name: str | None) -> _Calling:
        """One collective call. All that can be refused locally was refused before it is
        numbered."""
        return _Calling(self, described(name, details, caller_name))

    def _calling_ready(self, text: str) -> _Calling:
        """The same, for a call whose text is known."""
        return _Calling(self, text)

    def _enter(self, text: str) -> Call:
        if not self._busy.acquire(blocking=False):
            raise UsageError(
                f"rank {self.rank}: {text} was called while another thread of this rank is in a "
                f"collective of the same group; use one group for each thread"
            )
        try:
            self._check_open()
        except BaseException:
            self._busy.release()
            raise
        self._calls += 1
        return Call(self._calls, text, Deadline(self._deadline_s))

    def _leave(self, call: Call, error: BaseException | None) -> None:
        """A call that ends by any error but a disagreement leaves ranks at different places.

        An error of this rank alone (its memory, a limit, Ctrl-C) is told to the others, who would
        wait for it; one that came from the transport they know.
        """
        try:
            if error is not None and not isinstance(error, DisagreementError):
                self._broken = f"call {call.number} ({call.text}) failed: {error}"
                if not isinstance(error, TransportError | RemoteError | ClosedError):
                    self._transport.abort(error)
        finally:
            self._busy.release()

    def _round(
        self,
        call: Call,
        contents: Mapping[int, bytes | memoryview],
        slots: Mapping[int, memoryview],
        number: int = 1,
    ) -> None:
        """One message between each pair of ranks; those without content are empty."""
        stamp = call.stamp(number)
        sends = [
            Outgoing(peer, COLLECTIVE_TAG, stamp, (contents[peer],) if peer in contents else ())
            for peer in self._others()
        ]
        receives = [
            Incoming(peer, COLLECTIVE_TAG, stamp, slots.get(peer, memoryview(bytearray())))
            for peer in self._others()
        ]
        self._moves.exchange(call, sends, receives)

    def _check_open(self) -> None:
        if self._broken is not None:
            raise ClosedError(f"rank {self.rank} cannot use this group: {self._broken}")

    def _others(self) -> list[int]:
        return self._others_here

    def _peer(self, what: str, rank: int) -> int:
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < self.world_size:
            raise UsageError(f"{what}: there is no rank {rank!r} in a world of {self.world_size}")
        return rank

    def _root(self, what: str, root: int) -> str:
        return f"root={self._peer(what, root)}"

    def _part(self, what: str, array: np.ndarray) -> int:
        if array.ndim < 1 or array.shape[0] % self.world_size:
            raise UsageError(
                f"{what}: axis 0 is a multiple of the world size, {self.world_size}; "
                f"got {shown(array)}"
            )
        return int(array.shape[0] // self.world_size)

    def _result(self, what: str, like: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        return (
            np.empty(like.shape, like.dtype) if out is None else arrays.checked_out(what, out, like)
        )


class _Calling:
    """`with` this, a call is under way. A class, since a generator would cost microseconds."""

    __slots__ = ("_call", "_group", "_text")

    def __init__(self, group: GroupBase, text: str) -> None:
        self._group = group
        self._text = text

    def __enter__(self) -> Call:
        self._call = self._group._enter(self._text)
        return self._call

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._group._leave(self._call, error)
