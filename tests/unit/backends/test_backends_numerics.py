"""Numbers at the edge, by each backend: infinities, NaN, sums that would wrap or overflow."""

from importlib.util import find_spec

import backends_support
import numpy as np
import pytest
from backends_support import assert_close, run_op

from rlx.backends import numpy_dtype
from rlx.ir import BinaryOp, DType, ReduceOp, UnaryOp

LOGITS = np.array([[-1047, -981, 1891]], np.float32)
LABEL = np.array([0], np.int64)


@pytest.fixture(autouse=True, params=["numpy", "jax"])
def backend(request, monkeypatch):
    """What `run_op` compares with the oracle."""
    if find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    monkeypatch.setattr(backends_support, "BACKEND", request.param)


def unary(op):
    return lambda graph, x: graph.unary(op, x)


def test_cross_entropy_of_large_logits_is_their_difference():
    (loss,), _ = run_op(lambda g, x, y: g.cross_entropy(x, y), LOGITS, LABEL)
    assert loss == 2938
    assert loss.dtype == np.float32


def test_softmax_of_large_logits_is_a_choice():
    found, _ = run_op(lambda g, x: g.softmax(x, 1), LOGITS)
    np.testing.assert_array_equal(found, [[0, 0, 1]])
    found, _ = run_op(lambda g, x: g.log_softmax(x, 1), LOGITS)
    np.testing.assert_array_equal(found, [[-2938, -2872, 0]])


def test_the_plain_formula_would_have_overflowed():
    with np.errstate(all="ignore"):
        plain = np.exp(LOGITS) / np.exp(LOGITS).sum()
    assert np.isnan(plain).any()


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16], ids=str)
def test_half_precision_logits_give_a_finite_single_precision_loss(dtype):
    logits = np.array([[60000, -60000]]).astype(numpy_dtype(dtype))
    (loss,), _ = run_op(lambda g, x, y: g.cross_entropy(x, y), logits, np.array([1]))
    assert loss.dtype == np.float32
    assert loss == float(logits[0, 0]) * 2


def test_the_mean_of_large_integers_does_not_wrap():
    x = np.full(2, 2**31 - 1, np.int32)
    found, _ = run_op(lambda g, v: v.mean(), x)
    assert found.dtype == np.float64
    assert found == 2147483647.0


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32], ids=str)
def test_sums_and_products_of_integers_are_wide(dtype):
    top = np.iinfo(dtype).max
    x = np.full(4, top, dtype)
    found, _ = run_op(lambda g, v: v.sum(), x)
    assert found.dtype == np.int64
    assert found == 4 * top
    found, _ = run_op(lambda g, v: g.reduce(ReduceOp.PROD, v, [0]), x[:2])
    assert found == top * top


def test_a_sum_of_halves_is_accumulated_in_single_precision():
    """In F16 the sum would stop at 2048, where 1 is half a unit in the last place."""
    x = np.ones(4096, np.float16)
    found, _ = run_op(lambda g, v: v.sum(), x)
    assert found == 4096
    assert np.cumsum(x)[-1] == 2048


def test_a_mean_of_halves_survives_a_sum_beyond_their_range():
    x = np.full(8, 60000, np.float16)
    found, _ = run_op(lambda g, v: v.mean(), x)
    assert found == 60000


def test_a_product_of_half_matrices_is_accumulated_in_single_precision():
    a = np.full((1, 64), 64, np.float16)
    found, _ = run_op(lambda g, x, y: x @ y, a, np.concatenate([a, -a * 0.99]).T[:, :1])
    assert np.isinf(found)
    b = np.where(np.arange(64) % 2, -63, 64).astype(np.float16)
    found, _ = run_op(lambda g, x, y: x @ y, a * 16, b[:, None])
    assert found == 64 * 16 * 32


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64], ids=str)
def test_sigmoid_neither_overflows_nor_loses_small_values(dtype):
    x = np.array([-np.inf, -1e4, -10, 0, 10, 1e4, np.inf, np.nan], dtype)
    found, oracle = run_op(unary(UnaryOp.SIGMOID), x)
    np.testing.assert_array_equal(found[[0, 1, 3, 5, 6]], [0, 0, 0.5, 1, 1])
    assert np.isnan(found[7])
    # As F16 this value is subnormal: its unit in the last place is 2^-24.
    unit = 2**-24 if dtype is np.float16 else 1e-4 * float(np.finfo(dtype).eps)
    assert found[2] == pytest.approx(4.5397868702434395e-05, rel=0, abs=unit)
    assert_close(found, oracle)


