"""What a soak found: a table for people, or JSON for programs."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

import rlx
from rlx.testing.soak.trials import Trial

_HEAD = ("fault", "count", "hangs", "wrong", "leaks", "other", "named %", "median s", "worst s")


def as_table(trials: Sequence[Trial], order: Sequence[str], wall_s: float) -> str:
    """A row for each kind of fault, a last one for all, and what went wrong."""
    by_kind = {name: [one for one in trials if one.kind == name] for name in order}
    rows = [_row(name, group) for name, group in by_kind.items() if group]
    rows = [_HEAD, *rows, _row("all", trials)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]
    for one in trials:
        if not one.is_good:
            lines += ["", f"{one.kind}, trial {one.number}: {one.what}", *one.problems]
    return "\n".join([*lines, "", f"{_machine()}; {wall_s:.0f} s", ""])


def as_json(trials: Sequence[Trial], wall_s: float) -> str:
    """One line of JSON, with every trial."""
    plain = {"machine": _machine(), "wall_s": wall_s, "trials": [asdict(one) for one in trials]}
    return json.dumps(plain) + "\n"


def _row(name: str, trials: Sequence[Trial]) -> tuple[str, ...]:
    named = [one.named for one in trials if one.named is not None]
    times_s = [one.error_s for one in trials if one.error_s is not None]
    counted = sum(
        bool(one.problems) and not (one.hangs or one.wrong or one.leaks or one.named is False)
        for one in trials
    )
    return (
        name,
        str(len(trials)),
        *(str(sum(getattr(one, what) for one in trials)) for what in ("hangs", "wrong", "leaks")),
        str(counted),
        f"{100 * sum(named) / len(named):.2f}" if named else "",
        f"{statistics.median(times_s):.3f}" if times_s else "",
        f"{max(times_s):.3f}" if times_s else "",
    )


def _machine() -> str:
    return (
        f"rlx {rlx.__version__}, numpy {np.__version__}, Python {platform.python_version()}, "
        f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} cores"
    )
