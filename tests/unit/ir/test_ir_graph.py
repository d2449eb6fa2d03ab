"""Building graphs: what is inferred, and what is refused at the line that builds it."""

import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx.errors import GraphError
from rlx.ir import CATALOGUE, BinaryOp, DType, Graph, Op, ReduceOp, UnaryOp
from rlx.ir.inference import INFERENCE


@pytest.fixture
def graph():
    return Graph("test")


def test_every_op_has_an_inference_rule():
    assert set(INFERENCE) == set(CATALOGUE) == set(Op)


WRONG = {
    "broadcast": (
        lambda g, x, w: x + w,
        r"\[batch, 3\] and \[4, 5\] do not broadcast: batch against 4",
    ),
    "names": (
        lambda g, x, w: x + g.input("z", ["other", 3]),
        r"\[batch, 3\] and \[other, 3\] do not broadcast: batch against other on axis -2",
    ),
    "matmul": (lambda g, x, w: x @ w, r"\[batch, 3\] is 3, the one before last of \[4, 5\] is 4"),
    "vector": (lambda g, x, w: x @ g.param("v", [3]), r"F32\[batch, 3\] and F32\[3\]"),
    "dtypes": (lambda g, x, w: x + x.cast(DType.F64), r"F32\[batch, 3\] and F64\[batch, 3\]"),
    "integers": (lambda g, x, w: x.cast(DType.I32) / x.cast(DType.I32), "floating-point"),
    "exp": (lambda g, x, w: g.unary(UnaryOp.EXP, x.cast(DType.I8)), r"I8\[batch, 3\]"),
    "unsigned": (lambda g, x, w: -x.cast(DType.U8), "signed numbers"),
    "logic": (lambda g, x, w: x & x, r"takes BOOL; got F32\[batch, 3\]"),
    "order": (lambda g, x, w: (x < x) < (x < x), "takes numbers"),
    "where": (lambda g, x, w: g.where(x, x, x), r"BOOL condition; got F32\[batch, 3\]"),
    "reshape": (lambda g, x, w: x.reshape(3, 3), r"\[batch, 3\] has 3\*batch elements, \[3, 3\]"),
    "free": (lambda g, x, w: w.reshape(3, -1), r"\[4, 5\] does not divide into \[3, -1\]"),
    "two free": (lambda g, x, w: w.reshape(-1, -1), "at most one dimension is -1"),
    "transpose": (lambda g, x, w: x.transpose(0, 0), r"no order of the axes of \[batch, 3\]"),
    "axis": (lambda g, x, w: x.sum(2), r"\[batch, 3\] has no axis 2"),
    "axis twice": (lambda g, x, w: x.sum([1, -1]), "name one axis twice"),
    "broadcast_to": (
        lambda g, x, w: g.broadcast_to(w, [4, 6]),
        r"\[4, 5\] does not broadcast to \[4",
    ),
    "concat": (lambda g, x, w: g.concat([x, w], 0), r"F32\[batch, 3\], F32\[4, 5\] differ"),
    "no concat": (lambda g, x, w: g.concat([], 0), "at least one value"),
    "gather": (lambda g, x, w: g.gather(x, x), r"I32 or I64 indices; got F32\[batch, 3\]"),
    "labels": (
        lambda g, x, w: g.cross_entropy(x, g.input("y", ["batch", 1], DType.I64)),
        r"F32\[batch, 3\] and I64\[batch, 1\]",
    ),
    "pick": (
        lambda g, x, w: g.pick(x, g.input("y", ["batch", 3], DType.I64)),
        r"\[..., n\] and indices \[...\]; got F32\[batch, 3\], I64\[batch, 3\]",
    ),
    "pick by bytes": (lambda g, x, w: g.pick(w, w[:, 0].cast(DType.U8)), "or I64 indices; got U8"),
    "pick no row": (lambda g, x, w: g.pick(x.sum(), x.sum().cast(DType.I32)), r"got F32\[\], I32"),
    "normalize halves": (lambda g, x, w: g.normalize(x.cast(DType.F16), 1e-5), "F32 or F64 with"),
    "normalize integers": (lambda g, x, w: g.normalize(x.cast(DType.I64), 1), "F32 or F64 with"),
    "normalize no axis": (lambda g, x, w: g.normalize(x.sum(), 1e-5), r"an axis; got F32\[\]"),
    "normalize epsilon": (
        lambda g, x, w: g.add(Op.NORMALIZE, [x.id, w[0].id], {}),
        r"a number of F32 as epsilon; got F32\[5\]",
    ),
    "normalize epsilon of F64": (
        lambda g, x, w: g.add(Op.NORMALIZE, [x.id, g.scalar(1.0, DType.F64).id], {}),
        r"a number of F32 as epsilon; got F64\[\]",
    ),
    "empty maximum": (lambda g, x, w: x[:, :0].max(1), r"\[batch, 0\] has an empty axis"),
    "index": (lambda g, x, w: w[4], r"index 4 is out of range for axis 0 of \[4, 5\]"),
    "many indices": (lambda g, x, w: w[0, 0, 0], "3 indices for the 2 axes"),
    "step": (lambda g, x, w: x[::2], "named dimension batch only step 1"),
    "zero step": (lambda g, x, w: w[::0], "a step is not 0"),
    "name taken": (lambda g, x, w: g.input("x", [1]), "has 'x' already"),
    "named param": (lambda g, x, w: g.param("p", ["batch"]), r"its shape is known; got \[batch\]"),
    "foreign": (lambda g, x, w: x + Graph("far").input("x", [3]), "graph 'far' was given to"),
    "truth": (lambda g, x, w: bool(x < x), "no truth value"),
    "rows": (lambda g, x, w: g.scatter_add(w, g.constant(np.arange(3)), 9), "do not begin with"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_node_is_refused_where_it_is_built(graph, case):
    build, message = WRONG[case]
    x, w = graph.input("x", ["batch", 3]), graph.param("w", [4, 5])
    with pytest.raises(GraphError, match=message):
        build(graph, x, w)


def test_shapes_and_dtypes_are_inferred(graph):
    x, w = graph.input("x", ["batch", 3]), graph.param("w", [3, 5])
    y = x @ w
    assert y.shape.dims == ("batch", 5)
    assert (y < y).dtype is DType.BOOL
    assert y.sum(0, keepdims=True).shape.dims == (1, 5)
    assert graph.concat([x, x], 0).shape.dims == ("2*batch", 3)
    assert y.reshape(-1).shape.dims == ("5*batch",)
    assert y[1:].shape.dims == ("batch-1", 5)
    assert y[-1].shape.dims == (5,)
    assert x.cast(DType.I8).sum().dtype is DType.I64
    assert x.cast(DType.I8).mean().dtype is DType.F64
    assert graph.argmax(y, -1).shape.dims == ("batch",)
    labels = graph.input("labels", ["batch"], DType.I32)
    assert graph.cross_entropy(y.cast(DType.F16), labels).dtype is DType.F32
    assert graph.gather(w, labels).shape.dims == ("batch", 5)
    assert graph.pick(y.cast(DType.BOOL), labels).shape.dims == ("batch",)
    assert graph.normalize(y, 1e-5).node.type == y.node.type
    assert graph.one_hot(labels, 7, DType.I8).shape.dims == ("batch", 7)


OPERATORS = {
    BinaryOp.ADD: lambda a, b: a + b,
    BinaryOp.SUB: lambda a, b: a - b,
    BinaryOp.MUL: lambda a, b: a * b,
    BinaryOp.DIV: lambda a, b: a / b,
    BinaryOp.POW: lambda a, b: a**b,
}


@pytest.mark.parametrize("op", OPERATORS, ids=str)
def test_operators_take_numbers_on_either_side(graph, op):
    x = graph.input("x", [2])
    for value, sides in ((OPERATORS[op](x, 2), (0, None)), (OPERATORS[op](2.0, x), (None, 0))):
        assert value.node.op is op.value
        for side, operand in zip(sides, value.node.inputs, strict=True):
            constant = graph.nodes[operand]
            assert operand == side or constant.attributes["content"] == struct.pack("<f", 2.0)


def test_comparisons_build_nodes_but_equality_compares_handles(graph):
    x, y = graph.input("x", [2]), graph.input("y", [2])
    for value, op in ((x < y, Op.LT), (x <= y, Op.LE), (x > y, Op.GT), (x >= y, Op.GE)):
        assert value.node.op is op
    assert x.equal(y).node.op is Op.EQ
    assert x == graph.value(x.id)
    assert x != y
    assert len({x, graph.value(x.id), y}) == 2


@pytest.mark.parametrize(
    ("number", "dtype"),
    [
        (300, DType.I8),
        (-1, DType.U8),
        (1.5, DType.I32),
        (True, DType.F32),
        (1, DType.BOOL),
        (1e6, DType.F16),
    ],
)
def test_a_number_that_does_not_fit_is_refused(graph, number, dtype):
    with pytest.raises(GraphError, match="number"):
        graph.constant(number, dtype)


def test_a_bf16_number_is_rounded_to_nearest(graph):
    for number in (1.0, 1.00390625, 1.01171875, 3.14159, float("inf"), float("nan")):
        content = graph.constant(number, DType.BF16).node.attributes["content"]
        expected = np.array(number, np.float32).astype(ml_dtypes.bfloat16)
        found = np.frombuffer(content, ml_dtypes.bfloat16)[0]
        np.testing.assert_equal(float(found), float(expected))


def test_a_constant_of_the_other_byte_order_has_the_same_bytes(graph):
    native, other = np.array([1.0, 2.0], "<f4"), np.array([1.0, 2.0], ">f4")
    contents = {graph.constant(one).node.attributes["content"] for one in (native, other)}
    assert contents == {struct.pack("<2f", 1, 2)}
    with pytest.raises(GraphError, match="got uint16"):
        graph.constant(np.array([1], np.uint16))


def test_outputs_and_their_names_are_checked(graph):
    x = graph.input("x", ["n"])
    with pytest.raises(GraphError, match="no outputs"):
        graph.set_outputs([])
    graph.set_outputs([x])
    graph.size("elsewhere")
    with pytest.raises(GraphError, match=r"no input has the dimension\(s\) elsewhere"):
        graph.set_outputs([x])


def test_the_digest_tells_graphs_apart_and_equal_ones_together():
    def build(number):
        graph = Graph("g")
        graph.set_outputs([graph.input("x", ["n"]) * number])
        return graph

    assert build(2.0).digest() == build(2.0).digest()
    assert build(2.0).digest() != build(3.0).digest()
    assert build(2.0).copy().digest() == build(2.0).digest()


BOUNDS = st.none() | st.integers(-7, 7)
FORWARD = st.builds(slice, BOUNDS, BOUNDS, st.sampled_from([None, 1, 2, 3]))
BACKWARD = st.builds(slice, BOUNDS, BOUNDS, st.sampled_from([-1, -2]))


@given(st.lists(st.tuples(st.integers(0, 5), FORWARD | BACKWARD), min_size=1, max_size=3))
def test_a_slice_has_the_shape_that_numpy_gives(axes):
    sizes, key = zip(*axes, strict=True)
    graph = Graph("slices")
    assert graph.input("x", sizes)[key].shape.dims == np.zeros(sizes)[key].shape


def runs_backwards(start, stop):
    """Whether both bounds count from one end, the stop before the start: never a length."""
    first = start or 0
    if first >= 0 and stop is not None and stop >= 0:
        return stop < first
    return first < 0 and (stop is None or stop < 0) and (stop or 0) < first


@given(st.integers(0, 12), BOUNDS, BOUNDS)
def test_a_slice_of_a_named_dimension_has_numpys_length(size, start, stop):
    """Where the bounds lie in order inside what is given; elsewhere the run refuses."""
    x = Graph("named").input("x", ["n"])
    if runs_backwards(start, stop):
        with pytest.raises(GraphError, match="not negative"):
            x[start:stop]
        return
    length = x[start:stop].shape
    inside = all(bound is None or -size <= bound <= size for bound in (start, stop))
    low, high, _ = slice(start, stop).indices(size)
    if inside and low <= high:
        assert length.bind({"n": size}) == (high - low,)


def test_a_reduction_keeps_its_axes_sorted(graph):
    x = graph.input("x", [2, 3, 4])
    assert graph.reduce(ReduceOp.SUM, x, [-1, 0]).node.attributes["axes"] == (0, 2)
    assert graph.reduce(ReduceOp.SUM, x, []).shape.dims == (2, 3, 4)
    assert graph.reduce(ReduceOp.SUM, x).shape.dims == ()
