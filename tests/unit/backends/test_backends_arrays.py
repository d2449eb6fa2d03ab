"""Reductions, products, shaping, indexing and softmax against numpy and scipy."""

import numpy as np
import pytest
import scipy.special
from backends_support import (
    DISGUISES,
    EPSILON,
    FLOATS,
    INTEGERS,
    NAMES,
    assert_close,
    assert_same_bits,
    numbers,
    run_op,
)

from rlx.backends import KERNELS, ORACLE, Session, evaluate
from rlx.errors import DataError, UsageError
from rlx.ir import CATALOGUE, DType, Graph, Op, ReduceOp

REDUCE = {
    ReduceOp.SUM: np.sum,
    ReduceOp.MEAN: np.mean,
    ReduceOp.MAX: np.max,
    ReduceOp.MIN: np.min,
    ReduceOp.PROD: np.prod,
}
AXES = [(), (0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)]


def wide(x):
    return x.astype(np.float64)


def test_every_op_of_the_catalogue_has_a_kernel_and_an_oracle():
    assert set(KERNELS) == set(CATALOGUE) == set(Op)
    assert set(ORACLE) == set(CATALOGUE)
    for op, kernel in KERNELS.items():
        assert kernel.build or kernel.fill or kernel.lower or op in (Op.INPUT, Op.PARAM), op


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
@pytest.mark.parametrize("op", REDUCE, ids=str)
def test_a_reduction_is_numpys(op, dtype, axes, keepdims):
    x = numbers(np.random.default_rng(1), (3, 4, 5), dtype, 0.6, 1.4)
    found, oracle = run_op(lambda g, v: g.reduce(op, v, axes, keepdims), x)
    source = wide(x) if dtype.is_float else x
    expected = REDUCE[op](source, axis=axes, keepdims=keepdims)
    assert_close(found, expected, 16)
    assert_close(found, oracle, 16)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (1, 2), (2,)], ids=str)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
@pytest.mark.parametrize("op", REDUCE, ids=str)
def test_a_reduction_of_few_places_and_long_rows_is_numpys(op, dtype, axes, keepdims):
    x = numbers(np.random.default_rng(5), (3, 4, 16), dtype, 0.6, 1.4)
    found, oracle = run_op(lambda g, v: g.reduce(op, v, axes, keepdims), x, how="transposed")
    source = wide(x) if dtype.is_float else x
    assert_close(found, REDUCE[op](source, axis=axes, keepdims=keepdims), 16)
    assert_close(found, oracle, 16)


def test_a_maximum_of_few_places_propagates_nan():
    x = np.ones((4, 16), np.float32)
    x[2, 5] = np.nan
    for op in (ReduceOp.MAX, ReduceOp.MIN):
        found, _ = run_op(lambda g, v, op=op: g.reduce(op, v, [0]), x)
        assert np.isnan(found).tolist() == [place == 5 for place in range(16)]


@pytest.mark.parametrize("how", DISGUISES)
@pytest.mark.parametrize("op", REDUCE, ids=str)
def test_a_reduction_takes_operands_of_any_layout(op, how):
    x = numbers(np.random.default_rng(2), (3, 4, 5), DType.F32, 0.5, 2)
    found, _ = run_op(lambda g, v: g.reduce(op, v, [0, 2]), x, how=how)
    assert_close(found, REDUCE[op](wide(x), axis=(0, 2)), 16)


def test_truths_are_counted_and_averaged():
    x = np.array([True, True, False, True])
    assert run_op(lambda g, v: v.sum(), x)[0] == 3
    assert run_op(lambda g, v: v.mean(), x)[0] == 0.75


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("how", DISGUISES)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_argmax_finds_the_first_maximum(dtype, how, axis):
    x = numbers(np.random.default_rng(3), (6, 7), dtype)
    x[2], x[:, 3] = x[1], x[:, 1]
    found, _ = run_op(lambda g, v: g.argmax(v, axis), x, how=how)
    assert_same_bits(found, np.argmax(wide(x), axis=axis))


