"""The passes before planning: each agrees with the oracle on the graph as it was written, does what
it is for, and leaves alone what it must."""

import numpy as np
import pytest
from backends_support import numbers
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.autodiff import grad_with_loss
from rlx.backends import Session, evaluate, numpy_dtype, simplify
from rlx.backends.kernels import KERNELS
from rlx.backends.plan import Simplified
from rlx.backends.simplify import simplified
from rlx.backends.simplify.rewrite import Rewriting
from rlx.backends.simplify.rules import MAX_FOLDED_BYTES, folded, lowered, placed, tiled
from rlx.errors import DataError, UsageError
from rlx.ir import DType, Graph, Op, UnaryOp

F64 = DType.F64


def after(graph, *rules):
    """The graph after one pass of `rules`."""
    return Rewriting(Simplified(graph, graph.nodes)).run(*rules).graph


def ops(graph):
    """The ops that outputs need, in order, but for inputs and parameters."""
    needed = graph.needed()
    kept = [node.op for node in graph.nodes if node.id in needed]
    return [op for op in kept if op not in (Op.INPUT, Op.PARAM)]


def arrays_for(graph, bindings=None, seed=0):
    """Numbers for every input and parameter; indices are 0, 1 or 2."""
    rng = np.random.default_rng(seed)
    found = {}
    for node in (*graph.inputs, *graph.params):
        shape = node.shape.bind(bindings or {})
        if node.dtype.is_integer:
            found[node.name] = rng.integers(0, 3, shape).astype(numpy_dtype(node.dtype))
        else:
            found[node.name] = numbers(rng, shape, node.dtype, 0.5, 2)
    return found


def assert_agrees(graph, *rules, bindings=None, rtol=1e-12):
    """The pass gives the oracle's values, and so does the executor; the graph after the pass."""
    made = after(graph, *rules)
    arrays = arrays_for(graph, bindings)
    expected = evaluate(graph, arrays)
    names = [node.name for node in graph.params]
    inputs = {name: one for name, one in arrays.items() if name not in names}
    executable = Session().compile(graph, params={name: arrays[name] for name in names})
    for other in (evaluate(made, arrays), executable.run(inputs)):
        for one, two in zip(other, expected, strict=True):
            assert one.dtype == two.dtype
            np.testing.assert_allclose(one, two, rtol=rtol, atol=rtol)
    return made


def one_input(build, dims=(4, 5), dtype=F64):
    graph = Graph("one")
    graph.set_outputs([build(graph, graph.input("x", dims, dtype))])
    return graph


def differentiated(build, dims, params=()):
    """The graph of a loss and its gradient in the parameter `x`."""
    graph = Graph("loss")
    x = graph.param("x", dims, F64)
    others = [graph.param(name, shape, F64) for name, shape in params]
    value = build(graph, x, *others)
    graph.set_outputs([(value * value).sum()])
    return grad_with_loss(graph, ["x"])


def test_a_pass_that_changes_the_result_is_found(monkeypatch):
    """The counter-test of this file: a rule that is wrong."""

    def wrong(rewriting, node, operands):
        return operands[0] - operands[1] if node.op is Op.ADD else None

    graph = one_input(lambda g, x: x + 1.0)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_agrees(graph, wrong)
    monkeypatch.setattr(simplify, "PASSES", ((wrong,),))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_agrees(graph)


# Equal nodes, and nodes that nobody needs.


def test_equal_nodes_become_one():
    def build(graph, x):
        once, again = (x + 1.0) * x, x * (1.0 + x)
        return graph.unary(UnaryOp.EXP, once) - graph.unary(UnaryOp.EXP, again) + once

    graph = one_input(build)
    made = assert_agrees(graph)
    assert sorted(op.value for op in ops(made)) == sorted(
        ["constant", "add", "mul", "exp", "sub", "add"]
    )


def test_nodes_that_differ_in_order_or_attribute_stay_two():
    graph = Graph("two")
    x, y = graph.input("x", [4], F64), graph.input("y", [4], F64)
    graph.set_outputs([x - y, y - x, x / y, y / x, x < y, y < x, x[:2], x[2:], x.sum(), x.mean()])
    made = assert_agrees(graph)
    assert len(ops(made)) == len(ops(graph)) == 10


def test_constants_are_equal_by_their_bytes():
    graph = one_input(lambda g, x: x * g.constant(0.0, F64) + x / g.constant(-0.0, F64))
    assert [node.op for node in after(graph).nodes].count(Op.CONSTANT) == 2


