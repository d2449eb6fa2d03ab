"""Measuring in turns: in each round every contender has a short turn at every size.

What a machine does to one contender (another job, a colder cache, a slower clock) it then does to
all of them, and the ratio of two medians of one run says more than either figure.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from rlx.bench.stages import ContenderLost, Stage

TURN_S = 0.05
LEAST_ROUNDS = 3
_FEWEST_CALLS = 3
_MOST_CALLS = 200
_MOST_WARM_UPS = 10

What = TypeVar("What", bound=Hashable)


@dataclass
class Samples:
    """Seconds of the calls of one contender at one thing, one list a round."""

    rounds: list[list[float]] = field(default_factory=list)

    @property
    def all(self) -> list[float]:
        """The calls of every round."""
        return [seconds for calls in self.rounds for seconds in calls]

    @property
    def median_s(self) -> float:
        """The median call."""
        return statistics.median(self.all)

    @property
    def quartiles_s(self) -> tuple[float, float]:
        """Between these lie the middle half of the calls."""
        first, _, third = statistics.quantiles(self.all, n=4, method="inclusive")
        return first, third


def measure_in_turns(
    stage: Stage,
    names: Sequence[str],
    things: Sequence[What],
    measure: Callable[[str, What, int, int], list[float]],
    *,
    seconds: float,
    turn_s: float = TURN_S,
) -> dict[tuple[str, What], Samples]:
    """Rounds until `seconds` have gone, and at least three.

    `measure(name, thing, warm_ups, repeats)` has one contender measured. One that is lost on the
    way is left out from there on, with all that was measured of it.
    """
    estimates: dict[tuple[str, What], float] = {}
    samples: dict[tuple[str, What], Samples] = {}
    # The first round finds out what a call costs, and is not counted.
    number = -1
    while number < LEAST_ROUNDS or stage.elapsed_s() < seconds:
        left = [name for name in _turned(names, number) if name not in stage.lost]
        if not left:
            break
        for thing in things:
            for name in left:
                if name in stage.lost:
                    continue
                place = (name, thing)
                warm_ups, repeats = _counts(estimates.get(place), turn_s)
                try:
                    calls = measure(name, thing, warm_ups, repeats)
                except ContenderLost:
                    continue
                estimates[place] = statistics.median(calls)
                if number >= 0:
                    samples.setdefault(place, Samples()).rounds.append(calls)
        number += 1
    return {place: found for place, found in samples.items() if place[0] not in stage.lost}


def _turned(names: Sequence[str], number: int) -> list[str]:
    """Another one first in each round: nobody always follows the same one."""
    start = number % len(names) if names else 0
    return [*names[start:], *names[:start]]


def _counts(estimate_s: float | None, turn_s: float) -> tuple[int, int]:
    """Warm-up calls and counted calls of a turn."""
    if estimate_s is None:
        return 1, _FEWEST_CALLS
    calls = turn_s / max(estimate_s, 1e-9)
    return (
        round(min(_MOST_WARM_UPS, max(1.0, calls / 5))),
        round(min(_MOST_CALLS, max(_FEWEST_CALLS, calls))),
    )
