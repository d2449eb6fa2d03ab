"""The movement of the canonical sum: two exchanges, or one for small vectors.

Round 1: each rank sends, to the owner of each piece of the vector, that piece of each of its nodes.
The owner adds them along the tree. Round 2: each owner sends its summed piece to all. A vector of
at most `SMALL_BYTES` goes whole to every rank instead, and each adds all of it: one round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from rlx.group.arrays import bytes_of
from rlx.group.calls import Call
from rlx.group.tree import Span, SumPlan, fold, pieces, split
from rlx.net import COLLECTIVE_TAG, Incoming, Outgoing

SMALL_BYTES = 8192

Exchange: TypeAlias = Callable[[Call, Sequence[Outgoing], Sequence[Incoming]], None]
Nodes: TypeAlias = Mapping[Span, np.ndarray]


class Workspace:
    """Scratch arrays that are kept between calls, so that a steady state allocates nothing."""

    def __init__(self) -> None:
        self._kept: dict[str, np.ndarray] = {}

    def array(self, key: str, elements: int, dtype: np.dtype[Any]) -> np.ndarray:
        """`elements` elements with no particular content; the same memory for the same key."""
        needed = elements * dtype.itemsize
        kept = self._kept.get(key)
        if kept is None or kept.nbytes < needed:
            kept = np.empty(needed, np.uint8)
            self._kept[key] = kept
        return kept[:needed].view(dtype)


class CanonicalSum:
    """One canonical sum of vectors of one length and dtype, by one plan, on one rank."""

    def __init__(
        self,
        plan: SumPlan,
        rank: int,
        *,
        combine: np.ufunc,
        accumulate_in: np.dtype[Any],
        workspace: Workspace,
        divisor: int | None = None,
    ) -> None:
        self._plan = plan
        self._rank = rank
        self._combine = combine
        self._dtype = accumulate_in
        self._workspace = workspace
        self._divisor = divisor

    def run(self, nodes: Nodes, out: np.ndarray, call: Call, exchange: Exchange) -> None:
        """Sum the nodes of all ranks into `out`.

        `nodes` holds this rank's nodes, keyed by the spans of the plan, each a flat array of the
        length and dtype of `out`. They are left alone, also where one of them is `out` itself,
        which then holds the sum.
        """
        small = out.nbytes <= SMALL_BYTES
        parts = pieces(out.size, self._plan.world_size)
        whole = (0, out.size)
        wanted = whole if small else parts[self._rank]
        held = {span: array[slice(*wanted)] for span, array in nodes.items()}
        slots = self._slots(wanted, out.dtype)
        sends = [
            self._message(peer, nodes, whole if small else parts[peer], call)
            for peer in self._peers()
        ]
        receives = [
            Incoming(peer, COLLECTIVE_TAG, call.stamp(), bytes_of(slot))
            for peer, slot in slots.items()
        ]
        exchange(call, sends, receives)
        for peer, slot in slots.items():
            rows = slot.reshape(len(self._plan.nodes[peer]), -1) if slot.size else ()
            held.update(zip(self._plan.nodes[peer], rows, strict=False))
        if wanted[0] < wanted[1]:
            with np.errstate(all="ignore"):  # a sum may overflow to infinity: IEEE's answer
                self._fold_into(out[slice(*wanted)], held)
        if not small:
            self._gather(out, parts, call, exchange)

    def _peers(self) -> list[int]:
        return [rank for rank in range(self._plan.world_size) if rank != self._rank]

    def _slots(self, wanted: Span, dtype: np.dtype[Any]) -> dict[int, np.ndarray]:
        """One piece of scratch for each peer, as long as all its nodes' pieces together."""
        length = wanted[1] - wanted[0]
        counts = {peer: len(self._plan.nodes[peer]) * length for peer in self._peers()}
        scratch = self._workspace.array("received", sum(counts.values()), dtype)
        slots, start = {}, 0
        for peer, count in counts.items():
            slots[peer] = scratch[start : start + count]
            start += count
        return slots

    def _message(self, peer: int, nodes: Nodes, piece: Span, call: Call) -> Outgoing:
        own = self._plan.nodes[self._rank]
        buffers = tuple(bytes_of(nodes[span][slice(*piece)]) for span in own)
        return Outgoing(peer, COLLECTIVE_TAG, call.stamp(), buffers)

    def _fold_into(self, out: np.ndarray, held: Nodes) -> None:
        """Add the nodes along the tree. `out` may be one of them: it is written by the last
        addition."""
        root = (0, self._plan.leaves)
        if root in held:
            self._finish(out, held[root])
            return
        adder = _Adder(self._combine, self._dtype, out.size, self._workspace)
        middle = split(root)
        left = fold((0, middle), held.get, adder.add)
        right = fold((middle, root[1]), held.get, adder.add)
        if left is None or right is None:
            only = right if left is None else left
            assert only is not None, "a plan has at least one node"
            self._finish(out, only)
        elif out.dtype == self._dtype:
            self._finish(out, self._combine(left, right, out=out, dtype=self._dtype))
        else:
            self._finish(out, adder.add(left, right))

    def _finish(self, out: np.ndarray, total: np.ndarray) -> None:
        """Divide, and round to the dtype of `out`, where there is something to do."""
        if self._divisor:
            np.divide(total, self._divisor, out=out, dtype=self._dtype, casting="same_kind")
        elif total is not out:
            np.copyto(out, total, casting="same_kind")

    def _gather(self, out: np.ndarray, parts: list[Span], call: Call, exchange: Exchange) -> None:
        stamp = call.stamp(2)
        mine = bytes_of(out[slice(*parts[self._rank])])
        sends = [Outgoing(peer, COLLECTIVE_TAG, stamp, (mine,)) for peer in self._peers()]
        receives = [
            Incoming(peer, COLLECTIVE_TAG, stamp, bytes_of(out[slice(*parts[peer])]))
            for peer in self._peers()
        ]
        exchange(call, sends, receives)


class _Adder:
    """Adds pairs of arrays, writing over its own earlier results, never over what it was given."""

    def __init__(
        self, combine: np.ufunc, dtype: np.dtype[Any], size: int, workspace: Workspace
    ) -> None:
        self._combine = combine
        self._dtype = dtype
        self._size = size
        self._workspace = workspace
        self._own: dict[int, np.ndarray] = {}
        self._free: list[np.ndarray] = []

    def add(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        target = left if id(left) in self._own else right if id(right) in self._own else None
        if target is None:
            target = self.scratch()
        elif target is left and id(right) in self._own:
            self._free.append(right)
        self._combine(left, right, out=target, dtype=self._dtype)
        return target

    def scratch(self) -> np.ndarray:
        """An array that holds no live result."""
        if self._free:
            return self._free.pop()
        made = self._workspace.array(f"sum {len(self._own)}", self._size, self._dtype)
        self._own[id(made)] = made
        return made
