"""What makes a plan cheaper, on NaN, infinities and zeros of either sign; and graphs that only look
as if it applied. The oracle knows none of it."""

import warnings

import numpy as np
import pytest
from backends_support import numbers

from rlx.autodiff import grad
from rlx.backends import Session, evaluate, numpy_dtype
from rlx.backends.plan import Simplified
from rlx.backends.simplify.rewrite import Rewriting
from rlx.backends.simplify.rules import folded, lowered, placed, tiled
from rlx.ir import BinaryOp, DType, Graph, Op, ReduceOp, UnaryOp

ODD = [np.nan, np.inf, -np.inf, -0.0, 0.0]
FLOATS = [DType.F16, DType.BF16, DType.F32, DType.F64]


def with_odd(shape, dtype=DType.F32, share=0.02, seed=1):
    """Numbers around 1, of which some are odd ones."""
    rng = np.random.default_rng(seed)
    plain = numbers(rng, shape, DType.F64, 0.5, 2)
    odd = np.where(rng.random(shape) < share, rng.choice(ODD, shape), plain)
    return odd.astype(numpy_dtype(dtype))


def agrees(graph, arrays, rtol=1e-4):
    """The executor's outputs, which have the oracle's numbers, NaN and infinities."""
    params = {node.name: arrays[node.name] for node in graph.params}
    inputs = {node.name: arrays[node.name] for node in graph.inputs}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Session().compile(graph, params=params).run(inputs)
    for one, expected in zip(found, evaluate(graph, arrays), strict=True):
        assert one.dtype == expected.dtype
        np.testing.assert_allclose(
            one.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=rtol
        )
    return found


def of_one(build, dims, dtype=DType.F32):
    """The graph of what `build` makes of an input `x`: one value or more."""
    graph = Graph("odd")
    made = build(graph, graph.input("x", dims, dtype))
    graph.set_outputs(made if isinstance(made, list) else [made])
    return graph


def ops_after(graph, *rules):
    """The ops that outputs need after one pass."""
    made = Rewriting(Simplified(graph, graph.nodes)).run(*rules).graph
    needed = made.needed()
    return [node.op for node in made.nodes if node.id in needed]


# Compositions: an odd number stays in its row.

COMPOSED = {
    "gelu": lambda g, x: g.unary(UnaryOp.GELU, x),
    "softmax": lambda g, x: g.softmax(x, -1),
    "log_softmax": lambda g, x: g.log_softmax(x, -1),
    "cross_entropy": lambda g, x: g.cross_entropy(x, g.constant(np.arange(40) % 6)),
    "normalize": lambda g, x: g.normalize(x, 1e-5),
}


@pytest.mark.parametrize("build", COMPOSED.values(), ids=COMPOSED)
def test_a_composition_keeps_odd_numbers_in_their_rows(build):
    graph = of_one(build, [40, 6])
    assert graph.nodes[graph.outputs[0]].op not in ops_after(graph, lowered)
    x = with_odd((40, 6), share=0.1)
    (found,) = agrees(graph, {"x": x})
    rows = np.isfinite(x).all(1)
    assert 5 < rows.sum() < 35
    assert np.isfinite(found[rows]).all()


def test_parts_of_a_composition_may_be_outputs_too():
    def build(graph, x):
        below = x - x.max(-1, keepdims=True)
        raised = graph.unary(UnaryOp.EXP, below)
        return [graph.softmax(x, -1), below, raised, graph.log_softmax(x, -1), raised * 2.0]

    graph = of_one(build, [20, 6])
    made = ops_after(graph, lowered)
    assert made.count(Op.EXP) == 1
    agrees(graph, {"x": with_odd((20, 6), share=0.1)})


def test_a_composition_of_another_dtype_is_not_the_same():
    def build(graph, x):
        return [graph.softmax(x, -1), graph.softmax(x.cast(DType.F64), -1), graph.softmax(x, 0)]

    graph = of_one(build, [20, 6])
    assert ops_after(graph, lowered).count(Op.EXP) == 3
    agrees(graph, {"x": with_odd((20, 6), share=0.1)})


