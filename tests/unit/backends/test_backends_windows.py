"""Windows, convolutions and pooling: against loops written out, scipy, and the oracle."""

import numpy as np
import pytest
import scipy.signal
from backends_support import (
    DISGUISES,
    FLOATS,
    INTEGERS,
    assert_close,
    assert_same_bits,
    numbers,
    run_op,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.backends import Session
from rlx.errors import GraphError
from rlx.ir import DType, Graph

IMAGE = (2, 7, 6, 3)


def image(dtype=DType.F32, shape=IMAGE, seed=1):
    return numbers(np.random.default_rng(seed), shape, dtype, 0.5, 2)


def windows_by_hand(x, size, step):
    """[N, OH, OW, C, KH, KW] by numpy's own views."""
    view = np.lib.stride_tricks.sliding_window_view(x, size, (1, 2))
    return view[:, :: step[0], :: step[1]]


def convolved_by_hand(x, kernel, stride=(1, 1), padding=(0, 0), groups=1):
    """One scipy correlation for each image, channel and filter."""
    (rows, columns), filters = padding, kernel.shape[3]
    x = np.pad(x.astype(np.float64), ((0, 0), (rows, rows), (columns, columns), (0, 0)))
    depth, per_group = kernel.shape[2], filters // groups
    planes = []
    for picture in x:
        for number in range(filters):
            first = number // per_group * depth
            plane = sum(
                scipy.signal.correlate2d(
                    picture[:, :, first + channel], kernel[:, :, channel, number], "valid"
                )
                for channel in range(depth)
            )
            planes.append(plane[:: stride[0], :: stride[1]])
    whole = np.stack(planes).reshape(len(x), filters, *planes[0].shape)
    return whole.transpose(0, 2, 3, 1)


@pytest.mark.parametrize("how", DISGUISES)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, DType.BOOL], ids=str)
def test_unfold_moves_elements_alone(dtype, how):
    x = image(dtype) if dtype is not DType.BOOL else image() > 1
    found, oracle = run_op(lambda g, v: g.unfold(v, (1, 2), (3, 2), (2, 1)), x, how=how)
    assert_same_bits(found, windows_by_hand(x, (3, 2), (2, 1)))
    assert_same_bits(found, oracle)


@pytest.mark.parametrize("how", DISGUISES)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_fold_adds_what_overlaps(dtype, how):
    x = numbers(np.random.default_rng(2), (2, 3, 5, 2, 3, 2), dtype, 0.5, 2)
    found, oracle = run_op(lambda g, v: g.fold(v, (1, 2), (7, 6), (2, 1)), x, how=how)
    expected = np.zeros((2, 7, 6, 2), np.float64 if dtype.is_float else x.dtype)
    for row in range(3):
        for column in range(5):
            block = x[:, row, column].transpose(0, 2, 3, 1).astype(expected.dtype)
            expected[:, 2 * row : 2 * row + 3, column : column + 2] += block
    assert_close(found, expected, 16)
    assert_close(found, oracle, 16)


def test_what_no_window_covers_is_zero_after_a_fold():
    ones = np.ones((1, 2, 1), np.float32)
    found, _ = run_op(lambda g, v: g.fold(v, (1,), (5,), (3,)), ones)
    assert found.tolist() == [[1, 0, 0, 1, 0]]


CONVOLUTIONS = {
    "plain": {},
    "strided": {"stride": (2, 3)},
    "padded": {"padding": (1, 2)},
    "both": {"stride": (2, 2), "padding": (2, 0)},
    "grouped": {"groups": 3, "padding": (1, 1)},
    "depthwise, strided": {"groups": 6, "stride": (3, 1)},
}


