"""Faults in a transport, by a plan: late, in another order, slow, wrong, twice, never.

`FaultyTransport` stands between a group and any transport. What it does to which exchange is a
`FaultPlan`: a value that is drawn from a seed and a rank, and says in words what it holds.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from rlx.errors import UsageError
from rlx.net import Deadline, Incoming, MessageMismatch, Mismatch, NetTransport, Outgoing
from rlx.net.frames import content_bytes
from rlx.net.transport import raise_cause


class FaultKind(StrEnum):
    """What can happen to an exchange."""

    DELAY = "delay"
    REORDER = "reorder"
    THROTTLE = "throttle"
    WRONG_STAMP = "wrong stamp"
    WRONG_SIZE = "wrong size"
    DUPLICATE = "duplicate"
    DROP = "drop"
    ABORT = "abort"
    CLOSE = "close"


SURVIVABLE = (FaultKind.DELAY, FaultKind.REORDER, FaultKind.THROTTLE)
"""The kinds that a run must survive with the same bits; every other kind must be an error."""

_WORDS = {
    FaultKind.DELAY: "begins {amount:.3g} s late",
    FaultKind.REORDER: "moves its messages in another order, {amount:.3g} s apart",
    FaultKind.THROTTLE: "moves {amount:.3g} bytes a second",
    FaultKind.WRONG_STAMP: "has another stamp, as if this rank had called something else",
    FaultKind.WRONG_SIZE: "sends one byte too many to each peer",
    FaultKind.DUPLICATE: "sends every message twice",
    FaultKind.DROP: "sends nothing, and says that it has",
    FaultKind.ABORT: "aborts the transport instead",
    FaultKind.CLOSE: "closes the transport instead",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: what happens to the `count` exchanges of a rank from the `exchange`-th on.

    Exchanges count from 1. `amount` is in seconds for a delay and a reordering, and in bytes a
    second for a throttle.
    """

    kind: FaultKind
    exchange: int
    count: int = 1
    amount: float = 0.0

    def __post_init__(self) -> None:
        if self.exchange < 1 or self.count < 1:
            raise UsageError(f"a fault is of 1 exchange or more, from the 1st on; got {self!r}")
        if not 0 <= self.amount < float("inf"):
            raise UsageError(f"a fault's amount is a finite number >= 0; got {self.amount!r}")
        if self.kind is FaultKind.THROTTLE and self.amount == 0:
            raise UsageError("a throttle of 0 bytes a second is no throttle; use a drop")

    def covers(self, exchange: int) -> bool:
        """Whether it happens to that exchange."""
        return self.exchange <= exchange < self.exchange + self.count

    def __str__(self) -> str:
        which = f"exchange {self.exchange}"
        if self.count > 1:
            which = f"exchanges {self.exchange}..{self.exchange + self.count - 1}"
        return f"{which}: {_WORDS[self.kind].format(amount=self.amount)}"


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """What happens to the exchanges of one rank. Equal seeds and ranks give equal plans."""

    rank: int
    seed: int
    faults: tuple[Fault, ...] = ()

    @classmethod
    def draw(
        cls,
        seed: int,
        rank: int,
        *,
        kinds: Sequence[FaultKind] = SURVIVABLE,
        faults: int = 3,
        within: int = 100,
        longest_count: int = 10,
        longest_s: float = 0.02,
    ) -> FaultPlan:
        """Draw a plan of `faults` faults among the first `within` exchanges of the rank.

        A fault of a survivable kind lasts for up to `longest_count` exchanges; each delay is at
        most `longest_s`.
        """
        source = _random_source(seed, rank)
        drawn = []
        for _ in range(faults):
            kind = source.choice(list(kinds))
            amount = source.uniform(0, longest_s)
            if kind is FaultKind.THROTTLE:
                amount = 10 ** source.uniform(6, 8)
            count = source.randint(1, longest_count) if kind in SURVIVABLE else 1
            drawn.append(Fault(kind, source.randint(1, within), count, amount))
        return cls(rank, seed, tuple(sorted(drawn, key=lambda one: (one.exchange, one.kind))))

    def at(self, exchange: int) -> list[Fault]:
        """The faults that happen to that exchange, in the order in which they are applied."""
        order = list(FaultKind)
        found = [fault for fault in self.faults if fault.covers(exchange)]
        return sorted(found, key=lambda fault: order.index(fault.kind))

    def __str__(self) -> str:
        lines = [f"  {fault}" for fault in self.faults] or ["  nothing"]
        return "\n".join([f"rank {self.rank}, seed {self.seed}:", *lines])


@dataclass(frozen=True, slots=True)
class Happened:
    """A fault that was applied: to which exchange, and when (monotonic seconds)."""

    fault: Fault
    exchange: int
    at_s: float


