"""What collectives cost: contenders beside each other, and the ratios of their medians."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlx.bench.calls import ALL_REDUCE, whole_bytes
from rlx.bench.rounds import Samples, measure_in_turns
from rlx.bench.stages import Stage
from rlx.bench.tables import aligned, bytes_shown, dumped, footnotes, microseconds, summary


@dataclass(frozen=True, slots=True)
class Figure:
    """One contender at one call and size, with its ratios to the baselines of the same run."""

    call: str
    bytes: int
    contender: str
    samples: Samples
    ratios: dict[str, float]

    @property
    def bytes_per_s(self) -> float | None:
        """The algorithmic bandwidth: the vector's size by the time of a call."""
        return self.bytes / self.samples.median_s if self.bytes else None


@dataclass(frozen=True, slots=True)
class Collectives:
    """The figures of one run, and who could not be measured."""

    ranks: int
    against: tuple[str, ...]
    figures: list[Figure]
    about: dict[str, str]
    lost: dict[str, str]

    def of(self, call: str, size_bytes: int, contender: str) -> Figure | None:
        """One figure, if it was measured."""
        wanted = (call, size_bytes, contender)
        found = (one for one in self.figures if (one.call, one.bytes, one.contender) == wanted)
        return next(found, None)


def measure_collectives(
    stage: Stage,
    contenders: Sequence[str],
    *,
    against: Sequence[str] = (),
    calls: Sequence[str] = (ALL_REDUCE,),
    sizes: Sequence[int],
    seconds: float,
) -> Collectives:
    """Measure every contender and baseline in turns, for about so many seconds.

    A size is that of the whole float32 vector, rounded to what the ranks can share. A barrier has
    none, and is measured once.
    """
    names = list(dict.fromkeys([*contenders, *against]))
    asked = [(call, whole_bytes(call, size, stage.ranks)) for call in calls for size in sizes]
    things = list(dict.fromkeys(asked))

    def measure(name: str, thing: tuple[str, int], warm_ups: int, repeats: int) -> list[float]:
        return stage.collective(name, *thing, warm_ups, repeats)

    samples = measure_in_turns(stage, names, things, measure, seconds=seconds)
    figures = [
        Figure(call, size, name, samples[name, (call, size)], {})
        for call, size in things
        for name in names
        if (name, (call, size)) in samples
    ]
    run = Collectives(stage.ranks, tuple(against), figures, stage.about, stage.lost)
    for figure in figures:
        _compare(run, figure)
    return run


def _compare(run: Collectives, figure: Figure) -> None:
    for baseline in run.against:
        other = run.of(figure.call, figure.bytes, baseline)
        if other is not None and baseline != figure.contender:
            figure.ratios[baseline] = figure.samples.median_s / other.samples.median_s


def collectives_table(run: Collectives) -> str:
    """A line for each contender at each size: median, quartiles, best, bandwidth and ratios."""
    compared = [name for name in run.against if name not in run.lost]
    heads = ["call", "bytes", "contender", "median us", "quartiles us", "best us", "GB/s"]
    lines = [heads + [f"/ {name}" for name in compared]]
    for figure in run.figures:
        low, high = figure.samples.quartiles_s
        speed = figure.bytes_per_s
        lines.append(
            [
                figure.call,
                bytes_shown(figure.bytes),
                figure.contender,
                microseconds(figure.samples.median_s),
                f"{microseconds(low)} - {microseconds(high)}",
                microseconds(min(figure.samples.all)),
                "" if speed is None else f"{speed / 1e9:.3g}",
                *(
                    f"{figure.ratios[name]:.2f}" if name in figure.ratios else ""
                    for name in compared
                ),
            ]
        )
    rounds = min((len(one.samples.rounds) for one in run.figures), default=0)
    notes = [
        f"{run.ranks} ranks, float32, {rounds} rounds in turns; each call's time is its slowest "
        f"rank's; no garbage collection while timing",
        *(["ratios are of medians of this run"] if compared else []),
    ]
    return aligned(lines, left=3) + footnotes(notes, run.about, run.lost)


def collectives_json(run: Collectives) -> str:
    """The same as one line of JSON, with the median of every round."""
    return dumped(
        "collectives",
        run.ranks,
        run.about,
        run.lost,
        [
            {
                "call": figure.call,
                "bytes": figure.bytes,
                "contender": figure.contender,
                **summary(figure.samples),
                "bytes_per_s": figure.bytes_per_s,
                "ratios": figure.ratios,
            }
            for figure in run.figures
        ],
    )
