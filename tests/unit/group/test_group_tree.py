"""The canonical tree and its plans, without a rank or an array."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx.errors import UsageError
from rlx.group import SumPlan, contiguous_ranges, cover, fold, pieces, split


def tree(start: int, stop: int):
    """The design's definition, as nested pairs: split after the largest power of two below n."""
    if stop - start == 1:
        return start
    power = 1
    while power * 2 < stop - start:
        power *= 2
    return (tree(start, start + power), tree(start + power, stop))


def nested(span):
    return fold(span, lambda one: one[0] if one[1] - one[0] == 1 else None, lambda a, b: (a, b))


@given(st.integers(1, 200))
def test_fold_follows_the_tree_of_the_design(leaves):
    assert nested((0, leaves)) == tree(0, leaves)


def test_split_is_the_largest_power_of_two_below_the_length():
    assert [split((0, n)) for n in (2, 3, 4, 5, 8, 9)] == [1, 2, 2, 4, 4, 8]
    assert split((8, 13)) == 12


@given(st.integers(1, 64), st.data())
def test_any_division_among_ranks_gives_the_same_sum(leaves, data):
    bounds = sorted(data.draw(st.lists(st.integers(0, leaves), max_size=6)))
    ranges = tuple(zip([0, *bounds], [*bounds, leaves], strict=True))
    plan = SumPlan(leaves, ranges)
    held = {span: nested(span) for nodes in plan.nodes for span in nodes}

    def rebuilt(span):
        known = held.get(span)
        return None if known is None else tree(*span)

    assert fold((0, leaves), rebuilt, lambda a, b: (a, b)) == tree(0, leaves)


@given(st.integers(1, 64), st.integers(0, 64), st.integers(0, 64))
def test_cover_is_exact_and_made_of_nodes_of_the_tree(leaves, first, last):
    nodes = cover((0, leaves), (min(first, last), max(first, last)))
    covered = [leaf for start, stop in nodes for leaf in range(start, stop)]
    assert covered == list(range(min(first, last, leaves), min(max(first, last), leaves)))
    all_nodes = set()

    def collect(span):
        all_nodes.add(span)
        if span[1] - span[0] > 1:
            collect((span[0], split(span)))
            collect((split(span), span[1]))

    collect((0, leaves))
    assert set(nodes) <= all_nodes


def test_aligned_ranges_need_one_node_a_rank():
    assert all(len(nodes) == 1 for nodes in SumPlan.dealt(16, 4).nodes)
    assert all(len(nodes) <= 1 for nodes in SumPlan.dealt(4, 3).nodes)


@given(st.integers(0, 1000), st.integers(1, 70))
def test_ranges_deal_every_leaf_once(leaves, parts):
    ranges = contiguous_ranges(leaves, parts)
    assert len(ranges) == parts
    assert [leaf for start, stop in ranges for leaf in range(start, stop)] == list(range(leaves))
    assert max(stop - start for start, stop in ranges) == -(-leaves // parts)


@given(st.integers(0, 10_000), st.integers(1, 70))
def test_pieces_cut_a_vector_without_gap(length, parts):
    cut = pieces(length, parts)
    assert len(cut) == parts
    assert [cut[0][0], cut[-1][1]] == [0, length]
    assert all(left[1] == right[0] for left, right in itertools.pairwise(cut))
    assert all(start <= stop and (start % 16 == 0 or start == length) for start, stop in cut)


def test_an_absent_leaf_adds_nothing_and_moves_no_other():
    known = {(0, 1): "a", (2, 3): "c", (3, 4): "d"}
    total = fold((0, 4), known.get, lambda left, right: f"({left}+{right})")
    assert total == "(a+(c+d))"
    assert fold((0, 3), {}.get, lambda left, right: left) is None


@pytest.mark.parametrize(
    ("leaves", "ranges"),
    [(4, ((0, 2), (1, 4))), (4, ((0, 5),)), (4, ((2, 4), (0, 2))), (0, ((0, 0),)), (3, ((1, 0),))],
)
def test_ranges_that_overlap_or_leave_the_leaves_are_refused(leaves, ranges):
    with pytest.raises(UsageError):
        SumPlan(leaves, ranges)
