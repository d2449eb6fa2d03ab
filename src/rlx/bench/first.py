"""What a fresh process costs that trains: the time to its first step, and its memory."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from rlx.bench.models import MODELS
from rlx.bench.tables import aligned, machine

_LONGEST_S = 120.0


@dataclass(frozen=True)
class First:
    """One library's processes that trained one model; a number for each process."""

    letter: str
    library: str
    seconds: tuple[float, ...]
    peak_bytes: tuple[int, ...]
    loaded_bytes: tuple[int, ...]


def measure_first(letters: Sequence[str], repeats: int) -> list[First]:
    """Start processes that train a model for some steps, by rlx and by PyTorch, in turns.

    Counted are the seconds from the start of the process to the end of its first step, the most
    memory that it ever held (resident), and what it held once its libraries were loaded. A first
    round, which compiles Python's files, is not counted.
    """
    libraries = ["rlx", "torch"] if find_spec("torch") is not None else ["rlx"]
    found = []
    for letter in letters:
        runs: dict[str, list[dict[str, Any]]] = {library: [] for library in libraries}
        for number in range(repeats + 1):
            for library in libraries:
                one = _run(letter, library)
                if number:
                    runs[library].append(one)
        found += [
            First(
                letter,
                library,
                tuple(one["first_step_s"] for one in ran),
                tuple(one["peak_bytes"] for one in ran),
                tuple(one["loaded_bytes"] for one in ran),
            )
            for library, ran in runs.items()
        ]
    return found


def first_table(rows: Sequence[First]) -> str:
    """Medians, for people."""
    lines: list[tuple[str, ...]] = [("", "ms to the first step", "peak MiB", "of it loaded")]
    for row in rows:
        sizes = [
            statistics.median(sizes) / (1 << 20) for sizes in (row.peak_bytes, row.loaded_bytes)
        ]
        lines.append(
            (
                f"{row.letter}: {MODELS[row.letter].about}, {row.library}",
                f"{statistics.median(row.seconds) * 1e3:.0f}",
                *(f"{size:.1f}" for size in sizes),
            )
        )
    notes = f"medians of {len(rows[0].seconds)} fresh processes of each, in turns\n"
    return aligned(lines, left=1) + notes + machine() + "\n"


def first_json(rows: Sequence[First]) -> str:
    """Every measurement, as one line."""
    plain = [
        {
            "model": row.letter,
            "library": row.library,
            "first_step_s": row.seconds,
            "peak_bytes": row.peak_bytes,
            "loaded_bytes": row.loaded_bytes,
        }
        for row in rows
    ]
    return json.dumps({"machine": machine(), "rows": plain}) + "\n"


def _run(letter: str, library: str) -> dict[str, Any]:
    """What one process says of itself."""
    # Both read the same clock, which counts from the machine's start.
    begun = repr(time.monotonic())
    done = subprocess.run(
        [sys.executable, "-m", "rlx.bench.first_main", letter, library, begun],
        check=True,
        stdout=subprocess.PIPE,
        env=os.environ,
        timeout=_LONGEST_S,
    )
    said: dict[str, Any] = json.loads(done.stdout)
    return said