# Constants.


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", [BinaryOp.ADD, BinaryOp.MUL, BinaryOp.DIV, BinaryOp.MAX], ids=str)
def test_odd_constants_are_folded_as_they_are_computed(op, dtype):
    """Bit for bit, the sign of a zero included, but for the kind of a NaN."""
    odd = np.array([*ODD, 1.0, 6e4, 1e-7]).astype(numpy_dtype(dtype))
    pairs = np.repeat(odd, len(odd)), np.tile(odd, len(odd))
    graph = Graph("constants")
    graph.set_outputs([graph.binary(op, *(graph.constant(one) for one in pairs))])
    assert ops_after(graph, folded) == [Op.CONSTANT]
    (found,) = agrees(graph, {})
    graph = Graph("inputs")
    graph.set_outputs([graph.binary(op, *(graph.input(n, [64], dtype) for n in "ab"))])
    (computed,) = agrees(graph, dict(zip("ab", pairs, strict=True)))
    not_nan = ~np.isnan(computed.astype(float))
    assert found[not_nan].tobytes() == computed[not_nan].tobytes()


def test_only_elementwise_ops_of_constants_alone_are_folded():
    def build(graph, x):
        table = graph.constant(np.array([[np.inf, -0.0], [np.nan, 1.0]], np.float32))
        return [table + x, table.sum(0) * x, table @ table, graph.softmax(table, 1), table[0] / x]

    graph = of_one(build, [2])
    made = ops_after(graph, folded)
    assert {Op.ADD, Op.REDUCE_SUM, Op.MATMUL, Op.SOFTMAX, Op.DIV} <= set(made)
    agrees(graph, {"x": np.array([-0.0, 2.0], np.float32)})


def test_a_constant_that_is_an_output_and_folded_elsewhere_stays():
    def build(graph, x):
        minus_zero = graph.constant(np.array([-0.0, 0.0], np.float32))
        return [minus_zero, 1.0 / minus_zero, x * (1.0 / minus_zero)]

    graph = of_one(build, [2])
    plain, upended, _ = agrees(graph, {"x": np.ones(2, np.float32)})
    assert np.signbit(plain).tolist() == [True, False]
    assert upended.tolist() == [-np.inf, np.inf]


# Sums of parts of zeros.


def parts_of(graph, x, edges):
    rest = [None] * (x.shape.rank - 1)
    spread = []
    for start, stop in edges:
        bounds = ([start, *rest], [stop, *rest])
        spread.append(graph.unslice(graph.slice(x, *bounds), x.shape, *bounds))
    return spread


@pytest.mark.parametrize("dtype", [*FLOATS, DType.I8, DType.I64], ids=str)
def test_parts_side_by_side_keep_odd_numbers(dtype):
    def build(graph, x):
        first, second, third = parts_of(graph, x, [(0, 2), (2, 3), (3, 7)])
        return third + (first + second)

    graph = of_one(build, [7, 9], dtype)
    assert Op.CONCAT in ops_after(graph, tiled)
    if dtype.is_float:
        x = with_odd((7, 9), dtype, 0.3)
    else:
        x = np.full((7, 9), np.iinfo(numpy_dtype(dtype)).min, numpy_dtype(dtype))
    (found,) = agrees(graph, {"x": x})
    np.testing.assert_array_equal(found, x)


def look_alike(name):
    def build(graph, x):
        low, high = parts_of(graph, x, [(0, 3), (3, 7)])
        both = low + high
        return {
            "one part twice": lambda: low + both,
            "both parts twice": lambda: both + both,
            "another addend": lambda: both + x,
            "a difference": lambda: low - high,
            "repeated": lambda: (low + high) + graph.constant(np.zeros((2, 1, 1), np.float32)),
            "a maximum": lambda: graph.binary(BinaryOp.MAX, low, high),
            "turned": lambda: low + parts_of(graph, x, [(3, 7)])[0][::-1],
        }[name]()

    return build


@pytest.mark.parametrize(
    ("name", "inner"),
    [
        *(("one part twice", 0), ("both parts twice", 1), ("another addend", 1)),
        *(("a difference", 0), ("repeated", 1), ("a maximum", 0), ("turned", 0)),
    ],
)
def test_sums_that_only_look_like_parts_side_by_side(name, inner):
    """`inner`: how many sums within are of parts indeed."""
    graph = of_one(look_alike(name), [7, 2])
    made = ops_after(graph, tiled)
    assert made[-1] is not Op.CONCAT
    assert graph.nodes[graph.outputs[0]].op is made[-1]
    if not inner:
        assert Op.UNSLICE in made
    agrees(graph, {"x": with_odd((7, 2), share=0.3)})


