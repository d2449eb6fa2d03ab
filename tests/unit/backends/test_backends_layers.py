"""Layers that are compositions of ops, against their definition in float64."""

import numpy as np
import pytest
from backends_support import DISGUISES, FLOATS, assert_close, numbers, run_op

from rlx.backends import numpy_dtype
from rlx.errors import GraphError
from rlx.ir import DType, Graph


def normalised(x, gain=1.0, bias=0.0, epsilon=1e-5):
    x = x.astype(np.float64)
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * gain + bias


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_layer_norm_is_its_definition(dtype):
    rng = np.random.default_rng(1)
    x = numbers(rng, (4, 3, 16), dtype, -2, 2)
    gain, bias = numbers(rng, (16,), dtype, 0.5, 2), numbers(rng, (16,), dtype, 3, 4)
    found, oracle = run_op(lambda g, v, a, b: g.layer_norm(v, a, b), x, gain, bias)
    assert found.dtype == x.dtype
    assert_close(found, normalised(x, gain.astype(np.float64), bias.astype(np.float64)), 64)
    assert_close(found, oracle, 64)


def test_layer_norm_without_gain_and_bias_has_mean_0_and_variance_1():
    x = numbers(np.random.default_rng(2), (5, 64), DType.F32, -2, 2)
    found, _ = run_op(lambda g, v: g.layer_norm(v, epsilon=1e-12), x)
    assert np.allclose(found.mean(-1), 0, atol=1e-6)
    assert np.allclose(found.var(-1), 1, atol=1e-5)


def test_a_constant_row_is_normalised_to_zeros():
    found, _ = run_op(lambda g, v: g.layer_norm(v), np.full((2, 8), 3, np.float32))
    assert (found == 0).all()


@pytest.mark.parametrize("how", DISGUISES)
@pytest.mark.parametrize("shape", [(5,), (3, 1), (0, 4), (2, 0), (2, 3, 16), (40, 130)], ids=str)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=str)
def test_normalisation_is_its_definition(dtype, shape, how):
    x = numbers(np.random.default_rng(3), shape, dtype, -2, 2)
    for epsilon in (1e-5, 1.0):
        found, oracle = run_op(lambda g, v, e=epsilon: g.normalize(v, e), x, how=how)
        expected = normalised(x, epsilon=epsilon) if x.size else x
        close = {"rtol": 0, "atol": 64 * np.finfo(x.dtype).eps}
        np.testing.assert_allclose(found, expected, **close)
        np.testing.assert_allclose(oracle, expected, **close)


@pytest.mark.parametrize("value", [-0.1, 1 / 3, 1000.1])
def test_a_constant_row_is_off_by_no_more_than_its_mean_is(value):
    """The mean of equal numbers may be off by one rounding of theirs, and all of them with it."""
    x = np.full((3, 7), value, np.float32)
    found, _ = run_op(lambda g, v: g.layer_norm(v), x)
    assert np.abs(found).max() <= 2**-23 * abs(value) / np.sqrt(1e-5)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=str)
def test_rows_of_huge_numbers_are_normalised_until_their_squares_overflow(dtype):
    root = float(np.sqrt(np.finfo(numpy_dtype(dtype)).max))
    x = np.array([[0.1, -0.1], [2.0, -2.0], [1.0, -1.0]]).astype(numpy_dtype(dtype))
    x[:2] *= root
    found, _ = run_op(lambda g, v: g.layer_norm(v), x)
    np.testing.assert_allclose(found[0], [1, -1], rtol=1e-6)
    np.testing.assert_array_equal(found[1], [0, 0])
    np.testing.assert_allclose(found[2], [1, -1], rtol=1e-5)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_row_with_an_odd_number_is_nan_and_no_other(odd):
    x = numbers(np.random.default_rng(4), (3, 8), DType.F32)
    x[1, 2] = odd
    found, _ = run_op(lambda g, v: g.layer_norm(v), x)
    assert np.isnan(found).all(1).tolist() == [False, True, False]
    assert not np.isnan(found[[0, 2]]).any()


def test_layer_norm_of_half_precision_does_not_overflow():
    """300 squared is beyond float16."""
    x = np.array([[300, -300, 300, -300]], np.float16)
    found, _ = run_op(lambda g, v: g.layer_norm(v), x)
    assert found.tolist() == [[1, -1, 1, -1]]


WRONG = {
    "integers": (
        lambda g, x: g.layer_norm(x.cast(DType.I32)),
        "takes floats with an axis; got I32",
    ),
    "no axis": (lambda g, x: g.layer_norm(x.sum()), "with an axis"),
    "epsilon": (lambda g, x: g.layer_norm(x, epsilon=0.0), "epsilon is positive and finite"),
    "gain": (
        lambda g, x: g.layer_norm(x, g.param("gain", [3], DType.F64)),
        "x is F32, but got a F64 too",
    ),
    "bias": (lambda g, x: g.layer_norm(x, None, g.param("bias", [4])), "do not broadcast"),
}


@pytest.mark.parametrize(("build", "says"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_is_refused_where_it_is_built(build, says):
    graph = Graph("wrong")
    with pytest.raises(GraphError, match=says):
        build(graph, graph.input("x", ["batch", 3]))
