"""The project's table of goals: how far each transport is from the one that it is held against."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.bench.calls import ALL_REDUCE, SIZES_BYTES
from rlx.bench.collectives import Collectives, measure_collectives
from rlx.bench.stages import Stage
from rlx.bench.tables import aligned, bytes_shown, dumped, footnotes, microseconds, summary

ROWS = (
    ("tcp", "mpi-native-tcp", "TCP sockets alone, to Open MPI over TCP"),
    ("tcp", "gloo", "TCP sockets alone, to gloo"),
    ("tcp+shm", "mpi-native", "processes of one host, to MPI over shared memory"),
    ("threads", "mpi-native", "threads, to MPI over shared memory"),
    ("mpi", "mpi-native", "the canonical sum over MPI, to MPI_Allreduce of the same launch"),
)
"""What is held against what. Nothing here says which ratio would be good."""

CONTENDERS = tuple(dict.fromkeys(name for row in ROWS for name in row[:2]))


def measure_goals(
    stage: Stage, *, sizes: Sequence[int] = SIZES_BYTES, seconds: float
) -> Collectives:
    """Measure an all-reduce of all that the table needs, in turns."""
    return measure_collectives(stage, CONTENDERS, sizes=sizes, seconds=seconds)


def goals_table(run: Collectives) -> str:
    """A line for each comparison, a column for each size: the ratio, and the two medians."""
    sizes = _sizes(run)
    lines = [["ratio (median us / median us)", *map(bytes_shown, sizes)]]
    for name, baseline, about in ROWS:
        cells = [_cell(run, size, name, baseline) for size in sizes]
        lines.append([f"{name} / {baseline}: {about}", *cells])
    rounds = min((len(one.samples.rounds) for one in run.figures), default=0)
    notes = [
        f"all_reduce of float32 in place, {run.ranks} ranks, {rounds} rounds in turns; each call's "
        f"time is its slowest rank's; no garbage collection while timing"
    ]
    return aligned(lines, left=1) + footnotes(notes, run.about, run.lost)


def goals_json(run: Collectives) -> str:
    """The same as one line of JSON, with what each median is made of."""
    rows = []
    for name, baseline, about in ROWS:
        for size in _sizes(run):
            own, other = run.of(ALL_REDUCE, size, name), run.of(ALL_REDUCE, size, baseline)
            rows.append(
                {
                    "contender": name,
                    "baseline": baseline,
                    "about": about,
                    "bytes": size,
                    "ratio": _ratio(run, size, name, baseline),
                    "contender_calls": summary(own.samples) if own else None,
                    "baseline_calls": summary(other.samples) if other else None,
                }
            )
    return dumped("goals", run.ranks, run.about, run.lost, rows)


def _sizes(run: Collectives) -> list[int]:
    return sorted({figure.bytes for figure in run.figures})


def _ratio(run: Collectives, size: int, name: str, baseline: str) -> float | None:
    own, other = run.of(ALL_REDUCE, size, name), run.of(ALL_REDUCE, size, baseline)
    return own.samples.median_s / other.samples.median_s if own and other else None


def _cell(run: Collectives, size: int, name: str, baseline: str) -> str:
    own, other = run.of(ALL_REDUCE, size, name), run.of(ALL_REDUCE, size, baseline)
    if own is None or other is None:
        return "-"
    medians = [microseconds(one.samples.median_s) for one in (own, other)]
    return f"{own.samples.median_s / other.samples.median_s:.2f} ({medians[0]} / {medians[1]})"
