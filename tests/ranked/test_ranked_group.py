"""The collectives against numpy, and their refusals, on every form."""

from __future__ import annotations

import numpy as np
import pytest

from rlx.errors import LimitExceeded, UsageError
from rlx.ir import ReduceOp

SIZES = [0, 1, 4095, 4096, 4097, 65535, 65536, 65537, (1 << 20) - 1, (1 << 20) + 1]
NUMPY = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


def integers(rank: int, size: int, dtype=np.int64) -> np.ndarray:
    generator = np.random.Generator(np.random.Philox(key=[rank, size]))
    return generator.integers(-1000, 1000, size).astype(dtype)


def floats(rank: int, size: int, dtype=np.float32) -> np.ndarray:
    generator = np.random.Generator(np.random.Philox(key=[rank, size]))
    return (generator.standard_normal(size) * 10.0 ** generator.integers(-3, 4, size)).astype(dtype)


def folded(op: str, arrays: list[np.ndarray]) -> np.ndarray:
    """What numpy gives, along the tree: split after the largest power of two below n."""
    if len(arrays) == 1:
        return arrays[0]
    half = 1 << (len(arrays) - 1).bit_length() - 1
    return NUMPY[op](folded(op, arrays[:half]), folded(op, arrays[half:]))


@pytest.mark.parametrize("op", ["sum", "max", "min"])
def test_integers_of_every_size_are_combined_exactly(ranked, op):
    def body(group):
        for size in [*SIZES, group.world_size - 1, group.world_size, group.world_size + 1]:
            everyone = [integers(rank, size) for rank in range(group.world_size)]
            got = group.all_reduce(everyone[group.rank], op)
            assert got.dtype == np.int64
            assert np.array_equal(got, NUMPY[op].reduce(everyone)), size

    ranked.groups(body)


@pytest.mark.parametrize("op", list(NUMPY))
@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "u1", "i4", "i8"])
def test_every_operator_and_dtype_follows_the_tree(ranked, op, dtype):
    def body(group):
        for size in (1, 7, 5000):
            make = floats if dtype.startswith("f") else integers
            everyone = [make(rank, size).astype(dtype) for rank in range(group.world_size)]
            with np.errstate(all="ignore"):
                expected = folded(op, everyone)
            got = group.all_reduce(everyone[group.rank], ReduceOp[op.upper()])
            assert got.tobytes() == expected.tobytes()

    ranked.groups(body)


def test_small_integers_wrap_as_numpy_does(ranked):
    def body(group):
        values = [120, 100]
        mine = np.array([values[group.rank] if group.rank < 2 else 0], np.int8)
        got = group.all_reduce(mine)
        assert got.tolist() == [-36 if group.world_size > 1 else 120]

    ranked.groups(body)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_half_precision_adds_in_float32_and_rounds_once(ranked, half):
    dtype = np.dtype(np.float16)
    if half == "bfloat16":
        dtype = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)

    def body(group):
        for size in (5, 20_000):
            everyone = [floats(rank, size).astype(dtype) for rank in range(group.world_size)]
            wide = folded("sum", [one.astype(np.float32) for one in everyone])
            got = group.all_reduce(everyone[group.rank])
            assert got.dtype == dtype
            assert got.tobytes() == wide.astype(dtype).tobytes()

    ranked.groups(body)


def test_the_mean_is_the_sum_divided_once(ranked):
    def body(group):
        everyone = [floats(rank, 9000) for rank in range(group.world_size)]
        got = group.all_reduce(everyone[group.rank], "mean")
        assert got.tobytes() == (folded("sum", everyone) / group.world_size).tobytes()
        with pytest.raises(UsageError, match="mean of int64 is no int64"):
            group.all_reduce(np.arange(3), "mean")

    ranked.groups(body)


def test_max_and_min_propagate_nan(ranked):
    def body(group):
        mine = np.array([1.0, np.nan if group.rank == group.world_size - 1 else 2.0, -0.0])
        for op in ("max", "min"):
            got = group.all_reduce(mine, op)
            assert got[0] == 1
            assert np.isnan(got[1])
            assert len(set(group.all_gather_bytes(got.tobytes()))) == 1

    ranked.groups(body)


def test_signed_zeros_and_infinities_add_as_numpy_adds_them(ranked):
    rows = [[-0.0, -0.0, 0.0, np.inf, -np.inf, np.inf], [-0.0, 0.0, -0.0, 1.0, -1.0, -np.inf]]

    def body(group):
        everyone = [np.array(rows[rank % 2], np.float32) for rank in range(group.world_size)]
        with np.errstate(invalid="ignore"):
            expected = folded("sum", everyone)
            got = group.all_reduce(everyone[group.rank])
        assert np.signbit(got[:3]).tolist() == np.signbit(expected[:3]).tolist()
        assert np.signbit(got[0]), "the sum of negative zeros is negative"
        assert np.array_equal(got, expected, equal_nan=True)
        assert len(set(group.all_gather_bytes(got.tobytes()))) == 1

    ranked.groups(body)


