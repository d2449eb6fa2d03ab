"""The movement of the canonical sum: one round for small vectors, two for others.

Cost a rank, with N ranks, a vector of n bytes and one node a rank: `WholeSum` 1 round, (N - 1) n
bytes sent; `PieceSum` 2 rounds, 2 (N - 1) n / N bytes sent, what a ring all-reduce sends. Between
ranks that share memory `PieceSum` sends locations instead, and no piece of an array that is lent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from rlx.group.arrays import bytes_of
from rlx.group.calls import Call
from rlx.group.folding import Folding, Workspace
from rlx.group.lending import Loan, Terms, View
from rlx.group.moves import Moves
from rlx.group.program import program
from rlx.group.tree import Span, SumPlan, pieces
from rlx.net import COLLECTIVE_TAG, Heap, Incoming, Outgoing
from rlx.net.crossovers import WHOLE_SUM_BYTES

_MEETING, _RESULTS, _PIECES = 1, 2, 3  # the rounds of a call, as its stamps number them

Nodes: TypeAlias = Mapping[Span, np.ndarray]


class Sum(Protocol):
    """A canonical sum of vectors of one length and dtype, by one plan, on one rank."""

    def run(self, nodes: Nodes, out: np.ndarray, call: Call, moves: Moves) -> None:
        """Sum the nodes of all ranks into `out`.

        `nodes` holds this rank's nodes, keyed by the spans of the plan, each a flat array of the
        length and dtype of `out`. They are left alone, also where one of them is `out` itself,
        which then holds the sum.
        """


def canonical_sum(
    plan: SumPlan,
    rank: int,
    length: int,
    dtype: np.dtype[Any],
    *,
    combine: np.ufunc,
    accumulate_in: np.dtype[Any],
    divisor: int | None,
    workspace: Workspace,
    heap: Heap | None,
) -> Sum:
    """The sum as it is moved for vectors of `length` elements. It can be run any number of times,
    one at a time."""
    small = length * dtype.itemsize <= WHOLE_SUM_BYTES
    parts = pieces(length, plan.world_size)
    first, last = (0, length) if small else parts[rank]
    ranks = [rank, *(peer for peer in range(plan.world_size) if peer != rank)]
    fold = Folding(
        program(plan.leaves, [span for one in ranks for span in plan.nodes[one]]),
        last - first,
        combine,
        accumulate_in,
        divisor,
        workspace,
    )
    if small:
        return WholeSum(plan, rank, length, dtype, fold)
    return PieceSum(plan, rank, parts, dtype, fold, workspace, heap)


class WholeSum:
    """One round: every rank sends its nodes whole to all others, and each adds all of them."""

    def __init__(
        self, plan: SumPlan, rank: int, length: int, dtype: np.dtype[Any], fold: Folding
    ) -> None:
        self._spans = plan.nodes[rank]
        self._peers = [peer for peer in range(plan.world_size) if peer != rank]
        self._fold = fold
        counts = [len(plan.nodes[peer]) for peer in self._peers]
        whole = np.empty((sum(counts), length), dtype)
        self._received = list(whole)
        ends = [sum(counts[: place + 1]) for place in range(len(counts))]
        self._slots = [
            (peer, bytes_of(whole[end - count : end]))
            for peer, count, end in zip(self._peers, counts, ends, strict=True)
        ]

    def run(self, nodes: Nodes, out: np.ndarray, call: Call, moves: Moves) -> None:
        """As `Sum.run`."""
        own = [nodes[span] for span in self._spans]
        content = own[0].tobytes() if len(own) == 1 else b"".join([one.tobytes() for one in own])
        moves.trade(call, _MEETING, content, self._slots)
        self._fold.into(out, own + self._received)


class PieceSum:
    """Two rounds: pieces of every node to the piece's owner, which adds them; then sums to all.

    Near ranks first tell each other where their arrays lie. What is lent is not sent: the owner of
    a piece reads it from each lender's nodes, and writes the sum into each lender's `out`. Near
    ranks that cannot lend (an array outside of the heap) send their pieces in a round of its own.
    """

    def __init__(
        self,
        plan: SumPlan,
        rank: int,
        parts: Sequence[Span],
        dtype: np.dtype[Any],
        fold: Folding,
        workspace: Workspace,
        heap: Heap | None,
    ) -> None:
        self._plan = plan
        self._rank = rank
        self._parts = [slice(*part) for part in parts]
        self._length = parts[rank][1] - parts[rank][0]
        self._dtype = dtype
        self._fold = fold
        self._workspace = workspace
        self._peers = [peer for peer in range(plan.world_size) if peer != rank]
        near = frozenset() if heap is None else heap.near
        self._terms = {
            peer: Terms(heap, peer, len(plan.nodes[peer]), parts[rank], dtype)
            for peer in self._peers
            if heap is not None and peer in near
        }
        self._heap = heap if self._terms else None
        self._has_far = len(self._terms) < len(self._peers)
        self._records = [(peer, memoryview(terms.record)) for peer, terms in self._terms.items()]

    def run(self, nodes: Nodes, out: np.ndarray, call: Call, moves: Moves) -> None:
        """As `Sum.run`."""
        own = [nodes[span] for span in self._plan.nodes[self._rank]]
        with Loan(self._heap, own, out) as loan:
            views = self._meet(own, loan, call, moves)
            mine = out[self._parts[self._rank]]
            if self._length:
                registers = [array[self._parts[self._rank]] for array in own]
                for peer in self._peers:
                    registers += views[peer].nodes or []
                self._fold.into(mine, registers)
            self._hand_out(out, mine, views, loan, call, moves)

    def _meet(self, own: list[np.ndarray], loan: Loan, call: Call, moves: Moves) -> dict[int, View]:
        """Learn where the near ranks' arrays lie, and get the far ranks' pieces."""
        if not self._has_far:
            moves.trade(call, _MEETING, loan.record, self._records)
            views = {peer: terms.view() for peer, terms in self._terms.items()}
            if loan.has_nodes and all(view.nodes is not None for view in views.values()):
                return views
            scratch = self._scratch()
        else:
            scratch = self._scratch()
            self._meet_all(own, loan, scratch, call, moves)
            views = {
                peer: terms.view() if (terms := self._terms.get(peer)) else View(None, None)
                for peer in self._peers
            }
        self._send_what_is_not_lent(own, loan, scratch, views, call, moves)
        return {
            peer: view if view.nodes is not None else View(list(scratch[peer]), view.out)
            for peer, view in views.items()
        }

    def _meet_all(
        self,
        own: list[np.ndarray],
        loan: Loan,
        scratch: Mapping[int, np.ndarray],
        call: Call,
        moves: Moves,
    ) -> None:
        """The first round where some ranks are far: locations to the near, pieces to the far."""
        stamp = call.stamp(_MEETING)
        sends, receives = [], []
        for peer in self._peers:
            terms = self._terms.get(peer)
            if terms is None:
                sends.append(self._pieces_for(peer, own, stamp))
                receives.append(Incoming(peer, COLLECTIVE_TAG, stamp, bytes_of(scratch[peer])))
            else:
                sends.append(Outgoing(peer, COLLECTIVE_TAG, stamp, (loan.record,)))
                receives.append(Incoming(peer, COLLECTIVE_TAG, stamp, terms.record))
        moves.exchange(call, sends, receives)

    def _send_what_is_not_lent(
        self,
        own: list[np.ndarray],
        loan: Loan,
        scratch: Mapping[int, np.ndarray],
        views: Mapping[int, View],
        call: Call,
        moves: Moves,
    ) -> None:
        stamp = call.stamp(_PIECES)
        sends = [] if loan.has_nodes else [self._pieces_for(p, own, stamp) for p in self._terms]
        receives = [
            Incoming(peer, COLLECTIVE_TAG, stamp, bytes_of(scratch[peer]))
            for peer in self._terms
            if views[peer].nodes is None
        ]
        if sends or receives:
            moves.exchange(call, sends, receives)

    def _scratch(self) -> dict[int, np.ndarray]:
        """Room for the pieces of each peer's nodes, one row a node."""
        counts = {peer: len(self._plan.nodes[peer]) for peer in self._peers}
        length = self._length
        whole = self._workspace.array("pieces", sum(counts.values()) * length, self._dtype)
        rooms, start = {}, 0
        for peer, count in counts.items():
            rooms[peer] = whole[start : start + count * length].reshape(count, length)
            start += count * length
        return rooms

    def _pieces_for(self, peer: int, own: Sequence[np.ndarray], stamp: bytes) -> Outgoing:
        part = self._parts[peer]
        return Outgoing(peer, COLLECTIVE_TAG, stamp, tuple(bytes_of(array[part]) for array in own))

    def _hand_out(
        self,
        out: np.ndarray,
        mine: np.ndarray,
        views: Mapping[int, View],
        loan: Loan,
        call: Call,
        moves: Moves,
    ) -> None:
        """Bring this rank's sum to all, and get theirs."""
        outs = [view.out for view in views.values()]
        for there in outs:
            if there is not None:
                there[:] = mine
        if loan.has_out and not self._has_far and all(there is not None for there in outs):
            moves.meet(call, _RESULTS)
            return
        stamp = call.stamp(_RESULTS)
        content = (bytes_of(mine),)
        sends, receives = [], []
        for peer in self._peers:
            there = views[peer].out
            sends.append(Outgoing(peer, COLLECTIVE_TAG, stamp, content if there is None else ()))
            comes_by_itself = loan.has_out and peer in self._terms
            receives.append(
                Incoming(peer, COLLECTIVE_TAG, stamp)
                if comes_by_itself
                else Incoming(peer, COLLECTIVE_TAG, stamp, bytes_of(out[self._parts[peer]]))
            )
        moves.exchange(call, sends, receives)
