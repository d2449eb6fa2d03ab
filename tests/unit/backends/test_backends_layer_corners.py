"""Layers where their operands are empty, single, infinite, NaN, huge, or tied."""

import warnings

import numpy as np
import pytest
from backends_support import FLOATS, INTEGERS, assert_close, assert_same_bits, numbers, run_op

from rlx.backends import Session, evaluate, numpy_dtype
from rlx.errors import DataError, GraphError
from rlx.ir import DType, Graph, UnaryOp
from rlx.ir.layers import DROPOUT_KEY

HALVES = [DType.F16, DType.BF16]
KEY = np.array([1, 2, 3])


def image(*shape, dtype=DType.F32, seed=1):
    return numbers(np.random.default_rng(seed), shape, dtype, 0.5, 2)


def convolve(**options):
    return lambda graph, x, kernel: graph.conv2d(x, kernel, **options)


# Convolution and pooling.


def test_a_stride_beyond_the_kernel_leaves_elements_out():
    x = image(1, 7, 7, 1)
    found, _ = run_op(convolve(stride=3), x, np.ones((1, 1, 1, 1), np.float32))
    assert_same_bits(found, x[:, ::3, ::3])
    found, _ = run_op(lambda g, v: g.max_pool(v, 2, stride=4), x)
    assert found[0, :, :, 0].tolist() == [
        [x[0, row : row + 2, column : column + 2].max() for column in (0, 4)] for row in (0, 4)
    ]


@pytest.mark.parametrize("shape", [(3, 1, 1, 1), (1, 3, 1, 1), (4, 4, 1, 2)], ids=str)
def test_a_kernel_larger_than_the_image_is_refused_and_fits_with_padding(shape):
    graph = Graph("large")
    x, kernel = graph.input("x", ["n", 2, 2, 1]), graph.input("w", shape)
    with pytest.raises(GraphError, match=r"window of [34] is longer than axis [12], of 2"):
        graph.conv2d(x, kernel)
    found, _ = run_op(convolve(padding=1), image(2, 2, 2, 1), image(*shape))
    assert found.shape == (2, 5 - shape[0], 5 - shape[1], shape[3])


