"""Ranks that do not do the same: who called what, who is late, and who refused, on every form."""

from __future__ import annotations

import time

import numpy as np
import pytest

from rlx.errors import (
    ClosedError,
    DeadlineExceeded,
    DisagreementError,
    LimitExceeded,
    RemoteError,
)
from rlx.group import ProcessGroup, SumPlan

CALLS = {
    "dtype": lambda g: g.all_reduce(np.ones(8, np.float64)),
    "same size, another dtype": lambda g: g.all_reduce(np.ones(8, np.int32)),
    "one element more": lambda g: g.all_reduce(np.ones(9, np.float32)),
    "operator": lambda g: g.all_reduce(np.ones(8, np.float32), "max"),
    "call": lambda g: g.broadcast(np.ones(8, np.float32)),
    "shape": lambda g: g.all_reduce(np.ones((2, 4), np.float32)),
    "name": lambda g: g.all_reduce(np.ones(8, np.float32), name="b"),
    "nothing to send": lambda g: g.barrier(),
    "large": lambda g: g.all_reduce(np.ones(1 << 20, np.float32)),
}


@pytest.mark.parametrize("kind", CALLS)
def test_ranks_that_call_other_things_all_learn_who_said_what(ranked, kind):
    def body(group):
        odd = group.world_size - 1
        usual = lambda g: g.all_reduce(np.ones(8, np.float32))  # noqa: E731
        if group.world_size == 1:
            return
        with pytest.raises(DisagreementError) as caught:
            (CALLS[kind] if group.rank == odd else usual)(group)
        message = str(caught.value)
        assert "at call 1" in message
        assert f"rank {odd}:" in message
        assert "all_reduce(sum, float32[8])" in message
        # Every rank raised at the same call, so the group can be used.
        assert group.all_reduce(np.ones(2)).tolist() == [group.world_size] * 2

    ranked.groups(body)


@pytest.mark.parametrize(("first", "second"), [(8, 9), (1024, 1025), (0, 1)])
def test_counts_that_differ_by_one_are_both_shown(ranked, first, second):
    def body(group):
        if group.world_size == 1:
            return
        with pytest.raises(DisagreementError) as caught:
            group.all_reduce(np.ones(first if group.rank == 0 else second, np.float32))
        assert f"float32[{first}]" in str(caught.value)
        assert f"float32[{second}]" in str(caught.value)

    ranked.groups(body)


def test_gathering_different_shapes_shows_both(ranked):
    def body(group):
        if group.world_size == 1:
            return
        with pytest.raises(DisagreementError, match=r"(?s)float64\[2, 3\].*float64\[3, 3\]"):
            group.all_gather(np.ones((2 if group.rank == 0 else 3, 3)))

    ranked.groups(body)


def test_a_late_rank_is_named_with_the_call_and_the_seconds(ranked):
    def body(transport):
        group = ProcessGroup(transport, deadline=0.3)
        group.barrier()
        if group.rank == 0 and group.world_size > 1:
            with pytest.raises(DeadlineExceeded) as caught:
                group.barrier(name="late")
            message = str(caught.value)
            for fact in ("rank 0 waited 0.", "rank 1", "call 2", "barrier(name='late')"):
                assert fact in message
            with pytest.raises(ClosedError, match="call 2"):
                group.barrier()

    ranked.transports(body)


def test_plans_that_differ_in_their_leaves_are_a_disagreement(ranked):
    def body(group):
        if group.world_size < 3:
            return
        size, rank = group.world_size, group.rank
        usual = SumPlan.one_leaf_a_rank(size)
        gap = SumPlan(size + 1, ((0, 1), *((peer + 1, peer + 2) for peer in range(1, size))))
        plan = gap if rank == size - 1 else usual
        with pytest.raises(DisagreementError, match="plan="):
            group.sum_nodes(plan, {plan.nodes[rank][0]: np.ones(4)}, np.empty(4))

    ranked.groups(body)


def test_a_rank_that_refuses_what_comes_breaks_the_group_and_tells_the_others(ranked, monkeypatch):
    monkeypatch.setattr("rlx.group.shuffles.GATHER_LIMIT_BYTES", 100)

    def body(group):
        if group.world_size == 1:
            return
        # Rank 0 alone is sent more than its limit: the others announce little to each other.
        sizes = [500 if peer == 0 and group.rank else 1 for peer in range(group.world_size)]
        with pytest.raises((LimitExceeded, RemoteError)) as caught:
            group.all_to_all_v([np.zeros(size, np.uint8) for size in sizes])
        assert isinstance(caught.value, LimitExceeded) == (group.rank == 0)
        with pytest.raises(ClosedError):
            group.barrier()

    ranked.groups(body)


def test_a_late_rank_learns_of_a_disagreement_too(ranked):
    """The others have raised, and left, before it reads what they sent."""

    def body(group):
        if group.world_size < 2:
            return
        if group.rank == group.world_size - 1:
            time.sleep(0.05)
        size = 3 if group.rank == 0 else 4
        with pytest.raises(DisagreementError), group:
            group.all_reduce(np.ones(size, np.float32))

    for _ in range(5):
        ranked.groups(body)