def test_parts_and_their_sum_may_all_be_outputs():
    def build(graph, x):
        low, high = parts_of(graph, x, [(0, 3), (3, 7)])
        both = low + high
        return [low, both, high, both * 2.0, both + low]

    graph = of_one(build, [7, 2])
    made = ops_after(graph, tiled)
    assert made.count(Op.CONCAT) == 1
    assert made.count(Op.UNSLICE) == 2
    agrees(graph, {"x": with_odd((7, 2), share=0.3)})


# Windows that one product makes.


def folded_product(graph, x, kernel, steps=(1, 1), turned=(0, 1, 2, 5, 3, 4)):
    windows = (x @ kernel).reshape(2, 4, 5, 2, 3, 8).transpose(*turned)
    lengths = [3 * steps[0] + 2, 4 * steps[1] + 3]
    return windows, graph.fold(windows, (1, 2), lengths, steps)


def product_graph(build, dtype=DType.F32):
    graph = Graph("product")
    x, kernel = graph.input("x", [2, 4, 5, 6], dtype), graph.input("k", [6, 48], dtype)
    graph.set_outputs(build(graph, x, kernel))
    arrays = {"x": with_odd((2, 4, 5, 6), dtype), "k": with_odd((6, 48), dtype, 0.01, seed=2)}
    assert not np.isfinite(arrays["x"].astype(float)).all()
    return graph, arrays


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_windows_made_place_by_place_keep_odd_numbers(dtype):
    graph, arrays = product_graph(lambda g, x, k: [folded_product(g, x, k)[1]], dtype)
    plain, made = ops_after(graph), ops_after(graph, placed)
    assert made != plain
    rtol = {DType.F16: 4e-3, DType.BF16: 4e-2}.get(dtype, 1e-4)
    (found,) = agrees(graph, arrays, rtol)
    assert 0 < np.isfinite(found.astype(float)).sum() < found.size


LOOK_ALIKES = {
    "windows apart": lambda g, x, k: [folded_product(g, x, k, (2, 1))[1]],
    "the windows too": lambda g, x, k: [*folded_product(g, x, k)],
    "the product too": lambda g, x, k: [folded_product(g, x, k)[1], x @ k],
    "another reader": lambda g, x, k: [(pair := folded_product(g, x, k))[1], pair[0] * 2.0],
    "no product": lambda g, x, k: [folded_product(g, x, k + 0.0)[1], (x * 1.0) @ k],
}


@pytest.mark.parametrize("build", LOOK_ALIKES.values(), ids=LOOK_ALIKES)
def test_windows_that_somebody_else_reads(build):
    graph, arrays = product_graph(build)
    agrees(graph, arrays)


@pytest.mark.parametrize("name", ["windows apart", "the windows too", "another reader"])
def test_such_windows_are_left_as_they_are(name):
    graph, _ = product_graph(LOOK_ALIKES[name])
    assert ops_after(graph, placed) == ops_after(graph)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_windows_of_images_whose_number_is_bound_at_the_run(count):
    """The gradient of a convolution in its images; the same with every image alone."""
    graph = Graph("named")
    x, kernel = graph.input("x", ["n", 6, 7, 8]), graph.input("k", [3, 2, 8, 4])
    made = graph.conv2d(x, kernel)
    graph.set_outputs([(made * made).sum()])
    derived = grad(graph, ["x"])
    assert ops_after(derived, placed) != ops_after(derived)
    arrays = {
        "x": with_odd((count, 6, 7, 8), share=0.002),
        "k": with_odd((3, 2, 8, 4), share=0, seed=2),
        "d_output": np.float32(1),
    }
    (whole,) = agrees(derived, arrays, 1e-3)
    for one in range(count):
        (alone,) = agrees(derived, arrays | {"x": arrays["x"][one : one + 1]}, 1e-3)
        np.testing.assert_allclose(whole[one : one + 1], alone, rtol=1e-5)


# Sums as products with ones.


def is_product(graph):
    return "matmul(" in Session().compile(graph).bind({}).describe()


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MEAN], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=str)
def test_a_sum_that_is_a_product_keeps_odd_numbers_in_their_columns(dtype, axis, op):
    graph = of_one(lambda g, x: g.reduce(op, x, [axis]), [60, 50], dtype)
    assert is_product(graph)
    x = with_odd((60, 50), dtype, 0.005)
    (found,) = agrees(graph, {"x": x})
    assert (np.isfinite(found) == np.isfinite(x).all(axis)).all()
    assert 5 < np.isfinite(found).sum() < found.size