@pytest.mark.parametrize("options", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_a_convolution_is_scipys_correlation(options):
    x = image(shape=(2, 9, 8, 6))
    kernel = image(shape=(3, 2, 6 // options.get("groups", 1), 6), seed=3)
    found, oracle = run_op(lambda g, v, w: g.conv2d(v, w, **options), x, kernel)
    expected = convolved_by_hand(x, kernel, **options)
    assert found.shape == expected.shape
    assert_close(found, expected, 64)
    assert_close(found, oracle, 64)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_convolution_and_pooling_in_every_float(dtype):
    x, kernel = image(dtype), image(dtype, (3, 3, 3, 4), seed=4)
    found, oracle = run_op(lambda g, v, w: g.conv2d(v, w, padding=1), x, kernel)
    assert_close(found, convolved_by_hand(x, kernel, padding=(1, 1)), 64)
    assert_close(found, oracle, 64)
    for pool in ("max_pool", "average_pool"):
        found, oracle = run_op(lambda g, v, pool=pool: getattr(g, pool)(v, 2), x)
        assert_close(found, oracle, 16)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_convolution_that_is_legal_is_the_correlation(data):
    def draw(low, high):
        return data.draw(st.integers(low, high))

    groups, depth, per_group = draw(1, 3), draw(1, 2), draw(1, 2)
    high, wide = draw(1, 3), draw(1, 3)
    padding, stride = (draw(0, 2), draw(0, 2)), (draw(1, 3), draw(1, 3))
    shape = (draw(1, 2), draw(high, 6), draw(wide, 6), groups * depth)
    x = image(shape=shape)
    kernel = image(shape=(high, wide, depth, groups * per_group), seed=5)
    options = {"stride": stride, "padding": padding, "groups": groups}
    found, _ = run_op(lambda g, v, w: g.conv2d(v, w, **options), x, kernel)
    assert_close(found, convolved_by_hand(x, kernel, **options), 64)


@pytest.mark.parametrize("stride", [None, 1, (1, 2), 3])
@pytest.mark.parametrize("size", [1, 2, (3, 2)])
def test_pooling_is_the_extreme_and_the_mean_of_windows(size, stride):
    x = image()
    sizes = (size, size) if isinstance(size, int) else size
    steps = sizes if stride is None else (stride, stride) if isinstance(stride, int) else stride
    windows = windows_by_hand(x, sizes, steps)
    found, _ = run_op(lambda g, v: g.max_pool(v, size, stride=stride), x)
    assert_same_bits(found, windows.max((4, 5)))
    found, _ = run_op(lambda g, v: g.average_pool(v, size, stride=stride), x)
    assert_close(found, windows.astype(np.float64).mean((4, 5)), 16)


def test_a_maximum_pool_propagates_nan():
    x = image()
    x[0, 0, 0, 0] = np.nan
    found, _ = run_op(lambda g, v: g.max_pool(v, 2), x)
    assert np.isnan(found[0, 0, 0, 0])
    assert np.isnan(found).sum() == 1


def test_the_number_of_images_is_bound_at_the_run():
    graph = Graph("net")
    x = graph.input("x", ["batch", 6, 6, 1])
    w = graph.param("w", [3, 3, 1, 2])
    graph.set_outputs([graph.max_pool(graph.conv2d(x, w, padding=1), 2)])
    assert graph.nodes[graph.outputs[0]].shape.dims == ("batch", 3, 3, 2)
    executable = Session("cpu").compile(graph)
    executable.set_param("w", image(shape=(3, 3, 1, 2)))
    whole = image(shape=(5, 6, 6, 1))
    (together,) = executable.run({"x": whole})
    for place in range(5):
        (alone,) = executable.run({"x": whole[place : place + 1]})
        assert_close(together[place : place + 1], alone, 8)
    (nothing,) = executable.run({"x": whole[:0]})
    assert nothing.shape == (0, 3, 3, 2)


def test_an_operand_that_overlapping_windows_share_is_not_written_over():
    """The unfolded view and its source die at one node; it must not be computed in place there."""
    graph = Graph("shared")
    x = graph.input("x", [6])
    doubled = x + x
    windows = graph.unfold(doubled, (0,), (3,), (1,))
    graph.set_outputs([-windows, windows * windows])
    given_ = np.arange(6, dtype=np.float32)
    negative, square = Session("cpu").compile(graph).run({"x": given_})
    expected = np.lib.stride_tricks.sliding_window_view(2 * given_, 3)
    assert_same_bits(negative, -expected)
    assert_same_bits(square, expected * expected)


WRONG = {
    "longer": (lambda g, x: g.unfold(x, (1,), (9,), (1,)), "window of 9 is longer than axis 1"),
    "named": (lambda g, x: g.unfold(x, (0,), (1,), (1,)), "axis of known length"),
    "empty": (lambda g, x: g.unfold(x, (1,), (0,), (1,)), "at least 1 element"),
    "still": (lambda g, x: g.unfold(x, (1,), (1,), (0,)), "moves on by at least 1"),
    "order": (lambda g, x: g.unfold(x, (2, 1), (1, 1), (1, 1)), "no ascending axes"),
    "twice": (lambda g, x: g.unfold(x, (1, 1), (1, 1), (1, 1)), "no ascending axes"),
    "uneven": (lambda g, x: g.unfold(x, (1,), (1, 1), (1,)), "1 axes, 2 sizes and 1 steps"),
    "no axis": (lambda g, x: g.unfold(x, (4,), (1,), (1,)), "has no axis 4"),
    "text": (lambda g, x: g.unfold(x, (1,), ("3",), (1,)), "sizes"),
    "counts": (lambda g, x: g.fold(x, (1,), (8,), (1,)), "an axis of 8 has 6 windows of 3"),
    "truths": (lambda g, x: g.fold(x < x, (1,), (9,), (1,)), "adds numbers; got BOOL"),
    "too few": (lambda g, x: g.fold(x, (0, 1, 2, 3), (1,) * 4, (1,) * 4), "no ascending axes of 0"),
    "conv rank": (lambda g, x: g.conv2d(x.sum(0), x), r"takes images \[N, H, W, C\]; got \[7"),
    "kernel": (lambda g, x: g.conv2d(x, x), r"takes a kernel \[KH, KW"),
    "depth": (
        lambda g, x: g.conv2d(x, g.param("w", [3, 3, 2, 4])),
        r"3 channels, 4 filters and 1 group\(s\) do not suit a kernel \[3, 3, 2, 4\]",
    ),
    "groups": (lambda g, x: g.conv2d(x, g.param("w", [3, 3, 1, 4]), groups=3), "4 filters and 3"),
    "no groups": (lambda g, x: g.conv2d(x, g.param("w", [1, 1, 3, 1]), groups=0), "at least 1"),
    "stride": (lambda g, x: g.conv2d(x, g.param("w", [1, 1, 3, 1]), stride=0), "stride is an int"),
    "padding": (
        lambda g, x: g.conv2d(x, g.param("w", [1, 1, 3, 1]), padding=(1, -1)),
        r"padding is an int >= 0, or two of them; got \(1, -1\)",
    ),
    "no padding": (
        lambda g, x: g.conv2d(x, g.param("w", [1, 1, 3, 1]), padding=None),
        "padding is an int >= 0, or two of them; got None",
    ),
    "kernel dtype": (
        lambda g, x: g.conv2d(x, g.param("w", [1, 1, 3, 1], DType.F64)),
        r"conv2d takes .* of one floating-point dtype; got F32\[batch, 7.* and F64\[1, 1, 3, 1\]",
    ),
    "integer images": (
        lambda g, x: g.conv2d(x.cast(DType.I8), g.param("w", [1, 1, 3, 1], DType.I8)),
        r"conv2d takes .* of one floating-point dtype; got I8\[batch, 7",
    ),
    "large kernel": (
        lambda g, x: g.conv2d(x, g.param("w", [3, 9, 3, 1]), padding=1),
        "^conv2d: a window of 9 is longer than axis 2, of 8",
    ),
    "large kernel of groups": (
        lambda g, x: g.conv2d(x, g.param("w", [8, 1, 1, 3]), groups=3),
        "^conv2d: a window of 8 is longer than axis 1, of 7",
    ),
    "pool": (lambda g, x: g.max_pool(x, 8), "^max_pool: a window of 8 is longer than axis 1, of 7"),
    "mean pool": (lambda g, x: g.average_pool(x, (1, 7)), "^average_pool: .* of 7 is longer than"),
    "pool size": (lambda g, x: g.average_pool(x, (2, 2, 2)), "size is an int >= 1, or two"),
    "pool rank": (lambda g, x: g.average_pool(x.sum(0), 2), "average_pool takes images"),
}


@pytest.mark.parametrize(("build", "says"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_is_refused_where_it_is_built(build, says):
    graph = Graph("wrong")
    x = graph.input("x", ["batch", 7, 6, 3])
    with pytest.raises(GraphError, match=says):
        build(graph, x)
