"""What an all-reduce costs, on the ranks of one group."""

from __future__ import annotations

import time

import numpy as np

from rlx.bench.tables import Row
from rlx.group import ProcessGroup

SIZES_BYTES = (4, 4 << 10, 256 << 10, 4 << 20, 64 << 20)
_WARM_UPS = 3
_SECONDS_A_SIZE = 1.0
_MOST_REPEATS = 300


def measure_collectives(group: ProcessGroup, form: str) -> list[Row]:
    """Seconds of an in-place float32 sum of each size: each call's slowest rank. All ranks call it.

    `form` names the transport in the rows. How often a size is repeated is agreed from a first few
    calls, so that every size takes about a second.
    """
    rows = []
    for size in SIZES_BYTES:
        array = np.zeros(size // 4, np.float32)
        first = _timed(group, array, _WARM_UPS + 2)[_WARM_UPS:]
        repeats = int(min(_MOST_REPEATS, max(5.0, _SECONDS_A_SIZE / max(first))))
        seconds = _timed(group, array, repeats)
        name = f"all_reduce {size} B, {group.world_size} ranks, {form}"
        rows.append(Row(name, tuple(seconds)))
    return rows


def _timed(group: ProcessGroup, array: np.ndarray, repeats: int) -> list[float]:
    own = np.empty(repeats, np.float64)
    for number in range(repeats):
        begun = time.perf_counter()
        group.all_reduce(array, out=array)
        own[number] = time.perf_counter() - begun
    return [float(value) for value in group.all_reduce(own, "max")]