def test_booleans_have_max_and_min_alone(ranked):
    def body(group):
        mine = np.array([True, group.rank == 0, False])
        assert group.all_reduce(mine, "max").tolist() == [True, True, False]
        assert group.all_reduce(mine, "min").tolist() == [True, group.world_size == 1, False]
        with pytest.raises(UsageError, match="sum is not defined for bool"):
            group.all_reduce(mine)

    ranked.groups(body)


def test_the_same_bits_on_every_rank_every_time(ranked):
    values = [1e8, 1, -1e8, 1, 3]

    def body(group):
        mine = np.array([values[group.rank]], np.float32)
        return {group.all_reduce(mine).tobytes() for _ in range(20)}

    results = list(ranked.groups(body).values())
    expected = folded("sum", [np.array([one], np.float32) for one in values[: ranked.world_size]])
    assert all(result == {expected.tobytes()} for result in results)


def test_arrays_of_any_layout(ranked):
    def body(group):
        base = np.arange(24, dtype=np.float32).reshape(4, 6) + group.rank
        total = sum(range(group.world_size))
        for view in (base.T, base[:, ::2], base[::-1], np.broadcast_to(base[0], (3, 6))):
            got = group.all_reduce(view)
            expected = (view - group.rank) * group.world_size + total
            assert np.array_equal(got, expected)
        scalar = group.all_reduce(np.array(2.5, np.float64))
        assert (scalar.shape, float(scalar)) == ((), 2.5 * group.world_size)
        fixed = np.ones(3, np.float32)
        fixed.flags.writeable = False
        assert group.all_reduce(fixed).tolist() == [group.world_size] * 3

    ranked.groups(body)


def test_in_place_and_into_another_array(ranked):
    def body(group):
        for size in (3, 100_000):
            everyone = [floats(rank, size) for rank in range(group.world_size)]
            expected = folded("sum", everyone).tobytes()
            own, out = everyone[group.rank].copy(), np.empty(size, np.float32)
            assert group.all_reduce(own, out=out) is out
            assert own.tobytes() == everyone[group.rank].tobytes()
            assert out.tobytes() == expected
            assert group.all_reduce(own, out=own) is own
            assert own.tobytes() == expected

    ranked.groups(body)


def test_what_is_no_plain_array_is_refused_by_name(ranked):
    refusals = [
        ([1.0, 2.0], "takes a numpy array; got list"),
        (np.ma.masked_array([1.0]), "got MaskedArray"),
        (np.array([object()]), "dtype object is not supported"),
        (np.array(["a"]), "is not supported"),
        (np.array([1 + 2j]), "dtype complex128 is not supported"),
        (np.zeros(2, ">f4"), "byte order is not this machine's"),
    ]

    def body(group):
        for array, text in refusals:
            with pytest.raises(UsageError, match=text):
                group.all_reduce(array)
        good = np.ones(3, np.float32)
        for out in (np.ones(3), np.ones(4, np.float32), [1, 2, 3], np.ones(6, np.float32)[::2]):
            with pytest.raises(UsageError, match="out"):
                group.all_reduce(good, out=out)
        for op in ("product", None, 3):
            with pytest.raises(UsageError, match="the operator is"):
                group.all_reduce(good, op)
        for name in ("a" * 65, "line\nbreak", 3):
            with pytest.raises(UsageError, match="name"):
                group.all_reduce(good, name=name)
        # A refused call took no number: the ranks still agree.
        assert group.all_reduce(good).tolist() == [group.world_size] * 3

    ranked.groups(body)


def test_every_collective_refuses_what_is_no_plain_array(ranked):
    bad = {
        "list": [1.0, 2.0],
        "MaskedArray": np.ma.masked_array([1.0] * 30),
        "dtype object": np.array([object()] * 30),
        "byte order": np.zeros(30, ">i4"),
    }

    def body(group):
        size, here = group.world_size, group.rank
        uses = {
            "all_reduce": group.all_reduce,
            "reduce": group.reduce,
            "reduce_scatter": group.reduce_scatter,
            "broadcast": group.broadcast,
            "all_gather": group.all_gather,
            "gather": group.gather,
            "scatter": lambda array: group.scatter(array, root=here),
            "scatter_v": lambda array: group.scatter_v([array] * size, root=here),
            "all_to_all": group.all_to_all,
            "all_to_all_v": lambda array: group.all_to_all_v([array] * size),
            "permute": lambda array: group.permute(array, list(range(size))),
        }
        for name, use in uses.items():
            for text, array in bad.items():
                with pytest.raises(UsageError, match=f"{name}.*{text}"):
                    use(array)
        group.barrier()

    ranked.groups(body)