@pytest.mark.parametrize("groups", [2, 3, 6])
def test_groups_are_convolutions_apart(groups):
    x, kernel = image(2, 5, 4, 6), image(3, 2, 6 // groups, 6, seed=2)
    found, _ = run_op(convolve(groups=groups, padding=1, stride=2), x, kernel)
    parts = zip(np.split(x, groups, 3), np.split(kernel, groups, 3), strict=True)
    apart = [run_op(convolve(padding=1, stride=2), *pair)[0] for pair in parts]
    assert_close(found, np.concatenate(apart, 3), 16)


@pytest.mark.parametrize("channels", [1, 16])
@pytest.mark.parametrize("groups", [1, 2])
def test_no_images_give_no_images(channels, groups):
    x = np.zeros((0, 5, 5, groups * channels), np.float32)
    kernel = np.ones((3, 3, channels, 2 * groups), np.float32)
    found, _ = run_op(convolve(groups=groups, stride=2, padding=1), x, kernel)
    assert found.shape == (0, 3, 3, 2 * groups)
    for pool in ("max_pool", "average_pool"):
        found, _ = run_op(lambda g, v, pool=pool: getattr(g, pool)(v, 2), x)
        assert found.shape == (0, 2, 2, groups * channels)


@pytest.mark.parametrize("channels", [1, 16])
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_an_odd_pixel_reaches_the_windows_that_hold_it(odd, channels):
    x = image(2, 6, 6, channels)
    plain = x.copy()
    x[1, 2, 3, 0] = odd
    kernel = image(3, 2, channels, 2, seed=2)
    found, oracle = run_op(convolve(), x, kernel)
    expected, _ = run_op(convolve(), plain, kernel)
    expected[1, 0:3, 2:4] = odd
    assert_close(found, expected, 64)
    assert_close(oracle, expected, 64)
    found, _ = run_op(lambda g, v: g.average_pool(v, 3, stride=1), x)
    assert (found[1, 0:3, 1:4, 0] == odd).all() or np.isnan(found[1, 0:3, 1:4, 0]).all()
    assert np.isfinite(found).sum() == found.size - 9


def test_a_zero_in_the_kernel_makes_nan_of_an_infinity_as_ieee_has_it():
    x = np.full((1, 1, 1, 1), np.inf, np.float32)
    found, oracle = run_op(convolve(padding=1), x, np.zeros((3, 3, 1, 1), np.float32))
    assert np.isnan(found).all()
    assert np.isnan(oracle).all()


def test_the_maximum_of_a_window_knows_infinities_and_nan():
    x = np.full((1, 4, 4, 1), -np.inf, np.float32)
    x[0, 0, 2, 0], x[0, 2, 0, 0], x[0, 3, 3, 0] = np.inf, np.nan, -1e38
    found, _ = run_op(lambda g, v: g.max_pool(v, 2), x)
    np.testing.assert_array_equal(
        found[0, :, :, 0], np.array([[-np.inf, np.inf], [np.nan, -1e38]], np.float32)
    )


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_images_of_integers_are_pooled_without_wrapping(dtype):
    x = np.full((1, 2, 2, 8), np.iinfo(numpy_dtype(dtype)).max, numpy_dtype(dtype))
    found, _ = run_op(lambda g, v: g.max_pool(v, 2), x)
    assert_same_bits(found, x[:, :1, :1])
    found, _ = run_op(lambda g, v: g.average_pool(v, 2), x // 4)
    assert_same_bits(found, (x[:, :1, :1] // 4).astype(np.float64))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_convolution_of_halves_is_added_up_in_single_precision(dtype):
    """In F16 4,096 ones would stop at 2,048, in BF16 at 256."""
    ones = np.ones((1, 8, 8, 64), numpy_dtype(dtype))
    found, _ = run_op(convolve(), ones, np.ones((8, 8, 64, 1), numpy_dtype(dtype)))
    assert found.item() == 4096
    found, _ = run_op(lambda g, v: g.average_pool(v, 8), ones * numpy_dtype(dtype).type(1024))
    assert (found.astype(float) == 1024).all()


# Activations.


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_activations_far_out_are_their_asymptotes(dtype):
    far = {DType.F16: 6e4, DType.BF16: 3e38, DType.F32: 3e38, DType.F64: 1e308}[dtype]
    x = np.array([-far, -1e4, 1e4, far]).astype(numpy_dtype(dtype))
    for op, expected in (
        (UnaryOp.GELU, [0, 0, x[2], x[3]]),
        (UnaryOp.SIGMOID, [0, 0, 1, 1]),
        (UnaryOp.TANH, [-1, -1, 1, 1]),
        (UnaryOp.RELU, [0, 0, x[2], x[3]]),
    ):
        for found in run_op(lambda g, v, op=op: g.unary(op, v), x):
            np.testing.assert_array_equal(found, np.array(expected, x.dtype), str(op))


def test_gelu_at_minus_infinity_is_nan_as_its_formula_is():
    x = np.array([np.inf, -np.inf, np.nan])
    for found in run_op(lambda g, v: g.unary(UnaryOp.GELU, v), x):
        np.testing.assert_array_equal(found, [np.inf, np.nan, np.nan])


# Softmax and the cross-entropy.


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_class_is_certain(dtype):
    x = np.array([[-3.5], [0.0], [1e4]]).astype(numpy_dtype(dtype))
    one, zero = np.ones((3, 1), x.dtype), np.zeros((3, 1), x.dtype)
    for found in run_op(lambda g, a: g.softmax(a, 1), x):
        assert_same_bits(found, one)
    for found in run_op(lambda g, a: g.log_softmax(a, -1), x):
        np.testing.assert_array_equal(found, zero)
    for loss in run_op(lambda g, a, y: g.cross_entropy(a, y), x, np.zeros(3, int)):
        np.testing.assert_array_equal(loss, [0, 0, 0])
    with pytest.raises(DataError, match=r"index 1 at .*legal is 0 to 0"):
        run_op(lambda g, a, y: g.cross_entropy(a, y), x, np.array([0, 0, 1]))


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_an_odd_logit_makes_its_own_row_nan(odd):
    x = np.array([[1.0, 2.0], [odd, 0.0], [2.0, 1.0]])
    for build in (lambda g, a: g.softmax(a, 1), lambda g, a: g.log_softmax(a, 1)):
        for found in run_op(build, x):
            assert np.isnan(found).any(1).tolist() == [False, True, False]
    for loss in run_op(lambda g, a, y: g.cross_entropy(a, y), x, np.array([0, 1, 0])):
        assert np.isnan(loss).tolist() == [False, True, False]


def test_the_loss_of_a_label_whose_class_is_masked_is_infinite():
    x = np.array([[0.0, -np.inf], [-np.inf, -np.inf]])
    for loss in run_op(lambda g, a, y: g.cross_entropy(a, y), x, np.array([1, 0])):
        np.testing.assert_array_equal(loss, [np.inf, np.nan])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_many_classes_of_halves(dtype):
    """The sum of 4,096 exponentials of 0 is beyond what BF16 counts; the share is exact."""
    x = np.zeros((2, 4096), numpy_dtype(dtype))
    for found in run_op(lambda g, a: g.softmax(a, 1), x):
        assert (found.astype(float) == 2**-12).all()
    for loss in run_op(lambda g, a, y: g.cross_entropy(a, y), x, np.array([0, 4095])):
        np.testing.assert_allclose(loss, np.log(4096), rtol=1e-6)


# Embeddings, which are rows by number, and dropout.


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_an_embedding_is_its_rows(dtype):
    table = numbers(np.random.default_rng(1), (5, 3), dtype)
    table[4] = [np.nan, np.inf, -0.0]
    rows = np.array([[4, 0], [4, 4], [1, 3]], np.int32)
    for found in run_op(lambda g, t, i: g.gather(t, i), table, rows):
        assert_same_bits(found, table[rows])
    for found in run_op(lambda g, t, i: g.gather(t, i), table, rows[:0]):
        assert found.shape == (0, 2, 3)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_many_updates_of_one_row_of_halves_are_counted(dtype):
    ones = np.ones((4096, 2), numpy_dtype(dtype))
    for found in run_op(lambda g, u, i: g.scatter_add(u, i, 2), ones, np.ones(4096, int)):
        assert found.astype(float).tolist() == [[0, 0], [4096, 4096]]


def dropped(rate, x, dtype):
    graph = Graph("dropped")
    graph.set_outputs([graph.dropout(graph.input("x", ["n", 4], dtype), rate)])
    arrays = {"x": x} if not graph.inputs[1:] else {"x": x, DROPOUT_KEY: KEY}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return Session().compile(graph).run(arrays)[0], evaluate(graph, arrays)[0]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("rate", [0.0, 1e-12, 0.5, 0.999])
def test_dropout_of_no_rows_is_no_rows(rate, dtype):
    for found in dropped(rate, np.zeros((0, 4), numpy_dtype(dtype)), dtype):
        assert found.shape == (0, 4)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dropout_at_its_lowest_rate_and_none(dtype):
    x = image(50, 4, dtype=dtype)
    for rate in (0.0, 2**-34):
        assert_same_bits(dropped(rate, x, dtype)[0], x)
    found, oracle = dropped(2**-32, x, dtype)
    assert_same_bits(found, oracle)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dropout_at_its_highest_rate_drops_all_silently(dtype):
    x = np.zeros((50, 4), numpy_dtype(dtype))
    for found in dropped(1 - 2**-40, x, dtype):
        assert not found.astype(float).any()


def test_an_infinity_that_is_dropped_is_nan_as_ieee_has_it():
    x = np.full((100, 4), np.inf, np.float32)
    found, oracle = dropped(0.5, x, DType.F32)
    assert_same_bits(found, oracle)
    assert 100 < np.isnan(found).sum() < 300
    assert np.isposinf(found).sum() == found.size - np.isnan(found).sum()
