"""Every VJP rule against central differences in float64, and the corner cases met in the field."""

from __future__ import annotations

import numpy as np
import pytest

from rlx.autodiff import VJP, grad, grad_with_loss
from rlx.backends import Session
from rlx.errors import GraphError, NoGradientError
from rlx.ir import CATALOGUE, BinaryOp, DType, Graph, Op, ReduceOp, UnaryOp
from rlx.testing.gradcheck import check_gradients

F64 = DType.F64


def values(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    """Random float64 values, the same for the same seed."""
    return np.random.Generator(np.random.Philox(seed)).uniform(low, high, shape)


def weighted_sum(graph, value):
    """A loss in which each element of `value` counts differently, so that no error cancels."""
    dims = [dim if isinstance(dim, int) else 1 for dim in value.shape]
    weights = values(*dims, seed=99, low=0.5, high=1.5)
    return (value * graph.constant(weights)).sum()


def check_one(build, arrays, wrt=None, dims=None, **options):
    """Check the gradients of `build(graph, *inputs)` in all its float inputs."""
    graph = Graph("check")
    inputs = []
    for name, array in arrays.items():
        dtype = {"float64": F64, "int64": DType.I64, "bool": DType.BOOL}[array.dtype.name]
        inputs.append(graph.input(name, (dims or {}).get(name, array.shape), dtype))
    graph.set_outputs([weighted_sum(graph, build(graph, *inputs))])
    names = wrt or [name for name, array in arrays.items() if array.dtype == np.float64]
    check_gradients(graph, names, arrays, **options)


def gradients(build, arrays, dtype=F64):
    """The gradients of the loss that `build` makes from one parameter for each array."""
    graph = Graph("gradients")
    params = [graph.param(name, array.shape, dtype) for name, array in arrays.items()]
    graph.set_outputs([build(graph, *params)])
    executable = Session("cpu").compile(grad(graph, list(arrays)))
    for name, array in arrays.items():
        executable.set_param(name, array)
    seed = np.ones((), graph.nodes[graph.outputs[0]].dtype.value)
    return executable.run({"d_output": seed})


def test_every_op_of_the_catalogue_has_a_row():
    assert set(VJP) == set(CATALOGUE) == set(Op)


SMOOTH = {
    UnaryOp.NEG: (-2, 2),
    UnaryOp.EXP: (-2, 2),
    UnaryOp.LOG: (0.2, 3),
    UnaryOp.SQRT: (0.2, 3),
    UnaryOp.TANH: (-2, 2),
    UnaryOp.SIGMOID: (-3, 3),
    UnaryOp.RELU: (0.1, 2),
    UnaryOp.GELU: (-3, 3),
    UnaryOp.ABS: (0.1, 2),
    UnaryOp.SIN: (-3, 3),
    UnaryOp.COS: (-3, 3),
}


@pytest.mark.parametrize("op", SMOOTH)
@pytest.mark.parametrize("sign", [1, -1])
def test_unary_ops(op, sign):
    low, high = SMOOTH[op]
    if sign < 0 and low > 0 and op not in (UnaryOp.RELU, UnaryOp.ABS):
        sign = 1
    x = sign * values(3, 4, low=low, high=high)
    check_one(lambda graph, a: graph.unary(op, a), {"a": x})


@pytest.mark.parametrize("op", [BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.DIV])
@pytest.mark.parametrize(
    ("left", "right"), [((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 1), (1, 4)), ((2, 1, 4), (3, 1))]
)
def test_arithmetic_with_broadcasts(op, left, right):
    arrays = {"a": values(*left, seed=1), "b": values(*right, seed=2, low=0.5)}
    check_one(lambda graph, a, b: graph.binary(op, a, b), arrays)


@pytest.mark.parametrize("op", [BinaryOp.MAX, BinaryOp.MIN])
def test_maximum_and_minimum_away_from_ties(op):
    arrays = {"a": values(5, 3, seed=1), "b": values(3, seed=2)}
    check_one(lambda graph, a, b: graph.binary(op, a, b), arrays)


def test_power_in_base_and_exponent():
    arrays = {"a": values(3, 4, low=0.3), "b": values(4, seed=1)}
    check_one(lambda graph, a, b: a**b, arrays, tolerance=1e-5)


def test_where_and_cast():
    arrays = {"c": values(3, 4) > 0, "a": values(3, 4, seed=1), "b": values(4, seed=2)}
    check_one(lambda graph, c, a, b: graph.where(c, a, b), arrays)
    narrow = lambda graph, a: graph.cast(graph.cast(a, F64), F64)  # noqa: E731
    check_one(narrow, {"a": values(3)})


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 4), (4, 2)),
        ((5, 3, 4), (4, 2)),
        ((5, 3, 4), (5, 4, 2)),
        ((3, 4), (5, 4, 2)),
        ((2, 1, 3, 4), (5, 4, 2)),
    ],
)
def test_matmul_with_any_broadcast_of_stacks(left, right):
    arrays = {"a": values(*left, seed=1), "b": values(*right, seed=2)}
    check_one(lambda graph, a, b: a @ b, arrays)