def test_reduce_and_reduce_scatter(ranked):
    def body(group):
        size = 6 * group.world_size
        everyone = [floats(rank, size) for rank in range(group.world_size)]
        expected = folded("sum", everyone)
        root = group.world_size - 1
        got = group.reduce(everyone[group.rank], root=root)
        assert (got is None) == (group.rank != root)
        assert got is None or got.tobytes() == expected.tobytes()
        part = group.reduce_scatter(everyone[group.rank])
        assert part.tobytes() == expected[group.rank * 6 : (group.rank + 1) * 6].tobytes()
        with pytest.raises(UsageError, match="multiple of the world size"):
            group.reduce_scatter(np.array(1.0))

    ranked.groups(body)


def test_broadcast_gather_and_scatter(ranked):
    def body(group):
        rank, last = group.rank, group.world_size - 1
        mine = np.full((2, 3), rank, np.int32)
        assert group.broadcast(mine, root=last).tolist() == [[last] * 3] * 2
        out = mine.copy()
        assert group.broadcast(out, root=0, out=out) is out
        assert not out.any()
        everything = np.arange(group.world_size, dtype=np.int32)
        everything = everything.repeat(6).reshape(-1, 2, 3)
        assert np.array_equal(group.all_gather(mine), everything)
        gathered = group.gather(mine, root=last)
        assert gathered is None if rank != last else np.array_equal(gathered, everything)
        got = group.scatter(everything if rank == 0 else None)
        assert np.array_equal(got, mine)
        parts = [np.arange(peer, dtype=np.float64) for peer in range(group.world_size)]
        assert group.scatter_v(parts if rank == last else None, root=last).shape == (rank,)

    ranked.groups(body)


def test_all_to_all_and_permute(ranked):
    def body(group):
        rank, size = group.rank, group.world_size
        mine = np.array([[rank * 100 + peer] * 3 for peer in range(size)])
        got = group.all_to_all(mine)
        assert got.tolist() == [[peer * 100 + rank] * 3 for peer in range(size)]
        parts = [np.full((rank, peer), rank, np.float32) for peer in range(size)]
        for peer, part in enumerate(group.all_to_all_v(parts)):
            assert part.shape == (peer, rank)
            assert (part == peer).all()
        destinations = [(peer + 1) % size for peer in range(size)]
        moved = group.permute(np.array([rank]), destinations)
        assert moved.tolist() == [(rank - 1) % size]
        with pytest.raises(UsageError, match="no permutation"):
            group.permute(np.array([rank]), [0] * size if size > 1 else [1])

    ranked.groups(body)


def test_bytes_from_one_rank_to_another_and_to_all(ranked):
    def body(group):
        rank, size = group.rank, group.world_size
        texts = [b"x" * (peer * 1000) for peer in range(size)]
        assert group.all_gather_bytes(texts[rank]) == texts
        right, left = (rank + 1) % size, (rank - 1) % size
        if size > 1:
            group.send(right, b"hello from %d" % rank)
            assert group.receive(left) == b"hello from %d" % left
        group.barrier()
        with pytest.raises(UsageError, match="no rank 99"):
            group.send(99, b"")

    ranked.groups(body)


def test_a_view_of_wider_items_is_sent_as_its_bytes(ranked):
    def body(group):
        group.send(group.rank, memoryview(np.arange(3.0)))
        assert group.receive(group.rank) == np.arange(3.0).tobytes()

    ranked.groups(body)


def test_more_bytes_than_the_limit_are_refused(ranked):
    def body(group):
        if group.world_size == 1:
            return
        if group.rank == 0:
            group.send(1, b"x" * 100)
        if group.rank == 1:
            with pytest.raises(LimitExceeded, match="100 bytes"):
                group.receive(0, limit_bytes=99)

    ranked.groups(body)


def test_arguments_of_the_wrong_kind_are_refused_before_the_call(ranked):
    def body(group):
        one = np.ones(1, np.float32)
        for use in (
            lambda: group.permute(one, ["a"] * group.world_size),
            lambda: group.permute(one, 3),
            lambda: group.all_to_all_v(3),
            lambda: group.scatter_v(5, root=group.rank),
            lambda: group.send(0, "text"),
            lambda: group.all_gather_bytes("text"),
            lambda: group.empty(-1),
            lambda: group.all_to_all(np.array(1.0)),
        ):
            with pytest.raises(UsageError):
                use()
        scalar = group.permute(np.array(1.0), list(range(group.world_size)))
        assert scalar.shape == ()
        group.barrier()

    ranked.groups(body)
