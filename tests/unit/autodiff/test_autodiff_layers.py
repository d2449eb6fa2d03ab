"""Gradients of layers at their corners, against what a pencil gives."""

from __future__ import annotations

import numpy as np
import pytest

from rlx.autodiff import grad_with_loss
from rlx.backends import Session, numpy_dtype
from rlx.ir import DType, Graph, UnaryOp

FLOATS = [DType.F16, DType.BF16, DType.F32, DType.F64]
HALVES = FLOATS[:2]

pytestmark = pytest.mark.usefixtures("each_backend")


def loss_and_gradients(build, arrays, wrt=None):
    """The sum of what `build` makes, and its gradients in `wrt` (all floats unless said)."""
    known = {numpy_dtype(dtype): dtype for dtype in DType}
    graph = Graph("layers")
    given = {n: graph.input(n, one.shape, known[one.dtype]) for n, one in arrays.items()}
    graph.set_outputs([build(graph, *given.values()).sum()])
    names = wrt or [name for name, value in given.items() if value.dtype.is_float]
    derived = grad_with_loss(graph, names)
    start = np.ones((), numpy_dtype(derived["d_output"].dtype))
    loss, *found = Session().compile(derived).run({**arrays, "d_output": start})
    for name, one in zip(names, found, strict=True):
        assert one.dtype == arrays[name].dtype
        assert one.shape == arrays[name].shape
    return loss, *found


def ones(*shape, dtype=DType.F32):
    return np.ones(shape, numpy_dtype(dtype))


# Convolution and pooling.


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("stride", "size"), [(1, 3), (2, 3), (3, 2), (5, 2)])
def test_a_pixel_gets_the_sum_of_the_weights_that_met_it(stride, size, groups):
    """Of ones that is the number of windows that hold it, and 0 where none does."""
    x, kernel = ones(2, 8, 7, groups), ones(size, size, 1, groups)
    _, to_x, to_kernel = loss_and_gradients(
        lambda g, a, w: g.conv2d(a, w, stride=stride, groups=groups), {"x": x, "w": kernel}
    )
    counts = np.zeros((8, 7))
    starts = [range(0, length - size + 1, stride) for length in (8, 7)]
    for row in starts[0]:
        for column in starts[1]:
            counts[row : row + size, column : column + size] += 1
    np.testing.assert_array_equal(to_x, np.broadcast_to(counts[None, :, :, None], x.shape))
    assert (to_kernel == 2 * len(starts[0]) * len(starts[1])).all()


@pytest.mark.parametrize("channels", [1, 16])
def test_no_images_have_no_gradient_and_leave_the_kernel_alone(channels):
    x, kernel = ones(0, 5, 5, channels), ones(3, 3, channels, 2)
    loss, to_x, to_kernel = loss_and_gradients(
        lambda g, a, w: g.max_pool(g.conv2d(a, w, padding=1), 2), {"x": x, "w": kernel}
    )
    assert loss == 0
    assert to_x.size == 0
    assert not to_kernel.any()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("value", [1.0, 0.0, -np.inf])
def test_a_tied_window_shares_its_gradient(value, dtype):
    x = (ones(1, 4, 6, 2, dtype=dtype) * numpy_dtype(dtype).type(value)).astype(numpy_dtype(dtype))
    _, found = loss_and_gradients(lambda g, a: g.max_pool(a, 2), {"x": x})
    assert (found.astype(float) == 0.25).all()


def test_ties_of_windows_that_overlap_add_up():
    """Four windows of 2 x 2 in 3 x 3: the corner is in one, an edge in two, the middle in four."""
    _, found = loss_and_gradients(lambda g, a: g.max_pool(a, 2, stride=1), {"x": ones(1, 3, 3, 1)})
    assert found[0, :, :, 0].tolist() == [[0.25, 0.5, 0.25], [0.5, 1, 0.5], [0.25, 0.5, 0.25]]
    x = np.array([[1, 2, 1], [2, 5, 2], [5, 2, 1]], np.float32).reshape(1, 3, 3, 1)
    _, found = loss_and_gradients(lambda g, a: g.max_pool(a, 2, stride=1), {"x": x})
    assert found[0, :, :, 0].tolist() == [[0, 0, 0], [0, 3.5, 0], [0.5, 0, 0]]


def test_pixels_between_windows_get_nothing():
    for pool, inside in (("max_pool", [1, 0]), ("average_pool", [0.5, 0.5])):
        x = np.array([3.0, 2, 9, 9, 5, 1, 9], np.float32).reshape(1, 1, 7, 1)
        _, found = loss_and_gradients(
            lambda g, a, pool=pool: getattr(g, pool)(a, (1, 2), stride=(1, 4)), {"x": x}
        )
        assert found.ravel().tolist() == [*inside, 0, 0, *inside, 0]


def test_a_window_with_nan_has_nan_for_its_gradient_and_no_other_has():
    x = ones(1, 2, 4, 1)
    x[0, 0, 0, 0] = np.nan
    _, found = loss_and_gradients(lambda g, a: g.max_pool(a, 2), {"x": x})
    assert np.isnan(found[0, :, :2]).all()
    assert (found[0, :, 2:] == 0.25).all()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_gradient_of_a_kernel_of_halves_is_added_up_in_single_precision(dtype):
    arrays = {"x": ones(1, 64, 64, 1, dtype=dtype), "w": ones(1, 1, 1, 1, dtype=dtype)}
    _, found = loss_and_gradients(lambda g, a, w: g.conv2d(a, w), arrays, ["w"])
    assert found.item() == 4096


