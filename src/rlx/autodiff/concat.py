"""Where each part of a concatenation lies, as slice bounds that hold for every binding."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.errors import GraphError
from rlx.ir import Dim


def part_bounds(lengths: Sequence[Dim]) -> list[tuple[int | None, int | None]]:
    """(start, stop) of each part, counted from whichever end is known when the graph is built."""
    return [_bounds(lengths, part) for part in range(len(lengths))]


def _bounds(lengths: Sequence[Dim], part: int) -> tuple[int | None, int | None]:
    before, own, after = _total(lengths[:part]), lengths[part], _total(lengths[part + 1 :])
    if before is not None:
        if isinstance(own, int):
            return before, before + own
        if after is not None:
            return before, -after if after else None
    elif after is not None and isinstance(own, int):
        return (-after - own, -after if after else None) if own else (0, 0)
    raise GraphError(
        f"concat of lengths {list(lengths)}: its gradient needs all but one of them to be known "
        f"when the graph is built"
    )


def _total(lengths: Sequence[Dim]) -> int | None:
    total = 0
    for length in lengths:
        if not isinstance(length, int):
            return None
        total += length
    return total