def test_what_no_output_needs_goes_and_inputs_stay():
    graph = Graph("dead")
    x, unused = graph.input("x", [3], F64), graph.input("unused", [3], F64)
    graph.unary(UnaryOp.EXP, unused + x)
    graph.set_outputs([x * x])
    made = assert_agrees(graph)
    assert ops(made) == [Op.MUL]
    assert [node.name for node in made.inputs] == ["x", "unused"]


def test_an_error_names_the_node_that_the_user_wrote():
    graph = Graph("labels")
    x, y = graph.input("x", [2, 3]), graph.input("y", [2], DType.I64)
    shared = graph.softmax(x, -1)
    loss = graph.cross_entropy(x, y)
    graph.set_outputs([loss, shared])
    with pytest.raises(DataError, match=rf"cross_entropy \(%{loss.id}\), .*: the index 3 at \[1\]"):
        Session().compile(graph).run({"x": np.zeros((2, 3), np.float32), "y": np.array([0, 3])})


@pytest.mark.parametrize("dim", [130, "n"])
def test_an_error_of_a_size_names_the_node_that_the_user_wrote(dim):
    """Of a known dimension it is found when the size is folded, of a named one when it is bound."""
    graph = Graph("sizes")
    x = graph.input("x", ["n", 3])
    shares = graph.softmax(x, 1)
    size = graph.size(dim, DType.I8)
    graph.set_outputs([shares, size])
    message = rf"^%{size.id} = size\(dim={dim!r}.*: the size is 130, which I8 does not hold$"
    with pytest.raises(UsageError, match=message):
        Session().compile(graph).run({"x": np.zeros((130, 3), np.float32)})


# Compositions.

COMPOSED = {
    Op.GELU: lambda g, x, i: g.unary(UnaryOp.GELU, x),
    Op.SOFTMAX: lambda g, x, i: g.softmax(x, 0),
    Op.LOG_SOFTMAX: lambda g, x, i: g.log_softmax(x, 1),
    Op.CROSS_ENTROPY: lambda g, x, i: g.cross_entropy(x, i),
    Op.NORMALIZE: lambda g, x, i: g.normalize(x, 1e-5),
}


def composed(op, dtype=F64, dims=("n", 5)):
    graph = Graph("composed")
    x, i = graph.param("x", [4, 5], dtype), graph.input("i", ["n"], DType.I64)
    wide = graph.broadcast_to(x, [4, 5])
    graph.set_outputs([COMPOSED[op](graph, wide, i).cast(F64).sum()])
    return graph


def test_every_op_that_is_a_composition_is_tested_here():
    assert {op for op, kernel in KERNELS.items() if kernel.lower} == set(COMPOSED)


@pytest.mark.parametrize("op", COMPOSED, ids=lambda op: op.value)
def test_a_composition_is_written_out_and_agrees(op):
    graph = Graph("composed")
    x, i = graph.input("x", ["n", 5], F64), graph.input("i", ["n"], DType.I64)
    graph.set_outputs([COMPOSED[op](graph, x, i)])
    made = assert_agrees(graph, lowered, bindings={"n": 4})
    assert op in ops(graph)
    assert op not in ops(made)


def test_a_loss_and_its_gradient_share_their_exponentials():
    graph = Graph("classifier")
    x, i = graph.param("x", [4, 5], F64), graph.input("i", [4], DType.I64)
    graph.set_outputs([graph.cross_entropy(x, i).mean()])
    derived = grad_with_loss(graph, ["x"])
    made = assert_agrees(derived, lowered)
    assert ops(made).count(Op.EXP) == 1
    assert ops(after(derived)).count(Op.EXP) == 0, "before the pass there is none to share"


def test_gelu_and_normalisation_share_with_their_gradients():
    gelu = differentiated(lambda g, x: g.unary(UnaryOp.GELU, x), [4, 5])
    assert ops(assert_agrees(gelu, lowered)).count(Op.EXP) == 1
    norm = differentiated(lambda g, x: g.normalize(x, 1e-5), [4, 5])
    assert ops(assert_agrees(norm, lowered)).count(Op.SQRT) == 1


# Constants.


def test_arithmetic_of_constants_is_done_beforehand():
    def build(graph, x):
        table = graph.constant(np.arange(5.0))
        return x * (graph.unary(UnaryOp.SQRT, table) * 2.0 + 1.0).cast(DType.F32).cast(F64)

    graph = one_input(build)
    made = assert_agrees(graph, folded)
    assert ops(made) == [Op.CONSTANT, Op.MUL]


