"""What the tests of this room share: one op as a graph, oddly laid operands, and closeness."""

import warnings

import numpy as np

from rlx.backends import Session, evaluate, numpy_dtype
from rlx.ir import DType, Graph

FLOATS = [DType.F16, DType.BF16, DType.F32, DType.F64]
INTEGERS = [DType.I8, DType.U8, DType.I32, DType.I64]
NAMES = {numpy_dtype(dtype): dtype for dtype in DType}
EPSILON = {DType.F16: 2**-10, DType.BF16: 2**-7, DType.F32: 2**-23, DType.F64: 2**-52}

BACKEND = "numpy"
"""What `run_op` runs; a test of another backend sets it for itself."""

DISGUISES = ["plain", "transposed", "stepped", "reversed"]


def disguised(graph, name, array, how):
    """A value of the graph that equals `array` but lies as `how` says; and the input to give."""
    dtype = NAMES[array.dtype]
    if how == "transposed":
        given = array.T.copy()
        return graph.transpose(graph.input(name, given.shape, dtype)), given
    if how == "stepped":
        given = np.zeros([2 * size for size in array.shape], array.dtype)
        every_second = tuple(slice(None, None, 2) for _ in array.shape)
        given[every_second] = array
        return graph.input(name, given.shape, dtype)[every_second], given
    if how == "reversed":
        backwards = tuple(slice(None, None, -1) for _ in array.shape)
        given = array[backwards].copy()
        return graph.input(name, given.shape, dtype)[backwards], given
    return graph.input(name, array.shape, dtype), array


def run_op(build, *arrays, how="plain"):
    """`build(graph, *values)` on the arrays, by executor and by oracle: the results of both.

    The two must agree in dtype and shape; a warning of numpy is a failure.
    """
    graph = Graph("op")
    pairs = [disguised(graph, f"x{index}", one, how) for index, one in enumerate(arrays)]
    graph.set_outputs([build(graph, *[value for value, _ in pairs])])
    inputs = {f"x{index}": given for index, (_, given) in enumerate(pairs)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (result,) = Session("cpu", BACKEND).compile(graph).run(inputs)
        (expected,) = evaluate(graph, inputs)
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    return result, expected


def assert_close(found, expected, ulps=4):
    """Equal within `ulps` units of the found dtype, by the largest element where terms cancel."""
    dtype = NAMES[found.dtype]
    assert found.shape == np.shape(expected)
    if dtype not in EPSILON:
        np.testing.assert_array_equal(found, expected)
        return
    np.testing.assert_allclose(
        found.astype(np.float64),
        np.asarray(expected).astype(np.float64),
        rtol=ulps * EPSILON[dtype],
        atol=ulps * float(np.finfo(np.float16 if dtype is DType.F16 else np.float32).tiny),
    )


def assert_same_bits(found, expected):
    """Equal in dtype, shape and every bit, but that any NaN equals any other."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    nan = found != found
    np.testing.assert_array_equal(nan, expected != expected)
    blank = np.zeros((), found.dtype)
    assert np.where(nan, blank, found).tobytes() == np.where(nan, blank, expected).tobytes()


def numbers(rng, shape, dtype, low=-3.0, high=3.0):
    """Random numbers of a dtype; BOOL for BOOL."""
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_integer:
        return rng.integers(0 if dtype is DType.U8 else -9, 10, shape).astype(numpy_dtype(dtype))
    return np.asarray(rng.uniform(low, high, shape)).astype(numpy_dtype(dtype))