REDUCTIONS = [ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.MAX, ReduceOp.MIN, ReduceOp.PROD]


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", [None, (0,), (-1,), (0, 2), (2, 0), ()])
def test_reductions(op, keepdims, axes):
    x = values(2, 3, 4, seed=3)
    check_one(lambda graph, a: graph.reduce(op, a, axes, keepdims), {"a": x}, tolerance=1e-5)


def test_shapes():
    x = {"a": values(2, 3, 4)}
    check_one(lambda graph, a: graph.reshape(a, [4, -1]), x)
    check_one(lambda graph, a: graph.transpose(a, [2, 0, 1]), x)
    check_one(lambda graph, a: graph.broadcast_to(a, [5, 2, 3, 4]), x)
    check_one(lambda graph, a: a[1:, ::-1, 0:4:2], x)
    check_one(lambda graph, a: a[0, ..., 1], x)
    part = {"a": values(2, 2)}
    check_one(lambda graph, a: graph.unslice(a, [4, 3], [1, 0], [3, 3], [1, 2]), part)
    pair = {"a": values(2, 3), "b": values(2, 1, seed=1), "c": values(2, 2, seed=2)}
    check_one(lambda graph, a, b, c: graph.concat([a, b, c], 1), pair)


def test_windows():
    x = {"a": values(2, 5, 4, 2)}
    check_one(lambda graph, a: graph.unfold(a, (1, 2), (3, 2), (2, 1)), x)
    check_one(lambda graph, a: graph.unfold(a, (0, 3), (1, 1), (2, 1)), x)
    folded = {"a": values(2, 2, 3, 3, 2)}
    check_one(lambda graph, a: graph.fold(a, (1, 2), (5, 4), (2, 1)), folded)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("stride", "padding"), [(1, 0), ((2, 1), (1, 2)), (3, 1)])
