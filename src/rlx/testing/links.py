"""What can happen to a link between two ranks: the faults that `FaultProxy` injects, as values."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from rlx.errors import UsageError


class LinkFaultKind(StrEnum):
    """What can happen to a link."""

    DELAY = "delay"
    THROTTLE = "throttle"
    FRAGMENT = "fragment"
    CUT = "cut"
    RESET = "reset"
    HALF_OPEN = "half-open"
    VANISH = "vanish"
    CORRUPT = "corrupt"
    DUPLICATE = "duplicate"


SURVIVABLE_LINK_FAULTS = (LinkFaultKind.DELAY, LinkFaultKind.THROTTLE, LinkFaultKind.FRAGMENT)
"""The kinds that a run must survive with the same bits."""

_WORDS = {
    LinkFaultKind.DELAY: "bytes come {amount:.3g} s late",
    LinkFaultKind.THROTTLE: "{amount:.3g} bytes a second pass",
    LinkFaultKind.FRAGMENT: "bytes come {amount:.0f} at a time",
    LinkFaultKind.CUT: "the connections end (FIN)",
    LinkFaultKind.RESET: "the connections are reset (RST)",
    LinkFaultKind.HALF_OPEN: "nothing passes {way} any more, and nobody is told",
    LinkFaultKind.VANISH: "nothing passes any more, and nobody is told",
    LinkFaultKind.CORRUPT: "one byte is changed",
    LinkFaultKind.DUPLICATE: "up to {amount:.0f} bytes pass twice",
}


@dataclass(frozen=True, slots=True)
class LinkFault:
    """One fault of a link, from the moment when `after_bytes` more bytes have passed it.

    amount       seconds of a delay, bytes a second of a throttle, the largest number of bytes that
                 pass at a time of a fragmentation, and those that pass twice of a duplication
    for_bytes    how many bytes a delay, a throttle or a fragmentation lasts for; None: for good
    backward     of a half-open link: whether what is lost goes to the end that connected
    connection   the one connection that it happens to, by the order in which they were made (a
                 rank connects for its data first, then for its control); None: all of the link's
    """

    kind: LinkFaultKind
    after_bytes: int = 0
    amount: float = 1.0
    for_bytes: int | None = None
    backward: bool = False
    connection: int | None = None

    def __post_init__(self) -> None:
        if self.after_bytes < 0 or not 0 < self.amount < float("inf"):
            raise UsageError(f"a fault begins after 0 bytes or more, by an amount > 0; got {self}")

    @classmethod
    def draw(
        cls,
        seed: int,
        *,
        kinds: Sequence[LinkFaultKind] = SURVIVABLE_LINK_FAULTS,
        within_bytes: int = 2000,
        longest_s: float = 0.02,
    ) -> LinkFault:
        """Draw a fault that begins within so many bytes. Equal seeds give equal faults."""
        # A string seeds by its SHA-512, which no release of Python may change.
        source = random.Random(f"rlx.testing.links {seed}")
        kind = source.choice(list(kinds))
        amount = {
            LinkFaultKind.DELAY: source.uniform(0.001, longest_s),
            LinkFaultKind.THROTTLE: 10 ** source.uniform(5, 7),
            LinkFaultKind.FRAGMENT: float(source.choice((1, 2, 3, 7, 16, 100))),
            LinkFaultKind.DUPLICATE: float(source.randint(1, 64)),
        }.get(kind, 1.0)
        return cls(
            kind,
            source.randint(0, within_bytes),
            amount,
            source.randint(1, 2000) if kind in SURVIVABLE_LINK_FAULTS else None,
            source.random() < 0.5,
        )

    def __str__(self) -> str:
        way = "back to the end that connected" if self.backward else "from the end that connected"
        text = _WORDS[self.kind].format(amount=self.amount, way=way)
        lasting = "" if self.for_bytes is None else f", for {self.for_bytes} bytes"
        which = "" if self.connection is None else f" on connection {self.connection}"
        return f"after {self.after_bytes} bytes{which}: {text}{lasting}"