def test_a_sum_that_is_a_product_knows_the_smallest_numbers():
    for axis in (0, 1):
        graph = of_one(lambda g, x, axis=axis: x.sum(axis), [64, 64])
        assert is_product(graph)
        (found,) = agrees(graph, {"x": np.full((64, 64), 1e-45, np.float32)})
        assert (found == np.float32(1e-45) * 64).all()
        (found,) = agrees(graph, {"x": np.full((64, 64), -0.0, np.float32)})
        assert not found.any()


NO_PRODUCT = {
    "halves": ([64, 64], DType.F16, lambda g, x: x.cast(DType.F16).max(0)),
    "integers": ([64, 64], DType.I32, lambda g, x: x.sum(0)),
    "few": ([16, 16], DType.F32, lambda g, x: x.sum(0)),
    "a maximum": ([64, 64], DType.F32, lambda g, x: x.max(0)),
    "between": ([16, 16, 16], DType.F32, lambda g, x: x.sum(1)),
    "all": ([64, 64], DType.F32, lambda g, x: x.sum()),
    "every second": ([64, 128], DType.F32, lambda g, x: x[:, ::2].sum(0)),
    "backwards": ([64, 64], DType.F32, lambda g, x: x[::-1].sum(0)),
    "repeated": ([1, 64], DType.F32, lambda g, x: g.broadcast_to(x, [64, 64]).sum(0)),
    "windows": ([80], DType.F32, lambda g, x: g.unfold(x, (0,), (40,), (1,)).sum(0)),
    "long rows": ([2, 5000], DType.F32, lambda g, x: x.sum(1)),
}


@pytest.mark.parametrize(("dims", "dtype", "build"), NO_PRODUCT.values(), ids=NO_PRODUCT)
def test_sums_that_are_no_product(dims, dtype, build):
    graph = of_one(build, dims, dtype)
    assert not is_product(graph)
    if dtype.is_float:
        agrees(graph, {"x": with_odd(dims, dtype, 0.002)})
    else:
        agrees(graph, {"x": np.full(dims, 2**31 - 1, np.int32)})


# Results over dying operands.

CHAINS = {
    "a chain": lambda g, a, b: [g.unary(UnaryOp.RELU, (a + b) * a - b)],
    "where over its last": lambda g, a, b: [g.where(a < b, a, a * b)],
    "where over its first": lambda g, a, b: [g.where(a < b, a * b, b)],
    "an output within": lambda g, a, b: [(both := a + b) * a, both, both - b],
    "used twice": lambda g, a, b: [(both := a + b) * both + both],
    "turned": lambda g, a, b: [(both := a + b) * both.transpose()],
    "turned and backwards": lambda g, a, b: [(both := a + b) - both.transpose()[::-1]],
    "a part of itself": lambda g, a, b: [(both := a + b) * both[:1]],
    "another dtype": lambda g, a, b: [(a + b).cast(DType.F64) * 2.0, (a + b).cast(DType.BOOL)],
    "of one byte": lambda g, a, b: [((a + b) < a).cast(DType.I8) + (a < b).cast(DType.I8)],
    "repeated": lambda g, a, b: [(a[:1] + b[:1]) * (a + b)],
    "maxima": lambda g, a, b: [g.binary(BinaryOp.MAX, a * b, g.binary(BinaryOp.MIN, a, b) * a)],
    "a sigmoid and its input": lambda g, a, b: [
        g.unary(UnaryOp.SIGMOID, (both := a * b)) * both,
    ],
}


@pytest.mark.parametrize("size", [6, 100])
@pytest.mark.parametrize("build", CHAINS.values(), ids=CHAINS)
def test_results_over_dying_operands(build, size):
    graph = Graph("chain")
    a, b = graph.input("a", [size, size]), graph.input("b", [size, size])
    graph.set_outputs(build(graph, a + 0.0, b * 1.0))
    arrays = {
        "a": with_odd((size, size), share=0.2),
        "b": with_odd((size, size), share=0.2, seed=2),
    }
    agrees(graph, arrays)