def test_convolutions(stride, padding, groups):
    arrays = {"x": values(2, 5, 4, 2), "w": values(3, 2, 2 // groups, 4, seed=1)}
    options = {"stride": stride, "padding": padding, "groups": groups}
    check_one(lambda graph, x, w: graph.conv2d(x, w, **options), arrays)


@pytest.mark.parametrize("stride", [None, 1])
def test_pooling(stride):
    x = {"x": values(2, 5, 4, 2)}
    check_one(lambda graph, x: graph.max_pool(x, 2, stride=stride), x)
    check_one(lambda graph, x: graph.average_pool(x, (3, 2), stride=stride), x)


def test_layer_norm():
    arrays = {"x": values(3, 5), "gain": values(5, seed=1), "bias": values(5, seed=2)}
    check_one(lambda graph, x, gain, bias: graph.layer_norm(x, gain, bias), arrays)


def test_indices():
    rows = np.array([[2, 0], [2, 1]])
    check_one(lambda graph, a, i: graph.gather(a, i), {"a": values(3, 4), "i": rows})
    updates = {"a": values(2, 2, 4), "i": rows}
    check_one(lambda graph, a, i: graph.scatter_add(a, i, 3), updates)


def test_softmax_family():
    x = {"a": values(3, 5)}
    check_one(lambda graph, a: graph.softmax(a, 0), x)
    check_one(lambda graph, a: graph.log_softmax(a, -1), x)
    labelled = {"a": values(3, 5), "i": np.array([4, 0, 4])}
    check_one(lambda graph, a, i: graph.cross_entropy(a, i), labelled)


def test_a_wrong_rule_is_found(monkeypatch):
    monkeypatch.setitem(VJP, Op.TANH, lambda site, output, cotangent: [cotangent * output])
    with pytest.raises(AssertionError, match="differences give"):
        check_one(lambda graph, a: graph.unary(UnaryOp.TANH, a), {"a": values(3)})


def test_a_shared_subexpression_gets_all_its_shares():
    def build(graph, a):
        shared = graph.unary(UnaryOp.TANH, a)
        return shared * shared + shared * a

    check_one(build, {"a": values(4)})


def test_a_named_batch_dimension_bakes_nothing_in():
    dims = {"x": ["batch", 3], "y": ["batch", 1]}

    def build(graph, x, w, y):
        error = graph.binary(BinaryOp.SUB, x @ w, y)
        return graph.reduce(ReduceOp.MEAN, error * error, [0])

    for rows in (1, 2, 7):
        arrays = {"x": values(rows, 3), "w": values(3, 1, seed=1), "y": values(rows, 1, seed=2)}
        check_one(build, arrays, dims=dims)


def test_a_concat_along_a_named_dimension():
    arrays = {"a": values(2, 3), "b": values(4, 3, seed=1), "c": values(1, 3, seed=2)}
    graph = Graph("named concat")
    a = graph.input("a", [2, 3], F64)
    b = graph.input("b", ["rows", 3], F64)
    c = graph.input("c", [1, 3], F64)
    joined = graph.concat([a, b, c], 0)
    assert joined.shape.dims == ("rows+3", 3)
    graph.set_outputs([(joined * joined * joined).sum()])
    check_gradients(graph, ["a", "b", "c"], arrays, tolerance=1e-5)


def test_second_derivatives():
    graph = Graph("cube")
    x = graph.param("x", [3], F64)
    graph.set_outputs([(x * x * x).sum()])
    first = grad(graph, ["x"])
    twice = first.copy("sum of the gradient")
    twice.set_outputs([twice.value(first.outputs[0]).sum()])
    second = grad(twice, ["x"], seed="seed2")
    executable = Session("cpu").compile(second)
    executable.set_param("x", np.array([1.0, -2.0, 3.0]))
    one = np.ones(())
    (result,) = executable.run({"d_output": one, "seed2": one})
    assert result.tolist() == [6.0, -12.0, 18.0]


# Cases from the field.


def test_an_add_that_broadcasts_both_sides():
    x = np.arange(6.0).reshape(2, 3)

    def build(graph, w, b):
        return (graph.constant(x) @ w + b).sum()

    to_w, to_b = gradients(build, {"w": np.ones((3, 1)), "b": np.ones((1, 3))})
    assert to_b.tolist() == [[2, 2, 2]]
    assert to_w.tolist() == (x.T @ np.full((2, 1), 3.0)).tolist()


@pytest.mark.parametrize("axes", [[0], [-2]])
def test_the_gradient_of_a_mean_over_one_axis(axes):
    def build(graph, t):
        return (t.mean(axes, keepdims=True) @ graph.constant(np.full((3, 1), 10.0))).sum()

    (result,) = gradients(build, {"t": np.ones((2, 3))})
    assert result.tolist() == np.full((2, 3), 5.0).tolist()


@pytest.mark.parametrize("axes", [(0, 2), (2, 0), (-1,), ()])
@pytest.mark.parametrize("keepdims", [True, False])
def test_the_gradient_of_a_mean_has_the_operands_shape(axes, keepdims):
    (result,) = gradients(lambda graph, t: t.mean(axes, keepdims).sum(), {"t": np.ones((2, 3, 4))})
    share = 1 / np.prod([(2, 3, 4)[axis] for axis in axes], initial=1)
    assert result.shape == (2, 3, 4)
    assert np.allclose(result, share)


def test_equal_maxima_share_the_gradient():
    (of_three,) = gradients(lambda graph, x: x.max(), {"x": np.array([2.0, 2.0, 1.0])})
    assert of_three.tolist() == [0.5, 0.5, 0]
    (of_columns,) = gradients(lambda graph, x: x.max([0]).sum(), {"x": np.ones((4, 3))})
    assert of_columns.sum(0).tolist() == [1, 1, 1]
    (of_pair,) = gradients(
        lambda graph, a: graph.binary(BinaryOp.MAX, a, a).sum(), {"a": np.array([3.0])}
    )
    assert of_pair.tolist() == [1]


def test_relu_and_abs_have_gradient_zero_at_zero():
    for op in (UnaryOp.RELU, UnaryOp.ABS):
        (result,) = gradients(lambda graph, x, op=op: graph.unary(op, x).sum(), {"x": np.zeros(2)})
        assert result.tolist() == [0, 0]


def test_roots_and_squares_at_zero():
    zero = {"x": np.zeros(3)}
    sqrt = lambda graph, x: graph.unary(UnaryOp.SQRT, x)  # noqa: E731
    (square,) = gradients(lambda graph, x: (x * x).sum(), zero)
    assert square.tolist() == [0, 0, 0]
    (root,) = gradients(lambda graph, x: sqrt(graph, x).sum(), zero)
    assert np.isposinf(root).all()

    def safe_root(graph, x):
        positive = x > 0
        inside = graph.where(positive, x, graph.constant(1.0, F64))
        return graph.where(positive, sqrt(graph, inside), graph.constant(0.0, F64)).sum()

    (safe,) = gradients(safe_root, zero)
    assert safe.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("base", "exponent", "expected"),
    [(0.0, 1.5, 0), (0.0, 2.0, 0), (0.0, 1.0, 1), (0.0, 0.0, 0), (-2.0, 3.0, 12), (5.0, 0.0, 0)],
)
def test_powers_at_the_edges(base, exponent, expected):
    (result,) = gradients(lambda graph, x: (x**exponent).sum(), {"x": np.array([base])})
    assert result.tolist() == [expected]


def test_a_power_of_zero_has_no_slope_in_its_exponent():
    (_, to_exponent) = gradients(
        lambda graph, a, b: (a**b).sum(), {"a": np.zeros(1), "b": np.ones(1)}
    )
    assert to_exponent.tolist() == [0]


@pytest.mark.parametrize("values_", [[0.0, 3.0, 4.0], [0.0, 0.0, 4.0], [2.0, 3.0, 4.0]])
def test_a_product_with_zeros(values_):
    x = np.array(values_)
    (result,) = gradients(lambda graph, a: graph.reduce(ReduceOp.PROD, a), {"a": x})
    expected = [np.prod(np.delete(x, place)) for place in range(3)]
    assert result.tolist() == expected


def cross_entropy_of(logits, dtype):
    graph = Graph("ce")
    a = graph.param("a", logits.shape, dtype)
    label = graph.input("label", [1], DType.I64)
    graph.set_outputs([graph.cross_entropy(a, label).sum()])
    derived = grad_with_loss(graph, ["a"])
    executable = Session("cpu").compile(derived)
    executable.set_param("a", logits)
    seed = np.ones((), graph.nodes[graph.outputs[0]].dtype.value)
    return executable.run({"label": np.zeros(1, np.int64), "d_output": seed})


def test_large_logits_stay_finite():
    loss, gradient = cross_entropy_of(np.array([[-1047, -981, 1891]], np.float32), DType.F32)
    assert loss == 2938
    assert gradient.tolist() == [[-1, 0, 1]]
    loss, gradient = cross_entropy_of(np.array([[-60000, 60000]], np.float16), DType.F16)
    assert loss == 120000
    assert gradient.tolist() == [[-1, 1]]


# Errors.


def test_a_value_that_the_loss_does_not_reach_has_no_gradient():
    graph = Graph("unreached")
    graph.param("w", [3])
    x = graph.input("x", [3])
    graph.set_outputs([x.sum()])
    with pytest.raises(NoGradientError, match=r"does not depend on .*'w'"):
        grad_with_loss(graph, ["w"])


def test_a_value_behind_a_comparison_has_no_gradient():
    graph = Graph("stepped")
    w = graph.param("w", [3])
    graph.set_outputs([(w > 0).cast(DType.F32).sum()])
    with pytest.raises(NoGradientError, match="only through ops that have no gradient"):
        grad_with_loss(graph, ["w"])


def test_a_loss_with_axes_is_refused():
    graph = Graph("vector")
    w = graph.param("w", [3])
    graph.set_outputs([w * 2])
    with pytest.raises(NoGradientError, match=r"F32\[3\]"):
        grad_with_loss(graph, ["w"])


def test_integers_have_no_gradient_and_strangers_are_refused():
    graph = Graph("integers")
    w = graph.param("w", [3])
    graph.input("i", [3], DType.I64)
    graph.set_outputs([w.sum()])
    with pytest.raises(NoGradientError, match="only floating-point"):
        grad_with_loss(graph, ["i"])
    with pytest.raises(GraphError, match="no input or parameter 'q'"):
        grad_with_loss(graph, ["q"])
    with pytest.raises(GraphError, match="no value of graph"):
        grad_with_loss(graph, [Graph("other").input("w", [3])])


def test_the_result_keeps_the_other_outputs_and_drops_dead_nodes():
    graph = Graph("extra")
    w = graph.param("w", [3])
    unused = w * 7
    count = graph.input("count", [])
    graph.set_outputs([(w * w).sum(), count])
    derived = grad_with_loss(graph, [w])
    assert [derived.nodes[one].type for one in derived.outputs] == [
        count.node.type,
        w.node.type,
        count.node.type,
    ]
    assert unused.node.op in {node.op for node in derived.nodes}
    assert len(derived.nodes) < len(graph.nodes) + 10
    sevens = [node for node in derived.nodes if node.op is Op.CONSTANT]
    assert not sevens
