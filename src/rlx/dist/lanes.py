"""The microbatches of a rank, shared by its lanes: threads that each run their own executable.

A lane owns a contiguous part of the rank's leaves and adds them up to nodes of the canonical tree,
as a rank does; the rank then joins the nodes of its lanes. So lanes change no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TypeAlias

import numpy as np

from rlx.group import Span, contiguous_ranges, cover, fold, split

Leaf: TypeAlias = Callable[[int, np.ndarray], None]
"""`leaf(k, out)` computes leaf k of the present step into `out`, in whichever lane it is called."""

Empty: TypeAlias = Callable[[int, np.dtype[np.generic]], np.ndarray]
"""Makes a vector: `ProcessGroup.empty`, where the collectives work best, or `numpy.empty`."""


class NodeSums:
    """One lane's partial sums: the nodes of the tree inside its range, in buffers that are
    reused."""

    def __init__(self, length: int, dtype: np.dtype[np.generic], empty: Empty) -> None:
        self._length = length
        self._dtype = dtype
        self._empty = empty
        self._kept: dict[str, np.ndarray] = {}

    def run(self, leaves: int, owned: Span, leaf: Leaf) -> dict[Span, np.ndarray]:
        """The nodes that make up `owned`, each summed along the tree over `leaves` leaves."""
        nodes = {}
        for number, span in enumerate(cover((0, leaves), owned)):
            nodes[span] = self._buffer(f"node {number}")
            self._sum(span, nodes[span], leaf, 0)
        return nodes

    def _sum(self, span: Span, out: np.ndarray, leaf: Leaf, depth: int) -> None:
        start, stop = span
        if stop - start == 1:
            leaf(start, out)
            return
        middle = split(span)
        self._sum((start, middle), out, leaf, depth)
        right = self._buffer(f"right {depth}")
        self._sum((middle, stop), right, leaf, depth + 1)
        np.add(out, right, out=out)

    def _buffer(self, key: str) -> np.ndarray:
        if key not in self._kept:
            self._kept[key] = self._empty(self._length, self._dtype)
        return self._kept[key]


class Lanes(AbstractContextManager["Lanes"]):
    """The lanes of one rank. Used as a context: its threads end with it.

    Every vector that a rank sends is made by `empty(length, dtype)`.
    """

    def __init__(
        self, count: int, length: int, dtype: np.dtype[np.generic], empty: Empty
    ) -> None:
        self._sums = [NodeSums(length, dtype, empty) for _ in range(count)]
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="rlx-lane") if count > 1 else None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def nodes(
        self, leaves: int, owned: Span, wanted: tuple[Span, ...], leaf_in: Callable[[int], Leaf]
    ) -> Mapping[Span, np.ndarray]:
        """The rank's nodes `wanted`, which make up its leaves `owned`; `leaf_in(lane)` computes.

        The arrays are reused by the next call.
        """
        if self._pool is None:
            return self._sums[0].run(leaves, owned, leaf_in(0))
        start, stop = owned
        parts = contiguous_ranges(stop - start, len(self._sums))
        futures = [
            self._pool.submit(sums.run, leaves, (start + first, start + last), leaf_in(lane))
            for lane, (sums, (first, last)) in enumerate(zip(self._sums, parts, strict=True))
        ]
        found: dict[Span, np.ndarray] = {}
        for future in futures:
            found.update(future.result())
        return {span: _present(joined(span, found), span) for span in wanted}


def joined(span: Span, found: Mapping[Span, np.ndarray]) -> np.ndarray | None:
    """The sum of the nodes inside `span`, along the tree, written over one of them; None for
    none."""
    return fold(span, found.get, lambda left, right: np.add(left, right, out=left))


def _present(total: np.ndarray | None, span: Span) -> np.ndarray:
    assert total is not None, f"no lane computed any of {span}"
    return total