class FaultyTransport(NetTransport):
    """A transport whose exchanges go wrong by a plan; all else is the inner one's.

    Every law but those that the plan breaks still holds. `happened` lists what was applied.
    """

    def __init__(self, inner: NetTransport, plan: FaultPlan) -> None:
        self._inner = inner
        self._plan = plan
        self._count = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.happened: list[Happened] = []

    @property
    def rank(self) -> int:
        return self._inner.rank

    @property
    def world_size(self) -> int:
        return self._inner.world_size

    @property
    def exchanges(self) -> int:
        """How many exchanges this rank has begun."""
        return self._count

    def exchange(
        self,
        sends: Sequence[Outgoing],
        receives: Sequence[Incoming],
        *,
        deadline: Deadline,
    ) -> None:
        with self._lock:
            self._count += 1
            number = self._count
            faults = self._plan.at(number)
            now = time.monotonic()
            self.happened += [Happened(fault, number, now) for fault in faults]
        move = self._inner.exchange
        for fault in faults:
            if fault.kind is FaultKind.REORDER:
                move = self._apart(fault, number)
            else:
                sends, receives = self._apply(fault, sends, receives, deadline)
        move(sends, receives, deadline=deadline)

    def abort(self, reason: str | BaseException) -> None:
        self._ended.set()
        self._inner.abort(reason)

    def close(self) -> None:
        self._ended.set()
        self._inner.close()

    def _apply(
        self,
        fault: Fault,
        sends: Sequence[Outgoing],
        receives: Sequence[Incoming],
        deadline: Deadline,
    ) -> tuple[Sequence[Outgoing], Sequence[Incoming]]:
        """What becomes of an exchange's messages."""
        match fault.kind:
            case FaultKind.DELAY:
                self._pause(fault.amount, deadline)
            case FaultKind.THROTTLE:
                size = sum(content_bytes(one.buffers) for one in sends)
                self._pause(size / fault.amount, deadline)
            case FaultKind.WRONG_STAMP:
                sends = [replace(one, stamp=_wrong(one.stamp)) for one in sends]
                receives = [replace(one, stamp=_wrong(one.stamp)) for one in receives]
            case FaultKind.WRONG_SIZE:
                sends = [self._longer(one) for one in sends]
            case FaultKind.DUPLICATE:
                sends = [one for one in sends for _ in range(2)]
            case FaultKind.DROP:
                sends = [one for one in sends if one.peer == self.rank]
            case FaultKind.ABORT:
                self.abort(f"a fault by plan: {fault}")
            case FaultKind.CLOSE:
                self.close()
        return sends, receives

    def _pause(self, seconds: float, deadline: Deadline) -> None:
        """Until the time is over, the deadline passed, or the transport closed."""
        self._ended.wait(min(seconds, deadline.remaining()))

    def _longer(self, message: Outgoing) -> Outgoing:
        if message.peer == self.rank:
            return message
        return replace(message, buffers=(*message.buffers, b"?"))

    def _apart(self, fault: Fault, number: int) -> Callable[..., None]:
        """An exchange whose peers and tags are moved each by a thread of its own, shuffled."""
        source = _random_source(self._plan.seed, self._plan.rank, number)

        def move(
            sends: Sequence[Outgoing], receives: Sequence[Incoming], *, deadline: Deadline
        ) -> None:
            parts = _by_peer_and_tag(sends, receives)
            source.shuffle(parts)
            ends = _Ends()
            threads = []
            for place, part in enumerate(parts):
                if place:
                    self._pause(source.uniform(0, fault.amount), deadline)
                thread = threading.Thread(
                    target=ends.of, args=(self._inner, *part, deadline), daemon=True
                )
                thread.start()
                threads.append(thread)
            for thread in threads:
                # Each of them ends by the same deadline, and until then the buffers are in use.
                thread.join()
            ends.raise_first()

        return move


class _Ends:
    """How the parts of one exchange ended."""

    def __init__(self) -> None:
        self._mismatches: list[Mismatch] = []
        self._errors: list[BaseException] = []

    def of(
        self,
        transport: NetTransport,
        sends: Sequence[Outgoing],
        receives: Sequence[Incoming],
        deadline: Deadline,
    ) -> None:
        """Run one part; keep its error for the thread that asked for the whole."""
        try:
            transport.exchange(sends, receives, deadline=deadline)
        except MessageMismatch as error:
            self._mismatches += error.mismatches
        except BaseException as error:  # a thread's outermost edge
            self._errors.append(error)

    def raise_first(self) -> None:
        """What the whole exchange raises, if anything."""
        if self._errors:
            raise_cause(self._errors[0], self._mismatches)
        if self._mismatches:
            raise MessageMismatch(self._mismatches)


def _random_source(*what: int) -> random.Random:
    # A string seeds by its SHA-512, which no release of Python may change.
    return random.Random(f"rlx.testing.faults {what}")


def _wrong(stamp: bytes) -> bytes:
    """Another stamp, of the same length where it has one."""
    return b"?" + stamp[1:]


def _by_peer_and_tag(
    sends: Sequence[Outgoing], receives: Sequence[Incoming]
) -> list[tuple[list[Outgoing], list[Incoming]]]:
    """The messages of one peer under one tag stay together, in their order."""
    parts: dict[tuple[int, int], tuple[list[Outgoing], list[Incoming]]] = {}
    for message in sends:
        parts.setdefault((message.peer, message.tag), ([], []))[0].append(message)
    for slot in receives:
        parts.setdefault((slot.peer, slot.tag), ([], []))[1].append(slot)
    return list(parts.values())
