"""Arrays of the heap: sums in place, between ranks that lend and ranks that cannot."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from test_ranked_group import floats, folded

from rlx.errors import DisagreementError
from rlx.group import SumPlan, fold

SIZES = [1, 2048, 2049, 5000, 65_537, 300_001]


def on_heap(group, values: np.ndarray) -> np.ndarray:
    array = group.empty(values.shape, values.dtype)
    array[:] = values
    return array


def expected_sum(group, size: int, dtype=np.float32) -> bytes:
    everyone = [floats(rank, size, dtype) for rank in range(group.world_size)]
    return folded("sum", everyone).tobytes()


def test_sums_in_place_have_the_bits_of_any_other_sum(ranked):
    def body(group):
        for size in SIZES:
            array = on_heap(group, floats(group.rank, size))
            assert group.all_reduce(array, out=array) is array
            assert array.tobytes() == expected_sum(group, size), size

    ranked.groups(body)


def test_another_out_leaves_the_array_alone(ranked):
    def body(group):
        mine = floats(group.rank, 9000)
        array, out = on_heap(group, mine), group.empty(9000)
        group.all_reduce(array, out=out)
        assert array.tobytes() == mine.tobytes()
        assert out.tobytes() == expected_sum(group, 9000)

    ranked.groups(body)


@pytest.mark.parametrize("lender", ["even ranks", "the last rank", "all but their outs", "outs"])
def test_ranks_that_lend_and_ranks_that_cannot_meet_in_one_sum(ranked, lender):
    def body(group):
        lends = {
            "even ranks": (group.rank % 2 == 0,) * 2,
            "the last rank": (group.rank == group.world_size - 1,) * 2,
            "all but their outs": (True, False),
            "outs": (False, True),
        }[lender]
        mine = floats(group.rank, 70_000)
        array = on_heap(group, mine) if lends[0] else mine.copy()
        out = group.empty(70_000) if lends[1] else np.empty(70_000, np.float32)
        for _ in range(3):
            group.all_reduce(array, out=out)
            assert out.tobytes() == expected_sum(group, 70_000)
        assert array.tobytes() == mine.tobytes()

    ranked.groups(body)


def test_parts_of_a_heap_array_and_read_only_ones(ranked):
    def body(group):
        whole = group.empty((3, 20_000))
        whole[:] = 7
        whole[1] = floats(group.rank, 20_000)
        group.all_reduce(whole[1], out=whole[1])
        assert whole[1].tobytes() == expected_sum(group, 20_000)
        assert (whole[0] == 7).all()
        assert (whole[2] == 7).all()
        fixed = on_heap(group, floats(group.rank, 20_000))
        fixed.flags.writeable = False
        assert group.all_reduce(fixed).tobytes() == expected_sum(group, 20_000)

    ranked.groups(body)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "bool"])
def test_every_width_of_element(ranked, dtype):
    def body(group):
        op = "max" if dtype == "bool" else "sum"
        everyone = [
            (np.abs(floats(rank, 30_000, np.float64)) % 50).astype(dtype)
            for rank in range(group.world_size)
        ]
        plain = group.all_reduce(everyone[group.rank], op)
        array = on_heap(group, everyone[group.rank])
        assert group.all_reduce(array, op, out=array).tobytes() == plain.tobytes()

    ranked.groups(body)


@pytest.mark.parametrize("leaves", [1, 3, 8, 13])
def test_sums_of_nodes_in_place(ranked, leaves):
    def body(group):
        plan = SumPlan.dealt(leaves, group.world_size)
        values = {(leaf, leaf + 1): floats(leaf, 40_000) for leaf in range(leaves)}
        nodes = {
            span: on_heap(group, fold(span, values.get, np.add)) for span in plan.nodes[group.rank]
        }
        out = group.empty(40_000)
        group.sum_nodes(plan, nodes, out)
        assert out.tobytes() == fold((0, leaves), values.get, np.add).tobytes()

    ranked.groups(body)


def test_a_disagreement_over_lent_arrays_spoils_nothing(ranked):
    def body(group):
        if group.world_size == 1:
            return
        size = 9000 + 16 * (group.rank == group.world_size - 1)
        array = on_heap(group, floats(group.rank, size))
        with pytest.raises(DisagreementError, match=r"float32\[9016\]"):
            group.all_reduce(array, out=array)
        assert array.tobytes() == floats(group.rank, size).tobytes()
        again = on_heap(group, floats(group.rank, 9000))
        assert group.all_reduce(again).tobytes() == expected_sum(group, 9000)

    ranked.groups(body)


def test_memory_is_used_again_when_no_view_of_it_is_left(ranked):
    def body(group):
        heap = group.transport.heap
        first = group.empty(100_000)
        if heap is None or heap.lend(memoryview(first).cast("B")) is None:
            return
        address = first.ctypes.data
        view = first.reshape(100, 1000)[3:5]
        view[:] = 5
        del first
        gc.collect()
        other = group.empty(100_000)
        other[:] = 1
        assert (view == 5).all(), "memory was given out twice"
        del view
        gc.collect()
        if "Shared" in type(heap).__name__:
            assert group.empty(100_000).ctypes.data == address

    ranked.groups(body)


def test_an_array_outlives_its_group(ranked):
    def body(group):
        array = on_heap(group, floats(group.rank, 50_000))
        group.all_reduce(array, out=array)
        wanted = expected_sum(group, 50_000)
        group.close()
        return array.tobytes() == wanted and (array + 1).shape == (50_000,)

    assert all(ranked.groups(body).values())
