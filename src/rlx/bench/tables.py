"""What was measured, as a table for people or as JSON for programs."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import rlx
from rlx.bench.rounds import Samples


@dataclass(frozen=True, slots=True)
class Row:
    """One thing measured several times, in seconds, beside what it is compared with."""

    name: str
    seconds: tuple[float, ...]
    against: str | None = None
    ratio: float | None = None

    @property
    def median_s(self) -> float:
        """The median of the measurements."""
        return statistics.median(self.seconds)


def compared(samples: dict[str, list[float]], baseline: str) -> list[Row]:
    """A row for each name, with the ratio of its median to that of `baseline`."""
    base = statistics.median(samples[baseline])
    return [
        Row(
            name,
            tuple(seconds),
            None if name == baseline else baseline,
            None if name == baseline else statistics.median(seconds) / base,
        )
        for name, seconds in samples.items()
    ]


def as_table(rows: Sequence[Row]) -> str:
    """Lines with the median in microseconds, the spread, and the ratio."""
    width = max(len(row.name) for row in rows)
    lines = [f"{'':{width}}  median us      min      max  ratio"]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:5.2f} to {row.against}"
        low, high = min(row.seconds) * 1e6, max(row.seconds) * 1e6
        lines.append(
            f"{row.name:{width}}  {row.median_s * 1e6:9.1f} {low:8.1f} {high:8.1f}  {ratio}"
        )
    return "\n".join([*lines, machine(), ""])


def as_json(rows: Sequence[Row]) -> str:
    """The same as one line of JSON, with every measurement."""
    plain: dict[str, Any] = {
        "machine": machine(),
        "rows": [
            {
                "name": row.name,
                "median_s": row.median_s,
                "seconds": list(row.seconds),
                "against": row.against,
                "ratio": row.ratio,
            }
            for row in rows
        ],
    }
    return json.dumps(plain) + "\n"


def aligned(lines: Sequence[Sequence[str]], *, left: int) -> str:
    """Columns as wide as what they hold; the first `left` begin, and the others end, in line."""
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    text = ""
    for line in lines:
        cells = [
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        text += "  ".join(cells).rstrip() + "\n"
    return text


def footnotes(notes: Sequence[str], about: Mapping[str, str], lost: Mapping[str, str]) -> str:
    """What stands below a table: how it was measured, and who is not in it."""
    versions = [f"{name}: {version}" for name, version in about.items() if version]
    missing = [f"{name}: {reason}" for name, reason in lost.items()]
    return "\n".join([*missing, *notes, *versions, machine(), ""])


def dumped(
    what: str, ranks: int, about: Mapping[str, str], lost: Mapping[str, str], rows: Any
) -> str:
    """A run as one line of JSON. `contenders` has their versions; `lost` says who is missing."""
    plain = {
        "what": what,
        "machine": machine(),
        "ranks": ranks,
        "contenders": about,
        "lost": lost,
        "rows": rows,
    }
    return json.dumps(plain) + "\n"


def summary(samples: Samples) -> dict[str, Any]:
    """What JSON says of the calls of one contender at one thing, in seconds."""
    return {
        "median_s": samples.median_s,
        "quartiles_s": list(samples.quartiles_s),
        "best_s": min(samples.all),
        "calls": len(samples.all),
        "round_medians_s": [statistics.median(calls) for calls in samples.rounds],
    }


def bytes_shown(size: int) -> str:
    """A size as people say it: 4 KiB, 64 MiB; nothing for none."""
    for power, unit in ((20, "MiB"), (10, "KiB")):
        if size and size % (1 << power) == 0:
            return f"{size >> power} {unit}"
    return f"{size} B" if size else ""


def microseconds(seconds: float) -> str:
    """Microseconds, to a tenth below a thousand."""
    value = seconds * 1e6
    return f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def machine() -> str:
    """What was measured, and on what."""
    return (
        f"rlx {rlx.__version__}, numpy {np.__version__}, Python {platform.python_version()}, "
        f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} cores"
    )