# Activations.


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_activations_far_out_have_the_slopes_of_their_asymptotes(dtype):
    x = np.array([-6e4, -1000, 1000, 6e4]).astype(numpy_dtype(dtype))
    for op, slopes in (
        (UnaryOp.GELU, [0, 0, 1, 1]),
        (UnaryOp.SIGMOID, [0, 0, 0, 0]),
        (UnaryOp.TANH, [0, 0, 0, 0]),
        (UnaryOp.RELU, [0, 0, 1, 1]),
    ):
        _, found = loss_and_gradients(lambda g, a, op=op: g.unary(op, a).cast(DType.F64), {"x": x})
        assert found.astype(float).tolist() == slopes, op


def test_the_slope_of_gelu_is_nan_where_the_square_overflows():
    x = np.array([-1e19, 1e19, -1e20, 1e20], np.float32)
    _, found = loss_and_gradients(lambda g, a: g.unary(UnaryOp.GELU, a).cast(DType.F64), {"x": x})
    np.testing.assert_array_equal(found, [0, 1, np.nan, np.nan])


# Softmax and the cross-entropy.


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_class_has_no_gradient(dtype):
    arrays = {"x": ones(3, 1, dtype=dtype), "y": np.zeros(3, int)}
    loss, found = loss_and_gradients(lambda g, a, y: g.cross_entropy(a, y), arrays)
    assert loss == 0
    assert not found.astype(float).any()
    for build in (lambda g, a: g.softmax(a, 1), lambda g, a: g.log_softmax(a, 1)):
        _, found = loss_and_gradients(build, {"x": arrays["x"]})
        assert not found.astype(float).any()


def test_a_masked_class_gets_no_gradient_and_a_row_of_them_nan():
    x = np.array([[0.0, -np.inf, 0.0], [-np.inf, 0.0, 0.0], [-np.inf] * 3])
    arrays = {"x": x, "y": np.array([0, 0, 1])}
    loss, found = loss_and_gradients(lambda g, a, y: g.cross_entropy(a, y)[:2], arrays)
    assert loss == np.inf
    np.testing.assert_array_equal(found[:2], [[-0.5, 0, 0.5], [-1, 0.5, 0.5]])
    assert np.isnan(found[2]).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_no_rows_have_no_loss_and_no_gradient(dtype):
    arrays = {"x": ones(0, 5, dtype=dtype), "y": np.zeros(0, int)}
    loss, found = loss_and_gradients(lambda g, a, y: g.cross_entropy(a, y), arrays)
    assert loss == 0
    assert found.size == 0


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_gradient_of_a_loss_of_halves_is_its_rounded_definition(dtype):
    x = np.random.default_rng(1).uniform(-4, 4, (6, 9)).astype(numpy_dtype(dtype))
    labels = np.arange(6)
    _, found = loss_and_gradients(lambda g, a, y: g.cross_entropy(a, y), {"x": x, "y": labels})
    shares = np.exp(x.astype(float))
    shares /= shares.sum(1, keepdims=True)
    shares[np.arange(6), labels] -= 1
    epsilon = {DType.F16: 2**-10, DType.BF16: 2**-7}[dtype]
    np.testing.assert_allclose(found.astype(float), shares, rtol=epsilon, atol=2**-24)


# Normalisation, embeddings, dropout.


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_equal_numbers_have_the_slope_of_epsilon(dtype):
    """At variance 0 a row's derivative is (identity - 1 / n) / sqrt(epsilon)."""
    x = np.full((2, 4), 3.0).astype(numpy_dtype(dtype))
    weights = np.array([1.0, 0, 0, 0]).astype(numpy_dtype(dtype))

    def build(graph, a, w):
        return graph.layer_norm(a, w, epsilon=1 / 64)

    _, to_x, to_weights = loss_and_gradients(build, {"x": x, "w": weights})
    assert to_x.astype(float).tolist() == [[6, -2, -2, -2]] * 2
    assert not to_weights.astype(float).any()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_row_of_a_table_gets_as_much_as_it_was_read(dtype):
    table, rows = ones(4, 3, dtype=dtype), np.array([1] * 600 + [3, 0])
    _, found = loss_and_gradients(lambda g, t, i: g.gather(t, i), {"t": table, "i": rows}, ["t"])
    assert found.astype(float).tolist() == [[1] * 3, [600] * 3, [0] * 3, [1] * 3]
    _, found = loss_and_gradients(lambda g, t, i: g.gather(t, i), {"t": table, "i": rows[:0]})
    assert not found.astype(float).any()


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_dropout_of_no_rows_has_no_gradient(rate):
    arrays = {"x": ones(0, 4), "dropout_key": np.array([1, 2, 3])}
    loss, found = loss_and_gradients(lambda g, a, key: g.dropout(a, rate), arrays)
    assert loss == 0
    assert found.size == 0
