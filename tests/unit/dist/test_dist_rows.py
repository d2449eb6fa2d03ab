"""Who reads which rows in which step: every row once an epoch, whatever the sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx.dist.rows import ShardedRows, SharedRows, epoch_order
from rlx.errors import DataError

SIZES = {
    "rows": st.integers(1, 200),
    "batch": st.integers(1, 20),
    "step_rows": st.integers(1, 60),
    "world_size": st.integers(1, 9),
}


def reads(schedule, orders):
    """[(step, leaf, rank, rows)] of an epoch."""
    found = []
    for number in range(schedule.steps):
        step = schedule.step(number)
        for rank, (first, last) in enumerate(step.plan.ranges):
            for leaf in range(first, last):
                rows = orders[rank][step.starts[leaf] : step.stops[leaf]]
                found.append((number, leaf, rank, rows.tolist()))
    return found


@given(**SIZES)
def test_shared_rows_are_each_read_once_an_epoch(rows, batch, step_rows, world_size):
    order = epoch_order(rows, 5, 0)
    schedule = SharedRows(rows, batch, step_rows, world_size)
    found = reads(schedule, [order] * world_size)
    assert sorted(row for *_, part in found for row in part) == list(range(rows))
    assert sum(schedule.step(n).rows for n in range(schedule.steps)) == schedule.rows == rows
    assert all(0 < len(part) <= batch for *_, part in found)


@given(**SIZES)
def test_leaves_do_not_depend_on_the_world_size(rows, batch, step_rows, world_size):
    order = epoch_order(rows, 5, 0)
    alone = reads(SharedRows(rows, batch, step_rows, 1), [order])
    shared = reads(SharedRows(rows, batch, step_rows, world_size), [order] * world_size)
    assert [(step, leaf, part) for step, leaf, _, part in shared] == [
        (step, leaf, part) for step, leaf, _, part in alone
    ]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(1, 9))
def test_every_rank_reads_its_own_shard_once(counts, batch):
    if not any(counts):
        counts[0] = 1
    schedule = ShardedRows(counts, batch)
    found = reads(schedule, [np.arange(count) for count in counts])
    for rank, count in enumerate(counts):
        assert [row for _, _, who, part in found if who == rank for row in part] == list(
            range(count)
        )
    assert all(leaf == rank for _, leaf, rank, _ in found)


@given(**SIZES)
def test_partial_microbatches_are_foretold(rows, batch, step_rows, world_size):
    schedule = SharedRows(rows, batch, step_rows, world_size)
    sizes = {
        stop - start
        for number in range(schedule.steps)
        for start, stop in zip(
            schedule.step(number).starts, schedule.step(number).stops, strict=True
        )
    }
    assert schedule.has_partial_microbatch == (sizes != {batch})


def test_an_order_is_a_permutation_that_seed_and_epoch_decide():
    orders = [epoch_order(100, seed, epoch).tolist() for seed in (1, 2) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert epoch_order(100, 1, 0).tolist() == orders[0]
    assert epoch_order(5, None, 3).tolist() == [0, 1, 2, 3, 4]


def test_the_order_of_rows_is_the_same_on_every_machine_for_ever():
    # Philox4x64-10 with key (1, 0), argsorted: what any release of rlx must give.
    assert epoch_order(8, 1, 0).tolist() == [3, 5, 2, 7, 0, 6, 1, 4]


def test_no_rows_at_all_is_an_error():
    with pytest.raises(DataError, match="no rows"):
        SharedRows(0, 1, 1, 1)
    with pytest.raises(DataError, match="every rank's shard is empty"):
        ShardedRows([0, 0], 1)
