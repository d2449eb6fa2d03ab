"""The heap of processes that map each other's segments."""

from __future__ import annotations

import ctypes
import threading
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Mapping
from typing import Final

from rlx.errors import Malformed
from rlx.net.heap import Heap
from rlx.net.segment import Segment

_ALIGN_BYTES: Final = 64
_LARGE_BYTES: Final = 1 << 20


class Space:
    """Which parts of a range of bytes are free. First fit; neighbours that are free join."""

    def __init__(self, size_bytes: int) -> None:
        self._free: list[tuple[int, int]] = [(0, size_bytes)]  # start, stop; in order, apart
        self._taken: dict[int, int] = {}

    def take(self, size_bytes: int) -> int | None:
        """The start of `size_bytes` that are free no longer, or None."""
        size = max(_ALIGN_BYTES, -(-size_bytes // _ALIGN_BYTES) * _ALIGN_BYTES)
        for place, (start, stop) in enumerate(self._free):
            if stop - start >= size:
                self._free[place : place + 1] = (
                    [(start + size, stop)] if start + size < stop else []
                )
                self._taken[start] = start + size
                return start
        return None

    def give_back(self, start: int) -> tuple[int, int]:
        """Free what `take` gave at `start`; returns its range."""
        stop = self._taken.pop(start)
        insort(self._free, (start, stop))
        place = bisect_right(self._free, (start, stop)) - 1
        if place + 1 < len(self._free) and self._free[place + 1][0] == stop:
            self._free[place : place + 2] = [(start, self._free[place + 1][1])]
        if place > 0 and self._free[place - 1][1] == start:
            self._free[place - 1 : place + 1] = [(self._free[place - 1][0], self._free[place][1])]
        return start, stop


class SharedHeap(Heap):
    """The heap part of this rank's segment, and of those of its near peers."""

    def __init__(self, own: Segment, near: Mapping[int, Segment], start: int) -> None:
        self._own = own
        self._segments = dict(near)
        self._near = frozenset(near)
        self._start = start
        self._memory = own.memory[start:]
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._space = Space(len(self._memory))
        self._lock = threading.Lock()
        # The garbage collector may free while this thread holds the lock: it only leaves a note.
        self._freed: deque[int] = deque()
        self._retired = False

    @property
    def near(self) -> frozenset[int]:
        return self._near

    def allocate(self, size_bytes: int) -> tuple[int, memoryview] | None:
        with self._lock:
            if self._retired:
                return None
            while self._freed:
                self._give_back(self._freed.popleft() - self._start)
            start = self._space.take(size_bytes)
        if start is None:
            return None
        return self._start + start, self._memory[start : start + size_bytes]

    def free(self, location: int) -> None:
        self._freed.append(location)

    def retire(self) -> None:
        with self._lock:
            self._retired = True

    def lend(self, memory: memoryview) -> int | None:
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) - self._address
        if 0 <= address <= len(self._memory) - len(memory):
            return self._start + address
        return None

    def take_back(self, location: int) -> None:
        """Nothing: what is in the heap can be borrowed at any time."""

    def borrow(self, peer: int, location: int, size_bytes: int) -> memoryview:
        if location < self._start:
            raise Malformed(f"rank {peer} lends {location}, which is not in its heap")
        return self._segments[peer].view(location, size_bytes)

    def _give_back(self, start: int) -> None:
        first, last = self._space.give_back(start)
        if last - first >= _LARGE_BYTES:
            self._own.discard(self._start + first, self._start + last)

    def close(self) -> None:
        """Give out no more. What was given out stays usable."""
        self.retire()
        self._segments.clear()
        self._memory.release()