def test_a_maximum_of_nothing_names_its_node():
    graph = Graph("nothing")
    x = graph.input("x", ["n", 3])
    graph.set_outputs([x.max(0)])
    executable = Session().compile(graph)
    with pytest.raises(UsageError, match=r"%1 = reduce_max.*maximum or minimum of nothing.*0, 3"):
        executable.run({"x": np.zeros((0, 3), np.float32)})
    (empty,) = executable.run({"x": np.ones((2, 3), np.float32)})
    np.testing.assert_array_equal(empty, [1, 1, 1])


@pytest.mark.parametrize("op", [ReduceOp.MAX, ReduceOp.MIN], ids=str)
def test_maxima_of_nothing_are_none_where_there_are_no_rows(op):
    nothing = np.zeros((0, 3, 0), np.float32)
    for axes, shape in (((2,), (0, 3)), ((1, 2), (0,)), ((1,), (0, 0))):

        def build(graph, x, axes=axes):
            return graph.reduce(op, x, axes)

        graph = Graph("none")
        graph.set_outputs([build(graph, graph.input("x", ["n", 3, "m"]))])
        (found,) = Session().compile(graph).run({"x": nothing})
        (oracle,) = evaluate(graph, {"x": nothing})
        assert found.shape == oracle.shape == shape
    graph = Graph("no place")
    graph.set_outputs([graph.argmax(graph.input("x", ["n", 3, "m"]), 2)])
    (found,), (oracle,) = (
        Session().compile(graph).run({"x": nothing}),
        evaluate(graph, {"x": nothing}),
    )
    assert_same_bits(found, oracle)


@pytest.mark.parametrize("how", DISGUISES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 4), (4, 5)),
        ((1, 4), (4, 1)),
        ((3, 1), (1, 5)),
        ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (1, 4, 5)),
        ((3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (6, 4, 5)),
        ((0, 4), (4, 5)),
        ((3, 0), (0, 5)),
        ((0, 3, 4), (4, 5)),
    ],
    ids=str,
)
def test_a_matrix_product_is_numpys(left, right, dtype, how):
    rng = np.random.default_rng(4)
    a, b = numbers(rng, left, dtype), numbers(rng, right, dtype)
    found, _ = run_op(lambda g, x, y: x @ y, a, b, how=how)
    expected = wide(a) @ wide(b)
    scale = np.abs(wide(a)) @ np.abs(wide(b))
    assert found.shape == expected.shape
    assert (np.abs(wide(found) - expected) <= 4 * EPSILON[dtype] * scale + 1e-300).all()


def test_a_matrix_product_takes_broadcast_operands():
    a, b = np.float32([[1], [2]]), np.float32([[3, 4, 5]])

    def build(graph, x, y):
        return graph.broadcast_to(x, [2, 6]) @ graph.broadcast_to(y, [6, 3])

    assert_same_bits(run_op(build, a, b)[0], np.float32([[18, 24, 30], [36, 48, 60]]))


