"""Arrays as users have them, in every collective: empty, strided, read-only, swapped, scalar."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from rlx.errors import UsageError
from rlx.group import ProcessGroup


def calls(group, array):
    """{call: its result} of every collective for an array whose axis 0 is the world size."""
    rank, size = group.rank, group.world_size
    around = [(peer + 1) % size for peer in range(size)]
    return {
        "all_reduce": group.all_reduce(array),
        "reduce": group.reduce(array, "max", root=size - 1),
        "reduce_scatter": group.reduce_scatter(array),
        "broadcast": group.broadcast(array, root=size - 1),
        "all_gather": group.all_gather(array),
        "gather": group.gather(array),
        "scatter": group.scatter(array if rank == 0 else None),
        "scatter_v": group.scatter_v([*array] if rank == 0 else None),
        "all_to_all": group.all_to_all(array),
        "all_to_all_v": group.all_to_all_v([*array]),
        "permute": group.permute(array, around),
    }


def plain(group, width: int) -> np.ndarray:
    """[world size, width, 3], another on every rank."""
    shape = (group.world_size, width, 3)
    return (
        np.arange(group.world_size * width * 3, dtype=np.int64).reshape(shape) + 1000 * group.rank
    )


def strided(array):
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def turned(array):
    return np.asfortranarray(array)


def backwards(array):
    return array[::-1, ::-1, ::-1].copy()[::-1, ::-1, ::-1]


def fixed(array):
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("layout", [strided, turned, backwards, fixed])
def test_the_layout_of_an_array_changes_no_result_and_the_array_stays_as_it_was(ranked, layout):
    def body(group):
        array = plain(group, 5)
        expected = calls(group, array.copy())
        given = layout(array.copy())
        for name, got in calls(group, given).items():
            assert type(got) is type(expected[name]), name
            for one, other in zip(listed(got), listed(expected[name]), strict=True):
                assert np.array_equal(one, other), name
                assert one.shape == other.shape, name
        assert np.array_equal(given, array)
        for name, got in expected.items():  # and the results may be written to
            assert all(one.flags.writeable for one in listed(got)), name

    ranked.groups(body)


def listed(result) -> list[np.ndarray]:
    if result is None:
        return []
    return result if isinstance(result, list) else [result]


def test_an_empty_array_passes_through_every_collective(ranked):
    def body(group):
        for width in (0, 4):
            array = plain(group, width) if width == 0 else plain(group, width)[:, :, :0]
            for name, got in calls(group, array).items():
                for one in listed(got):
                    assert one.size == 0, name
                    assert one.dtype == np.int64, name
        assert group.all_reduce(np.empty((0,), np.float32), "mean").shape == (0,)

    ranked.groups(body)


def test_an_array_without_axes_is_one_value_and_has_no_parts(ranked):
    def body(group):
        size, last = group.world_size, group.world_size - 1
        mine = np.array(float(group.rank))
        for got, expected in (
            (group.all_reduce(mine), sum(range(size))),
            (group.broadcast(mine, root=last), last),
            (
                group.permute(mine, [(peer + 1) % size for peer in range(size)]),
                (group.rank - 1) % size,
            ),
        ):
            assert got.shape == ()
            assert got == expected
        assert group.all_gather(mine).tolist() == list(range(size))
        assert group.scatter_v([np.array(7)] * size if group.rank == 0 else None) == 7
        for call in (group.reduce_scatter, group.all_to_all):
            with pytest.raises(UsageError, match=call.__name__):
                call(mine)
        group.barrier()

    ranked.groups(body)


def test_an_array_of_the_other_byte_order_is_refused_by_name_and_nothing_is_sent(ranked):
    def body(group):
        swapped = np.ones((group.world_size, 2), np.dtype(np.int32).newbyteorder("S"))
        root = {"scatter", "scatter_v"}
        for name, call in {
            "all_reduce": lambda: group.all_reduce(swapped),
            "reduce": lambda: group.reduce(swapped),
            "reduce_scatter": lambda: group.reduce_scatter(swapped),
            "broadcast": lambda: group.broadcast(swapped),
            "all_gather": lambda: group.all_gather(swapped),
            "gather": lambda: group.gather(swapped),
            "scatter": lambda: group.scatter(swapped),
            "scatter_v": lambda: group.scatter_v([*swapped]),
            "all_to_all": lambda: group.all_to_all(swapped),
            "all_to_all_v": lambda: group.all_to_all_v([*swapped]),
            "permute": lambda: group.permute(swapped, list(range(group.world_size))),
        }.items():
            if name in root and group.rank:
                continue  # what the others pass is not looked at, and they would wait
            with pytest.raises(UsageError, match=rf"{name}: the array's byte order is not this"):
                call()
        # The same array, converted, and the group unharmed.
        native = swapped.astype(swapped.dtype.newbyteorder("="))
        assert (group.all_reduce(native) == group.world_size).all()

    ranked.groups(body)


@pytest.mark.parametrize("size", [(1 << 20) - 1, 1 << 20, (1 << 20) + 1, (3 << 20) + 1])
def test_collectives_over_the_limit_of_one_mpi_message_are_whole(ranked, size):
    """One message of MPI is 1 MiB here; the other forms have no such limit."""

    def body(transport):
        group = ProcessGroup(transport, deadline=30.0)
        mine = np.random.Generator(np.random.Philox(key=group.rank)).integers(
            0, 256, size, dtype=np.uint8
        )
        everyone = group.all_gather(mine)
        got = group.broadcast(mine, root=group.world_size - 1)
        assert hashlib.sha256(got).digest() == hashlib.sha256(everyone[-1]).digest()
        total = group.all_reduce(mine)
        assert np.array_equal(total, everyone.sum(0, dtype=np.uint8))

    ranked.transports(body, mpi_chunk_bytes=1 << 20)