def test_relu_and_extremes_let_nan_through():
    x = np.array([np.nan, -1, 2], np.float32)
    np.testing.assert_array_equal(run_op(unary(UnaryOp.RELU), x)[0], [np.nan, 0, 2])
    for op in (BinaryOp.MAX, BinaryOp.MIN):
        found, _ = run_op(lambda g, a, op=op: g.binary(op, a, a * 0.0 + 5.0), x)
        assert np.isnan(found[0])
    for op in (ReduceOp.MAX, ReduceOp.MIN):
        assert np.isnan(run_op(lambda g, a, op=op: g.reduce(op, a, [0]), x)[0])


def test_ieee_results_are_silent():
    """`run_op` turns every warning into a failure."""
    x = np.array([0, -1, np.inf], np.float32)
    np.testing.assert_array_equal(run_op(unary(UnaryOp.LOG), x)[0], [-np.inf, np.nan, np.inf])
    np.testing.assert_array_equal(run_op(unary(UnaryOp.SQRT), x)[0], [0, np.nan, np.inf])
    found, _ = run_op(lambda g, a: a / (a * 0.0), x)
    assert np.isnan(found[0])
    assert np.isinf(found[1])
    big = np.array([1e30], np.float32)
    assert np.isinf(run_op(lambda g, a: a * a, big)[0][0])
    assert np.isinf(run_op(lambda g, a: g.cast(a, DType.F16), big)[0][0])


def test_a_mean_of_nothing_is_nan_and_a_sum_of_nothing_is_zero():
    nothing = np.zeros((0, 2), np.float32)
    assert np.isnan(run_op(lambda g, a: a.mean(0), nothing)[0]).all()
    np.testing.assert_array_equal(run_op(lambda g, a: a.sum(0), nothing)[0], [0, 0])
    np.testing.assert_array_equal(
        run_op(lambda g, a: g.reduce(ReduceOp.PROD, a, [0]), nothing)[0], [1, 1]
    )


def test_gelu_is_the_tanh_form():
    found, _ = run_op(unary(UnaryOp.GELU), np.array([-1.0, 0.0, 1.0, 100.0, -100.0]))
    expected = [-0.15880800939172324, 0, 0.8411919906082768, 100, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-15)
    erf_form = 0.8413447460685429
    assert abs(found[2] - erf_form) > 1e-4


@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_of_a_row_without_finite_values_is_nan_as_ieee_has_it(axis):
    x = np.full((2, 2), -np.inf)
    assert np.isnan(run_op(lambda g, a: g.softmax(a, axis), x)[0]).all()


def test_a_masked_class_has_probability_zero():
    x = np.array([[0.0, -np.inf, 0.0]])
    np.testing.assert_array_equal(run_op(lambda g, a: g.softmax(a, 1), x)[0], [[0.5, 0, 0.5]])
    (loss,), _ = run_op(lambda g, a, y: g.cross_entropy(a, y), x, np.array([2]))
    assert loss == pytest.approx(np.log(2))


def test_logits_beside_which_the_logarithm_of_the_sum_is_lost():
    """log(2) is less than half a unit of 1e30, in long double too."""
    x = np.array([[1e30, 1e30, 0]])
    found, oracle = run_op(lambda g, a: g.log_softmax(a, 1), x)
    for one in (found, oracle):
        np.testing.assert_allclose(one, [[-np.log(2), -np.log(2), -1e30]], rtol=1e-15)
    for label, expected in ((0, np.log(2)), (2, 1e30)):
        for loss in run_op(lambda g, a, y: g.cross_entropy(a, y), x, np.array([label])):
            assert loss == pytest.approx(expected, rel=1e-15)


def test_a_truth_as_a_factor_of_zero_does_not_hide_what_is_not_finite():
    x = np.array([[1, 2, np.nan, -np.inf]], np.float32)
    found, _ = run_op(lambda g, p, a: p.cast(a.dtype) * a, np.array([[True] + [False] * 3]), x)
    np.testing.assert_array_equal(found, [[1, 0, np.nan, np.nan]])
    found, _ = run_op(lambda g, i, a: g.one_hot(i, 4) * a, np.array([0]), x)
    np.testing.assert_array_equal(found, [[1, 0, np.nan, np.nan]])