def test_a_product_with_the_own_transpose_is_right():
    a = numbers(np.random.default_rng(5), (20, 30), DType.F64)
    found, _ = run_op(lambda g, x: x @ x.transpose(), a)
    np.testing.assert_allclose(found, a @ a.T, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("how", DISGUISES)
def test_shaping_moves_every_element_to_its_place(how):
    x = numbers(np.random.default_rng(6), (4, 6), DType.I32)
    builds = {
        "reshape": (lambda g, v: v.reshape(2, -1, 3), x.reshape(2, -1, 3)),
        "transpose": (lambda g, v: v.transpose(), x.T),
        "both": (lambda g, v: v.transpose().reshape(8, 3), x.T.reshape(8, 3)),
        "broadcast": (lambda g, v: g.broadcast_to(v, [3, 4, 6]), np.broadcast_to(x, (3, 4, 6))),
        "copied": (lambda g, v: g.broadcast_to(v, [3, 4, 6]).reshape(-1), np.tile(x.ravel(), 3)),
        "slice": (lambda g, v: v[1:3, ::-2], x[1:3, ::-2]),
        "index": (lambda g, v: v[..., -1], x[..., -1]),
        "concat": (lambda g, v: g.concat([v, v[:, :0], v], 1), np.concatenate([x, x], 1)),
    }
    for build, expected in builds.values():
        assert_same_bits(run_op(build, x, how=how)[0], expected)


@pytest.mark.parametrize("dtype", list(DType), ids=str)
def test_shaping_and_indexing_move_every_dtype(dtype):
    x = numbers(np.random.default_rng(7), (4, 3), dtype)
    rows = np.array([2, 0, 2, 3, 1])
    assert_same_bits(run_op(lambda g, v: v.transpose().reshape(-1), x)[0], x.T.reshape(-1))
    assert_same_bits(run_op(lambda g, v: g.concat([v, v], 0), x)[0], np.concatenate([x, x]))
    assert_same_bits(run_op(lambda g, v, i: g.gather(v, i), x, rows)[0], x[rows])
    spread = np.zeros((9, 3), x.dtype)
    spread[1::2] = x
    build = lambda g, v: g.unslice(v, [9, 3], [1, None], [None, None], [2, None])  # noqa: E731
    assert_same_bits(run_op(build, x)[0], spread)
    hot, _ = run_op(lambda g, i: g.one_hot(i, 4, dtype), rows)
    assert_same_bits(hot, np.eye(4)[rows].astype(x.dtype))


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3)], ids=str)
@pytest.mark.parametrize("index_dtype", [np.int32, np.int64], ids=str)
def test_rows_are_gathered_and_scattered_by_number(shape, index_dtype):
    rng = np.random.default_rng(8)
    table = numbers(rng, (4, 3, 2), DType.F64)
    indices = np.asarray(rng.integers(0, 4, shape)).astype(index_dtype)
    assert_same_bits(run_op(lambda g, t, i: g.gather(t, i), table, indices)[0], table[indices])
    updates = numbers(rng, (*shape, 3, 2), DType.F64)
    found, _ = run_op(lambda g, u, i: g.scatter_add(u, i, 4), updates, indices)
    expected = np.zeros((4, 3, 2))
    np.add.at(expected, indices, updates)
    assert_same_bits(found, expected)


@pytest.mark.parametrize("index_dtype", [np.int32, np.int64], ids=str)
@pytest.mark.parametrize("how", DISGUISES)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, DType.BOOL], ids=str)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,), (3, 0)], ids=str)
def test_an_element_of_each_row_is_picked(shape, dtype, how, index_dtype):
    rng = np.random.default_rng(13)
    values = numbers(rng, (*shape, 7), dtype)
    indices = np.asarray(rng.integers(0, 7, shape)).astype(index_dtype)
    found, oracle = run_op(lambda g, v, i: g.pick(v, i), values, indices, how=how)
    expected = np.zeros(shape, values.dtype)
    for place in np.ndindex(shape):
        expected[place] = values[place][indices[place]]
    assert_same_bits(found, expected)
    assert_same_bits(oracle, expected)


@pytest.mark.parametrize("how", DISGUISES)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_updates_of_one_row_are_added_in_order(dtype, how):
    rng = np.random.default_rng(9)
    updates, indices = numbers(rng, (50, 3), dtype), rng.integers(0, 4, 50)
    found, _ = run_op(lambda g, u, i: g.scatter_add(u, i, 5), updates, indices, how=how)
    sums = np.zeros((5, 3), np.float32 if dtype in (DType.F16, DType.BF16) else updates.dtype)
    for row, update in zip(indices, updates, strict=True):
        sums[row] += update.astype(sums.dtype)
    assert_same_bits(found, sums.astype(updates.dtype))


def gather(graph, table, indices):
    return graph.gather(table, indices)


def scatter(graph, table, indices):
    return graph.scatter_add(table[:2], indices, 3)


def one_hot(graph, table, indices):
    return graph.one_hot(indices, 3)


def pick(graph, table, indices):
    return graph.pick(table[:2], indices)


def cross_entropy(graph, table, indices):
    return graph.cross_entropy(table[:2], indices)