def test_a_size_is_folded_where_it_is_known():
    known = one_input(lambda g, x: x.mean(0) / g.size(5, F64) / (g.size(5, F64) * 2.0))
    assert Op.SIZE not in ops(assert_agrees(known, folded))
    named = one_input(lambda g, x: x / (g.size("n", F64) * 2.0), ["n", 5])
    assert Op.SIZE in ops(assert_agrees(named, folded, bindings={"n": 3}))


def test_no_constant_becomes_far_longer_than_those_it_is_made_of():
    rows = MAX_FOLDED_BYTES // 8
    graph = Graph("long")
    column, row = np.ones((rows, 1)), np.ones((1, 2))
    graph.set_outputs([graph.constant(column) + graph.constant(row)])
    assert Op.ADD in ops(after(graph, folded))
    graph = Graph("not longer")
    graph.set_outputs([graph.constant(np.ones(2 * rows)) + graph.constant(1.0, F64)])
    assert ops(after(graph, folded)) == [Op.CONSTANT]


# Slices that take a whole apart.


def taken_apart(graph, x, edges, axis=1):
    parts = []
    for number, (start, stop) in enumerate(edges):
        where = [slice(None)] * x.shape.rank
        where[axis] = slice(start, stop)
        parts.append(x[tuple(where)].sum([axis]) * (1.0 + number))
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


TILES = {
    "two halves": ([(0, 3), (3, 6)], True),
    "backwards": ([(4, 6), (2, 4), (0, 2)], True),
    "a gap": ([(0, 2), (3, 6)], False),
    "an overlap": ([(0, 4), (3, 6)], False),
    "short": ([(0, 2), (2, 5)], False),
    "one is whole": ([(0, 6), (0, 3)], False),
}


@pytest.mark.parametrize(("edges", "is_tiled"), TILES.values(), ids=TILES)
@pytest.mark.parametrize("axis", [0, 1])
def test_cotangents_of_slices_side_by_side_are_put_together(edges, is_tiled, axis):
    dims = [6, 3] if axis == 0 else [3, 6]
    graph = differentiated(lambda g, x: taken_apart(g, x, edges, axis), dims)
    made = assert_agrees(graph, tiled)
    assert (Op.CONCAT in ops(made)) == is_tiled
    assert (Op.UNSLICE in ops(made)) != is_tiled


def test_slices_with_steps_or_of_two_axes_are_left():
    stepped = differentiated(lambda g, x: x[:, ::2].sum(1) + x[:, 1::2].sum(1) * 2.0, [3, 6])
    assert Op.CONCAT not in ops(assert_agrees(stepped, tiled))
    corners = differentiated(lambda g, x: x[:1, :3].sum() + x[1:, 3:].sum() * 2.0, [2, 6])
    assert Op.CONCAT not in ops(assert_agrees(corners, tiled))


def test_parts_of_a_sum_that_others_take_too_are_left_whole():
    graph = Graph("taken")
    x = graph.input("x", [4], F64)
    low = graph.unslice(x[:2] * 2.0, [4], [0], [2])
    high = graph.unslice(x[2:] * 3.0, [4], [2], [4])
    both = low + high
    graph.set_outputs([both + x, low])
    made = assert_agrees(graph, tiled)
    assert ops(made).count(Op.CONCAT) == 1
    assert ops(made).count(Op.UNSLICE) == 1


def test_a_slice_of_an_axis_with_a_name_is_left():
    graph = Graph("named")
    x = graph.input("x", ["n", 3], F64)
    graph.set_outputs([(x[:2].sum() + x[2:].sum() * 2.0)])
    derived = grad_with_loss(graph, ["x"])
    assert Op.CONCAT not in ops(assert_agrees(derived, tiled, bindings={"n": 5}))


# Windows that one product makes and that are added up.


def convolution(image=(2, 6, 7, 8), kernel=(3, 2, 8, 4), **options):
    def build(graph, x, w):
        return graph.conv2d(x, w, **options)

    return differentiated(build, image, [("w", kernel)])


PLACED = {
    "plain": (convolution(), True),
    "padded": (convolution(padding=(2, 1)), True),
    "wide": (convolution((1, 3, 9, 9), (1, 4, 9, 3)), True),
    "strided": (convolution(stride=(1, 2)), False),
    "few channels": (convolution((2, 6, 7, 7), (3, 3, 7, 4)), False),
    "one place": (convolution(kernel=(1, 1, 8, 4)), False),
    "grouped": (convolution(groups=2, kernel=(3, 2, 4, 4)), False),
}


