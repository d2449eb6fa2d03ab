"""The links between ranks, pair by pair: what a short message costs, and how fast a long one goes.

One pair at a time: what is measured is a link, and not how links share a machine or a switch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlx.bench.calls import ITEM_BYTES
from rlx.bench.rounds import Samples, measure_in_turns
from rlx.bench.stages import Stage
from rlx.bench.tables import aligned, bytes_shown, dumped, footnotes, microseconds, summary
from rlx.errors import UsageError

SIZES_BYTES = (ITEM_BYTES, 4 << 20, 64 << 20)
_SHORT_BYTES = 1024
"""Up to this size a figure is a latency, above it a bandwidth."""


@dataclass(frozen=True, slots=True)
class Link:
    """One contender's messages of one size, from the first rank of a pair to the second."""

    contender: str
    bytes: int
    pair: tuple[int, int]
    samples: Samples

    @property
    def is_short(self) -> bool:
        """Whether the figure is a latency; else it is a bandwidth."""
        return self.bytes <= _SHORT_BYTES

    @property
    def latency_s(self) -> float:
        """Half of a round trip of short messages; the median."""
        return self.samples.median_s / 2

    @property
    def bytes_per_s(self) -> float:
        """What went one way, by the time until one float came back; the median."""
        return self.bytes / self.samples.median_s

    @property
    def shown(self) -> str:
        """Microseconds or GB/s."""
        return microseconds(self.latency_s) if self.is_short else f"{self.bytes_per_s / 1e9:.3g}"


@dataclass(frozen=True, slots=True)
class Links:
    """The figures of one run, and who could not be measured."""

    ranks: int
    links: list[Link]
    about: dict[str, str]
    lost: dict[str, str]

    def tables(self) -> dict[tuple[str, int], list[Link]]:
        """The links of each contender at each size."""
        found: dict[tuple[str, int], list[Link]] = {}
        for link in self.links:
            found.setdefault((link.contender, link.bytes), []).append(link)
        return found


def measure_links(
    stage: Stage, contenders: Sequence[str], *, sizes: Sequence[int] = SIZES_BYTES, seconds: float
) -> Links:
    """Measure each ordered pair of ranks in turn, for about so many seconds and three rounds."""
    if stage.ranks < 2:
        raise UsageError("links are between ranks; there is one rank")
    whole = dict.fromkeys(max(ITEM_BYTES, size // ITEM_BYTES * ITEM_BYTES) for size in sizes)
    pairs = [(a, b) for a in range(stage.ranks) for b in range(stage.ranks) if a != b]
    things = [(size, pair) for size in whole for pair in pairs]
    samples = measure_in_turns(stage, contenders, things, _measure(stage), seconds=seconds)
    links = [
        Link(name, size, pair, samples[name, (size, pair)])
        for name in contenders
        for size, pair in things
        if (name, (size, pair)) in samples
    ]
    return Links(stage.ranks, links, stage.about, stage.lost)


def worst(links: Sequence[Link]) -> Link:
    """The slowest of several links of one contender and size."""
    return max(links, key=lambda link: link.samples.median_s)


def links_table(run: Links) -> str:
    """A matrix for each contender and size, from the rank of a line to that of a column."""
    text = ""
    for (name, size), links in run.tables().items():
        found = {link.pair: link for link in links}
        unit = "latency, us" if links[0].is_short else "bandwidth, GB/s"
        lines = [["from \\ to", *map(str, range(run.ranks))]]
        for first in range(run.ranks):
            row = [found.get((first, second)) for second in range(run.ranks)]
            lines.append([str(first), *(link.shown if link else "" for link in row)])
        slow = worst(links)
        text += f"{name}, {bytes_shown(size)}: {unit}\n{aligned(lines, left=1)}"
        text += f"slowest: rank {slow.pair[0]} to rank {slow.pair[1]}, {slow.shown}\n\n"
    rounds = min((len(link.samples.rounds) for link in run.links), default=0)
    notes = [
        f"{run.ranks} ranks, one pair at a time, medians of {rounds} rounds in turns; no garbage "
        f"collection while timing",
        "latency: half of a round trip; bandwidth: bytes one way, by the time until one float is "
        "back",
    ]
    return text + footnotes(notes, run.about, run.lost)


def links_json(run: Links) -> str:
    """The same as one line of JSON; `slowest` is the worst pair of its contender and size."""
    rows = []
    for (name, size), links in run.tables().items():
        slow = worst(links)
        rows += [
            {
                "contender": name,
                "bytes": size,
                "from": link.pair[0],
                "to": link.pair[1],
                "round_trip": summary(link.samples),
                "latency_s": link.latency_s if link.is_short else None,
                "bytes_per_s": None if link.is_short else link.bytes_per_s,
                "slowest": link is slow,
            }
            for link in links
        ]
    return dumped("links", run.ranks, run.about, run.lost, rows)


Thing = tuple[int, tuple[int, int]]


def _measure(stage: Stage) -> Callable[[str, Thing, int, int], list[float]]:
    def measure(name: str, thing: Thing, warm_ups: int, repeats: int) -> list[float]:
        size, pair = thing
        return stage.link(name, pair, size, warm_ups, repeats)

    return measure
