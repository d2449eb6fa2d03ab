"""Memory for plans: aligned bytes, and an arena whose parts are used again when they are free.

Knows lifetimes and sizes; nothing of ops or graphs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy

from rlx.backends.dtypes import Array

ALIGNMENT_BYTES = 64
"""A cache line, and the widest vector register: no loop then takes another path for an address."""


class Lifetime(NamedTuple):
    """A buffer that must be kept from step `birth` to step `death`, both included."""

    bytes: int
    birth: int
    death: int


class Layout(NamedTuple):
    """Where each buffer starts, how long the arena is, and the most bytes that live at one step."""

    offsets: tuple[int, ...]
    arena_bytes: int
    peak_bytes: int


def aligned_zeros(count_bytes: int) -> Array:
    """`count_bytes` zeros (uint8) that start at a multiple of `ALIGNMENT_BYTES`."""
    block = numpy.zeros(count_bytes + ALIGNMENT_BYTES, numpy.uint8)
    start = -block.ctypes.data % ALIGNMENT_BYTES
    return block[start : start + count_bytes]


def padded(count_bytes: int) -> int:
    """`count_bytes` rounded up to whole alignment units."""
    return -(-count_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def arrange(lifetimes: Sequence[Lifetime]) -> Layout:
    """Give each buffer an offset, so that buffers alive at one step never overlap.

    A walk through time with a list of free blocks: a buffer takes the smallest free block that
    holds it (the lowest of equals), or else the end of the arena. O(n log n) and deterministic.
    """
    births: dict[int, list[int]] = defaultdict(list)
    deaths: dict[int, list[int]] = defaultdict(list)
    for index, one in enumerate(lifetimes):
        births[one.birth].append(index)
        deaths[one.death].append(index)
    free = _FreeBlocks()
    offsets = [0] * len(lifetimes)
    live = peak = 0
    for time in sorted({*births, *deaths}):
        for index in sorted(births[time], key=lambda one: (-lifetimes[one].bytes, one)):
            size = padded(lifetimes[index].bytes)
            offsets[index] = free.take(size)
            live += size
        peak = max(peak, live)
        for index in deaths[time]:
            size = padded(lifetimes[index].bytes)
            free.give(offsets[index], size)
            live -= size
    return Layout(tuple(offsets), free.end, peak)


class _FreeBlocks:
    """The free parts of [0, end), kept by size for the best fit and by place for joining."""

    def __init__(self) -> None:
        self.end = 0
        self._by_size: list[tuple[int, int]] = []
        self._size_at: dict[int, int] = {}
        self._start_of_end: dict[int, int] = {}

    def take(self, size: int) -> int:
        """The offset of `size` bytes that are free no longer."""
        if size == 0:
            return 0
        place = bisect_left(self._by_size, (size, -1))
        if place < len(self._by_size):
            found, offset = self._by_size[place]
            self._remove(offset, found)
            self._add(offset + size, found - size)
            return offset
        offset = self._start_of_end.get(self.end, self.end)
        if offset != self.end:
            self._remove(offset, self.end - offset)
        self.end = offset + size
        return offset

    def give(self, offset: int, size: int) -> None:
        """Free a block, and join it with the free ones beside it."""
        if size == 0:
            return
        before = self._start_of_end.get(offset)
        if before is not None:
            self._remove(before, offset - before)
            offset, size = before, size + offset - before
        after = self._size_at.get(offset + size)
        if after is not None:
            self._remove(offset + size, after)
            size += after
        self._add(offset, size)

    def _add(self, offset: int, size: int) -> None:
        if size:
            insort(self._by_size, (size, offset))
            self._size_at[offset] = size
            self._start_of_end[offset + size] = offset

    def _remove(self, offset: int, size: int) -> None:
        del self._by_size[bisect_left(self._by_size, (size, offset))]
        del self._size_at[offset]
        del self._start_of_end[offset + size]