@pytest.mark.parametrize(("graph", "is_placed"), PLACED.values(), ids=PLACED)
def test_the_gradient_of_a_convolution_is_a_product_for_each_place(graph, is_placed):
    made = assert_agrees(graph, placed)
    (fold,) = [node for node in made.nodes if node.op is Op.FOLD] or [None]
    stacks = [
        node
        for node in made.nodes
        if node.op is Op.MATMUL and made.nodes[node.inputs[0]].shape.rank < node.shape.rank
    ]
    assert bool(stacks) == is_placed
    assert fold is not None or "one place" in str(graph)


def test_windows_that_others_take_too_are_not_made_twice():
    graph = Graph("shared")
    rows, w = graph.input("rows", [2, 4, 5, 3], F64), graph.input("w", [3, 32], F64)
    made = (rows @ w).reshape(2, 4, 5, 2, 2, 8)
    windows = made.transpose(0, 1, 2, 5, 3, 4)
    whole = graph.fold(windows, (1, 2), (5, 6), (1, 1))
    graph.set_outputs([whole])
    stacked = after(graph, placed)
    assert ops(assert_agrees(graph, placed)).count(Op.MATMUL) == 1
    graph.set_outputs([whole, made])
    kept = after(graph, placed)
    assert ops(kept) == ops(after(graph))
    assert ops(stacked) != ops(kept)
    assert_agrees(graph, placed)


@pytest.mark.parametrize("places_outside", [True, False])
def test_windows_are_added_in_one_order_wherever_their_places_lie(places_outside):
    """By place, or by every third window: the two differ in their last bits, and so in float32."""
    x = np.random.default_rng(4).standard_normal((3, 3, 2, 5, 5, 8)).astype(np.float32)
    graph = Graph("orders")
    given_ = graph.input("x", x.shape) + 0.0
    windows = given_.transpose(2, 3, 4, 5, 0, 1)
    if not places_outside:
        windows = windows.reshape(2, 5, 5, 8 * 9).reshape(*windows.shape)
    graph.set_outputs([graph.fold(windows, (1, 2), (7, 7), (1, 1))])
    (found,) = Session().compile(graph).run({"x": x})
    by_place, by_window = np.zeros((2, 2, 7, 7, 8), np.float32)
    for row, column in np.ndindex(3, 3):
        by_place[:, row : row + 5, column : column + 5] += x[row, column]
    blocks = x.transpose(2, 3, 4, 5, 0, 1)
    for first in np.ndindex(3, 3):
        for row in range(first[0], 5, 3):
            for column in range(first[1], 5, 3):
                block = blocks[:, row, column].transpose(0, 2, 3, 1)
                by_window[:, row : row + 3, column : column + 3] += block
    expected, other = (by_place, by_window) if places_outside else (by_window, by_place)
    assert found.tobytes() == expected.tobytes()
    assert found.tobytes() != other.tobytes()


# All together.


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.data())
def test_a_small_network_agrees_with_the_oracle_in_its_gradients(data):
    def draw(low, high):
        return data.draw(st.integers(low, high))

    high, wide, channels, filters = draw(1, 3), draw(1, 3), draw(1, 9), draw(1, 9)
    rows, columns, padding = draw(high + 1, 6), draw(wide + 1, 6), draw(0, 1)
    graph = Graph("net")
    x = graph.param("x", [2, rows, columns, channels], F64)
    kernel = graph.param("k", [high, wide, channels, filters], F64)
    value = graph.conv2d(x, kernel, padding=padding, stride=draw(1, 2))
    value = graph.unary(UnaryOp.RELU if data.draw(st.booleans()) else UnaryOp.GELU, value)
    if min(value.shape.dims[1:3]) >= 2:
        value = graph.max_pool(value, 2, stride=draw(1, 2))
    value = graph.layer_norm(value.reshape(2, -1))
    labels = graph.input("labels", [2], DType.I64)
    table = graph.param("head", [value.shape[1], 3], F64)
    graph.set_outputs([graph.cross_entropy(value @ table, labels).mean()])
    assert_agrees(grad_with_loss(graph, ["x", "k", "head"]), rtol=1e-8)


def test_simplifying_depends_on_the_graph_alone():
    graph = convolution()
    assert simplified(graph).graph.digest() == simplified(graph.copy()).graph.digest()
