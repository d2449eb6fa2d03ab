"""Arrays that are lent to near ranks for the time of one call, and theirs that are borrowed."""

from __future__ import annotations

import struct
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from rlx.group.arrays import bytes_of
from rlx.group.tree import Span
from rlx.net import Heap

_NOWHERE = (1 << 64) - 1


def allocated(heap: Heap, shape: Sequence[int] | int, dtype: np.dtype[Any]) -> np.ndarray:
    """A new array on the heap, or an ordinary one where the heap has no room for it.

    Its memory is given back when neither it nor any view of it is left.
    """
    like = np.broadcast_to(np.empty((), dtype), shape)  # numpy's own judgement of the shape
    size_bytes = like.size * dtype.itemsize
    place = heap.allocate(size_bytes) if size_bytes and not dtype.hasobject else None
    if place is None:
        return np.empty(shape, dtype)
    location, memory = place
    owner = np.frombuffer(memory, np.uint8)
    weakref.finalize(owner, heap.free, location).atexit = False
    return owner.view(dtype).reshape(like.shape)


class View(NamedTuple):
    """A peer's pieces of its nodes and of its `out`, or None where they are not lent."""

    nodes: list[np.ndarray] | None
    out: np.ndarray | None


class Loan:
    """What this rank lends during one call: its nodes, if all of them can be lent, and its `out`.

    `record` is what near ranks are told: the location of each node, then that of `out`.
    """

    __slots__ = ("_heap", "_locations", "has_nodes", "has_out", "record")

    def __init__(self, heap: Heap | None, nodes: Sequence[np.ndarray], out: np.ndarray) -> None:
        self._heap = heap
        self._locations: list[int] = []
        self.has_nodes = self.has_out = False
        self.record = b""
        if heap is None:
            return
        known: dict[int, int] = {}
        places = [self._lend(array, known) for array in nodes]
        self.has_nodes = _NOWHERE not in places
        place = self._lend(out, known)
        self.has_out = place != _NOWHERE
        if not self.has_nodes:
            places = [_NOWHERE] * len(places)
        self.record = struct.pack(f"<{len(places) + 1}Q", *places, place)

    def _lend(self, array: np.ndarray, known: dict[int, int]) -> int:
        assert self._heap is not None
        if id(array) in known:
            return known[id(array)]
        place = self._heap.lend(bytes_of(array)) if array.flags.writeable else None
        if place is None:
            place = _NOWHERE
        else:
            self._locations.append(place)
        known[id(array)] = place
        return place

    def __enter__(self) -> Loan:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._heap is None:
            return
        for location in self._locations:
            self._heap.take_back(location)
        if error is not None and self._locations:
            self._heap.retire()


class Terms:
    """What a near rank's record says, for sums of one length: views of this rank's piece there."""

    def __init__(
        self, heap: Heap, peer: int, nodes: int, piece: Span, dtype: np.dtype[Any]
    ) -> None:
        self._heap = heap
        self._peer = peer
        self._format = f"<{nodes + 1}Q"
        self._start_bytes = piece[0] * dtype.itemsize
        self._size_bytes = (piece[1] - piece[0]) * dtype.itemsize
        self._dtype = dtype
        self.record = bytearray(8 * (nodes + 1))

    def view(self) -> View:
        """The memory that the record, which has come, points to."""
        *nodes, out = struct.unpack(self._format, self.record)
        lent = _NOWHERE not in nodes
        return View(
            [self._borrowed(place) for place in nodes] if lent else None,
            None if out == _NOWHERE else self._borrowed(out),
        )

    def _borrowed(self, place: int) -> np.ndarray:
        if not self._size_bytes:
            return np.empty(0, self._dtype)
        memory = self._heap.borrow(self._peer, place + self._start_bytes, self._size_bytes)
        return np.frombuffer(memory, self._dtype)
