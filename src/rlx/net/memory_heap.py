"""The heap of threads: any memory of the process can be lent, and nothing needs to be allocated."""

from __future__ import annotations

import itertools

from rlx.errors import Malformed
from rlx.net.heap import Heap

# A location is the number of a loan and a distance from its beginning.
_DISTANCE_BITS = 40
_NUMBERS = 1 << 23


class Lent:
    """What the threads of one world lend each other at this moment."""

    def __init__(self) -> None:
        self._numbers = itertools.cycle(range(_NUMBERS))
        self._loans: dict[int, memoryview] = {}

    def add(self, memory: memoryview) -> int:
        """A new loan; its location."""
        number = next(self._numbers)
        while number in self._loans:
            number = next(self._numbers)
        self._loans[number] = memory
        return number << _DISTANCE_BITS

    def remove(self, location: int) -> None:
        """End a loan."""
        del self._loans[location >> _DISTANCE_BITS]

    def find(self, location: int, size_bytes: int) -> memoryview | None:
        """Part of a loan, or None where there is no such part."""
        memory = self._loans.get(location >> _DISTANCE_BITS)
        start = location & ((1 << _DISTANCE_BITS) - 1)
        if memory is None or start + size_bytes > len(memory):
            return None
        return memory[start : start + size_bytes]


class MemoryHeap(Heap):
    """One thread's side; `near` are all other threads."""

    def __init__(self, near: frozenset[int], lent: Lent) -> None:
        self._near = near
        self._lent = lent

    @property
    def near(self) -> frozenset[int]:
        return self._near

    def allocate(self, size_bytes: int) -> None:
        """None: any memory can be lent."""

    def free(self, location: int) -> None:
        """Nothing: nothing was allocated."""

    def retire(self) -> None:
        """Nothing: memory that a peer still borrows lives as long as the peer's view of it."""

    def lend(self, memory: memoryview) -> int:
        return self._lent.add(memory)

    def take_back(self, location: int) -> None:
        self._lent.remove(location)

    def borrow(self, peer: int, location: int, size_bytes: int) -> memoryview:
        found = self._lent.find(location, size_bytes)
        if found is None:
            raise Malformed(f"rank {peer} lends {size_bytes} bytes at {location}, which it has not")
        return found