@pytest.mark.parametrize("wrong", [-1, 3, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("dtype", [np.int32, np.int64], ids=str)
@pytest.mark.parametrize("build", [gather, scatter, one_hot, pick, cross_entropy])
def test_an_index_out_of_range_is_named(build, dtype, wrong):
    table = np.ones((3, 3), np.float32)
    assert run_op(build, table, np.array([2, 0], dtype))[0].size
    with pytest.raises(DataError, match=rf"index {wrong} at \[1\].*0 to 2") as caught:
        run_op(build, table, np.array([0, wrong], dtype))
    assert any(op.value in str(caught.value) for op in Op)


@pytest.mark.parametrize("build", [gather, scatter, one_hot, cross_entropy])
def test_an_index_out_of_range_is_said_with_the_input_it_is_from(build):
    """Also where it is a part of the input, converted; an index that is computed is of none."""
    for change, source in (
        (lambda graph, i: graph.transpose(i).reshape(2), ", indices from input 'x1'"),
        (lambda graph, i: i.reshape(2)[::-1].cast(DType.I64), ", indices from input 'x1'"),
        (lambda graph, i: i.reshape(2) + graph.scalar(1, DType.I32), ""),
    ):

        def changed(graph, table, indices, change=change):
            return build(graph, table, change(graph, indices))

        with pytest.raises(DataError, match=rf"\(%\d+\){source}: the index \d+ at") as caught:
            run_op(changed, np.ones((3, 3), np.float32), np.array([[0, 7]], np.int32))
        assert str(caught.value).endswith("legal is 0 to 2")


def test_an_index_into_no_rows_is_an_error():
    for build in (pick, lambda g, table, i: g.one_hot(i, 0)):
        with pytest.raises(DataError, match=r"index 0 at \[0\] is out of range.*nothing"):
            run_op(build, np.ones((2, 0), np.float32), np.array([0, 0]))
        run_op(build, np.ones((0, 0), np.float32), np.zeros(0, np.int64))
    with pytest.raises(DataError, match="there are no rows"):
        run_op(gather, np.ones((0, 3), np.float32), np.array([0]))
    assert run_op(gather, np.ones((0, 3), np.float32), np.zeros(0, np.int64))[0].shape == (0, 3)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("how", DISGUISES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax_is_scipys(dtype, how, axis):
    x = numbers(np.random.default_rng(10), (3, 4, 5), dtype, -8, 8)
    found, _ = run_op(lambda g, v: g.softmax(v, axis), x, how=how)
    assert_close(found, scipy.special.softmax(wide(x), axis=axis), 16)
    found, _ = run_op(lambda g, v: g.log_softmax(v, axis), x, how=how)
    expected = scipy.special.log_softmax(wide(x), axis=axis)
    np.testing.assert_allclose(wide(found), expected, rtol=0, atol=32 * EPSILON[dtype])


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)], ids=str)
def test_softmax_of_nothing_is_nothing(shape):
    x = np.zeros(shape)
    assert run_op(lambda g, v: g.softmax(v, 0), x)[0].shape == shape
    assert run_op(lambda g, v: g.log_softmax(v, 0), x)[0].shape == shape


@pytest.mark.parametrize("how", DISGUISES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (0,)], ids=str)
def test_cross_entropy_is_minus_the_log_softmax_at_the_label(shape, dtype, how):
    rng = np.random.default_rng(11)
    x = numbers(rng, (*shape, 7), dtype, -8, 8)
    labels = np.asarray(rng.integers(0, 7, shape)).astype(np.int32)
    found, oracle = run_op(lambda g, v, y: g.cross_entropy(v, y), x, labels, how=how)
    log_probabilities = scipy.special.log_softmax(wide(x), axis=-1)
    expected = -np.take_along_axis(log_probabilities, labels[..., None].astype(int), -1)[..., 0]
    close = {"rtol": 0, "atol": 32 * EPSILON[NAMES[found.dtype]]}
    np.testing.assert_allclose(found, expected, **close)
    np.testing.assert_allclose(found, oracle, **close)


def test_a_size_is_the_value_of_its_dimension():
    graph = Graph("size")
    x = graph.input("x", ["batch", "time"])
    sizes = [graph.size("batch*time-1", dtype) for dtype in (DType.F32, DType.I64, DType.I8)]
    graph.set_outputs([*sizes, x])
    executable = Session().compile(graph)
    values = executable.run({"x": np.zeros((3, 4), np.float32)})
    assert [value.dtype for value in values[:3]] == [np.float32, np.int64, np.int8]
    assert all(value == 11 for value in values[:3])
    with pytest.raises(UsageError, match="the size is 399, which I8 does not hold"):
        executable.run({"x": np.zeros((20, 20), np.float32)})
