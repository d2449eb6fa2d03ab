"""The canonical sum as a plan: which partial sums exist, who holds them, and in which order they
add.

Pure: no array and no rank is touched here, so a plan is tested for every world size without a
socket.

The sum over K leaves follows one binary tree: a range of n > 1 leaves is split after the largest
power of two below n. A rank that owns a contiguous range of leaves adds them up to the few largest
nodes of that tree inside its range (`cover`); the rest of the tree joins the nodes of all ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from rlx.errors import UsageError

Span: TypeAlias = tuple[int, int]
"""Leaves `start <= leaf < stop`."""

T = TypeVar("T")


def split(span: Span) -> int:
    """Where a range of two or more leaves is split: after the largest power of two below its
    length."""
    start, stop = span
    return start + (1 << ((stop - start - 1).bit_length() - 1))


def cover(tree: Span, owned: Span) -> list[Span]:
    """The fewest nodes of the tree over `tree` that make up `owned`, in order of leaves."""
    start, stop = max(tree[0], owned[0]), min(tree[1], owned[1])
    if start >= stop:
        return []
    if (start, stop) == tree:
        return [tree]
    middle = split(tree)
    return cover((tree[0], middle), owned) + cover((middle, tree[1]), owned)


def fold(tree: Span, leaf: Callable[[Span], T | None], add: Callable[[T, T], T]) -> T | None:
    """Add along the tree over `tree`; `leaf` gives the value of a node that is known, else None.

    A single leaf that is not known is absent and adds nothing; None if all of them are.
    """
    known = leaf(tree)
    if known is not None or tree[1] - tree[0] <= 1:
        return known
    middle = split(tree)
    left = fold((tree[0], middle), leaf, add)
    right = fold((middle, tree[1]), leaf, add)
    if left is None or right is None:
        return right if left is None else left
    return add(left, right)


def contiguous_ranges(leaves: int, parts: int) -> list[Span]:
    """`leaves` dealt to `parts` owners in order, the same number to each until they run out.

    Ranges of equal length meet the tree's own blocks more often than evened-out ones, so fewer
    nodes travel, and the longest range, which is what a step waits for, is no longer.
    """
    each = -(-leaves // parts)
    return [(min(part * each, leaves), min((part + 1) * each, leaves)) for part in range(parts)]


@dataclass(frozen=True)
class SumPlan:
    """The canonical sum of `leaves` leaves, of which rank r owns `ranges[r]`.

    The ranges are in order and do not overlap. A leaf in none of them is absent and adds nothing.

    Cost of the sum of a vector of n elements in two rounds: rank r sends `len(nodes[r])` pieces of
    n / world size elements to each other rank, then its summed piece to each. With one node a rank
    that is 2 (N - 1) n / N elements, what a ring all-reduce sends.
    """

    leaves: int
    ranges: tuple[Span, ...]
    nodes: tuple[tuple[Span, ...], ...] = field(init=False)

    def __post_init__(self) -> None:
        end = 0
        for start, stop in self.ranges:
            if start > stop or (start < stop and (start < end or stop > self.leaves)):
                raise UsageError(
                    f"ranges {list(self.ranges)} are not in order within {self.leaves} leaves"
                )
            end = max(end, stop)
        nodes = tuple(tuple(cover((0, self.leaves), owned)) for owned in self.ranges)
        if not any(nodes):
            raise UsageError("a sum has at least one leaf that is not absent")
        object.__setattr__(self, "nodes", nodes)

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return len(self.ranges)

    def digest(self) -> str:
        """Sixteen hex digits that tell plans apart."""
        text = f"{self.leaves} {self.ranges}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @staticmethod
    def one_leaf_a_rank(world_size: int) -> SumPlan:
        """The plan of an all-reduce: leaf r is rank r's array."""
        return SumPlan(world_size, tuple((rank, rank + 1) for rank in range(world_size)))

    @staticmethod
    def dealt(leaves: int, world_size: int) -> SumPlan:
        """The plan of a step: the leaves dealt to the ranks in contiguous ranges."""
        return SumPlan(leaves, tuple(contiguous_ranges(leaves, world_size)))


def pieces(length: int, parts: int, multiple: int = 16) -> list[Span]:
    """`length` elements cut into `parts` contiguous pieces whose bounds are multiples of
    `multiple`.

    The bounds change no bit of a sum, since it is elementwise; they keep pieces apart in the cache.
    """
    blocks = -(-length // multiple)
    bounds = [min(length, blocks * part // parts * multiple) for part in range(parts)]
    return list(zip(bounds, [*bounds[1:], length], strict=True))
