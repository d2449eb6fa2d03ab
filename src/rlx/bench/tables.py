"""What was measured, as a table for people or as JSON for programs."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import rlx


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
    return "\n".join([*lines, _machine(), ""])


def as_json(rows: Sequence[Row]) -> str:
    """The same as one line of JSON, with every measurement."""
    plain: dict[str, Any] = {
        "machine": _machine(),
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


def _machine() -> str:
    return (
        f"rlx {rlx.__version__}, numpy {np.__version__}, Python {platform.python_version()}, "
        f"{platform.system()} {platform.release()} {platform.machine()}"
    )
