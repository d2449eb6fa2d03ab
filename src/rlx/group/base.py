"""What every collective stands on: numbering, stamps, rounds, and one call at a time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from rlx.errors import (
    ClosedError,
    DisagreementError,
    RemoteError,
    TransportError,
    UsageError,
)
from rlx.group import arrays
from rlx.group.calls import Call, described, disagreement, shown
from rlx.net import (
    COLLECTIVE_TAG,
    Deadline,
    Incoming,
    MessageMismatch,
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
        self._deadline_s = deadline
        self._calls = 0
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

    @contextlib.contextmanager
    def _calling(
        self, name: str, details: Sequence[str], caller_name: str | None
    ) -> Iterator[Call]:
        """One collective call. All that can be refused locally was refused before it is
        numbered."""
        text = described(name, details, caller_name)
        if not self._busy.acquire(blocking=False):
            raise UsageError(
                f"rank {self.rank}: {text} was called while another thread of this rank is in a "
                f"collective of the same group; use one group for each thread"
            )
        try:
            self._check_open()
            self._calls += 1
            with self._breaking(Call(self._calls, text, Deadline(self._deadline_s))) as call:
                yield call
        finally:
            self._busy.release()

    @contextlib.contextmanager
    def _breaking(self, call: Call) -> Iterator[Call]:
        """A call that ends by any error but a disagreement leaves ranks at different places.

        An error of this rank alone (its memory, a limit, Ctrl-C) is told to the others, who would
        wait for it; one that came from the transport they know.
        """
        try:
            yield call
        except DisagreementError:
            raise
        except BaseException as error:
            self._broken = f"call {call.number} ({call.text}) failed: {error}"
            if not isinstance(error, TransportError | RemoteError | ClosedError):
                self._transport.abort(error)
            raise

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
        self._exchange(call, sends, receives)

    def _exchange(
        self, call: Call, sends: Sequence[Outgoing], receives: Sequence[Incoming]
    ) -> None:
        try:
            self._transport.exchange(sends, receives, deadline=call.deadline)
        except MessageMismatch as error:
            raise disagreement(call, self.rank, self.world_size, error.mismatches) from None

    def _check_open(self) -> None:
        if self._broken is not None:
            raise ClosedError(f"rank {self.rank} cannot use this group: {self._broken}")

    def _others(self) -> list[int]:
        return [rank for rank in range(self.world_size) if rank != self.rank]

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
