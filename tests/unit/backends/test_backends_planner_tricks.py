"""What the planner does to make loops long: operands that are repeated are widened, results lie as
their operands do, and few places are reduced one by one. Bits are numpy's all the same."""

import numpy as np
import pytest
from backends_support import DISGUISES, assert_same_bits, numbers, run_op

from rlx.backends import Session, numpy_dtype
from rlx.backends.kernels import elementwise
from rlx.backends.kernels.runs import with_long_runs
from rlx.backends.layout import View
from rlx.ir import BinaryOp, DType, Graph, ReduceOp, UnaryOp

ODD = [np.nan, np.inf, -np.inf, -0.0, 0.0]


def odd(shape, dtype=DType.F32, seed=1):
    """Random numbers, every fifth of which is an odd one where the dtype has them."""
    rng = np.random.default_rng(seed)
    plain = numbers(rng, shape, dtype)
    if not dtype.is_float:
        return plain
    strange = rng.choice(ODD, shape).astype(plain.dtype)
    return np.where(rng.random(shape) < 0.2, strange, plain)


def calls(graph):
    """The names of the calls of a plan, in order."""
    lines = Session().compile(graph).bind({}).describe().splitlines()
    begin, end = lines.index("calls"), lines.index("outputs")
    return [line.split(": ", 1)[1].split("(")[0] for line in lines[begin + 1 : end]]


# Small operands that are repeated.

WIDENED = {
    "a bias": ((4, 26, 26, 16), (16,), True),
    "a bias of channels and columns": ((4, 26, 26, 4), (26, 4), True),
    "a bias of single images": ((40, 6, 6, 16), (1, 1, 1, 16), True),
    "of one axis of two": ((4, 26, 26, 16), (26, 1, 16), True),
    "of the outermost axis too": ((4, 26, 26, 16), (4, 1, 1, 16), True),
    "few elements": ((4, 8, 8, 16), (16,), False),
    "a long run": ((4, 26, 400), (400,), False),
    "a number": ((4, 26, 26, 16), (), False),
    "a column": ((4, 26, 26, 16), (26, 1), False),
    "all of it": ((4, 26, 26, 16), (4, 26, 26, 16), False),
}


def pair_graph(op, shape, small, dtype):
    graph = Graph("pair")
    x, y = graph.input("x", shape, dtype), graph.input("y", small, dtype)
    graph.set_outputs([graph.binary(op, x, y), graph.binary(op, y, x)])
    return graph


@pytest.mark.parametrize(("shape", "small", "is_widened"), WIDENED.values(), ids=WIDENED)
def test_a_repeated_operand_is_widened_where_runs_are_short(shape, small, is_widened):
    graph = pair_graph(BinaryOp.SUB, shape, small, DType.F32)
    assert calls(graph) == (["copyto", "subtract"] if is_widened else ["subtract"]) * 2
    x, y = odd(shape), odd(small, seed=2)
    found = Session().compile(graph).run({"x": x, "y": y})
    with np.errstate(all="ignore"):
        assert_same_bits(found[0], x - y)
        assert_same_bits(found[1], y - x)


@pytest.mark.parametrize("how", DISGUISES)
@pytest.mark.parametrize("dtype", [DType.F16, DType.F64, DType.I8, DType.I64], ids=str)
@pytest.mark.parametrize("small", [(16,), (1, 26, 1, 16), (4, 1, 1, 16), (4, 1, 1, 1)], ids=str)
def test_widened_operands_of_any_dtype_and_layout(small, dtype, how):
    x, y = odd((4, 26, 26, 16), dtype), odd(small, dtype, seed=2)
    with np.errstate(all="ignore"):
        expected = {BinaryOp.MUL: x * y, BinaryOp.MAX: np.maximum(x, y), BinaryOp.LT: x < y}
    for op, right in expected.items():
        assert_same_bits(run_op(lambda g, a, b, op=op: g.binary(op, a, b), x, y, how=how)[0], right)


def test_an_operand_that_is_widened_twice_and_its_source_are_apart():
    """The copy is scratch: the operand is read again afterwards, and may be an output."""
    graph = Graph("apart")
    x, y = graph.input("x", [4, 26, 26, 16]), graph.input("y", [16])
    bias = y * 2.0
    graph.set_outputs([(x + bias) * bias - bias, bias])
    given, small = odd((4, 26, 26, 16)), odd((16,), seed=2)
    found = Session().compile(graph).run({"x": given, "y": small})
    with np.errstate(all="ignore"):
        doubled = small * np.float32(2)
        assert_same_bits(found[0], (given + doubled) * doubled - doubled)
    assert_same_bits(found[1], doubled)


def test_a_wrongly_widened_operand_is_found(monkeypatch):
    """The counter-test."""

    def backwards(emit, operand, out):
        wide = with_long_runs(emit, operand, out)
        every = [None] * len(out.shape)
        return operand if wide is operand else wide.sliced(every, every, [-1] * len(out.shape))

    monkeypatch.setattr(elementwise, "with_long_runs", backwards)
    with pytest.raises(AssertionError):
        test_a_repeated_operand_is_widened_where_runs_are_short((4, 26, 26, 16), (16,), True)


# Results that lie as their operands do.

KEPT = {
    "turned": lambda g, x: x.transpose(),
    "partly turned": lambda g, x: x.transpose(1, 0, 2),
    "turned back": lambda g, x: x.transpose(2, 1, 0).transpose(2, 1, 0),
    "turned and cut": lambda g, x: x.transpose(2, 0, 1)[1:, ::-1],
    "turned and a row": lambda g, x: x.transpose(2, 0, 1)[:1],
    "turned and repeated": lambda g, x: g.broadcast_to(x.transpose(2, 1, 0)[:, :1], [5, 4, 3]),
}
AFTER = {
    "itself": lambda g, v: v,
    "flat": lambda g, v: v.reshape(-1),
    "rows": lambda g, v: v.reshape(-1, v.shape[-1]),
    "turned": lambda g, v: v.transpose(),
    "with the turned": lambda g, v: v.reshape(-1) + v.transpose(2, 1, 0).reshape(-1),
    "twice": lambda g, v: g.concat([v, v], 1),
    "rounded": lambda g, v: v.cast(DType.F16),
    "the sum": lambda g, v: v.cast(DType.I64).sum([0]),
    "the places": lambda g, v: g.argmax(v, 1),
    "windows": lambda g, v: g.unfold(v, (1,), (2,), (1,)).reshape(-1),
}


@pytest.mark.parametrize("after", AFTER.values(), ids=AFTER)
@pytest.mark.parametrize("before", KEPT.values(), ids=KEPT)
def test_a_result_in_the_order_of_its_operands_is_read_rightly(before, after):
    """The elementwise op stands between; without it nothing is computed, and nothing kept."""
    x = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    through, _ = run_op(lambda g, v: after(g, g.unary(UnaryOp.NEG, before(g, v))), -x)
    plain, _ = run_op(lambda g, v: after(g, before(g, v)), x)
    assert_same_bits(through, plain)


def test_a_result_in_another_order_reaches_the_callers_memory_in_row_order():
    graph = Graph("owned")
    x = graph.input("x", [3, 4])
    graph.set_outputs([(turned := x.transpose() + 1.0), turned * 2.0, turned])
    memory = np.zeros((4, 3), np.float32), np.zeros((4, 3), np.float32)
    given = odd((3, 4))
    executable = Session().compile(graph, outputs=dict(enumerate(memory)))
    found = executable.run({"x": given})
    assert found[0] is memory[0]
    assert found[1] is memory[1]
    assert_same_bits(memory[0], given.T + np.float32(1))
    assert_same_bits(memory[1], (given.T + np.float32(1)) * np.float32(2))
    assert_same_bits(found[2], memory[0])


@pytest.mark.parametrize("shape", [(5, 7), (1, 7), (5, 1), (0, 3), (90, 110)], ids=str)
def test_operands_in_two_orders_meet(shape):
    x, y = odd(shape), odd(shape[::-1], seed=2)

    def build(graph, a, b):
        turned = -b.transpose()
        return (a - turned) * turned + (turned - a)

    found, _ = run_op(build, x, y)
    with np.errstate(all="ignore"):
        turned = -y.T
        assert_same_bits(found, (x - turned) * turned + (turned - x))


# Few places, reduced one by one.

COMBINE = {
    ReduceOp.SUM: np.add,
    ReduceOp.PROD: np.multiply,
    ReduceOp.MAX: np.maximum,
    ReduceOp.MIN: np.minimum,
}


def one_by_one(op, x, axes):
    """The axis of the widest stride first, place after place."""
    total = x
    for axis in sorted(axes):
        place = axis - (x.ndim - total.ndim)
        parts = [np.take(total, one, place) for one in range(total.shape[place])]
        total = parts[0]
        for part in parts[1:]:
            total = COMBINE[op](total, part)
    return total


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(("shape", "axes"), [((4, 16), (0,)), ((3, 2, 2, 8), (1, 2))], ids=str)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.I64], ids=str)
@pytest.mark.parametrize("op", COMBINE, ids=str)
def test_few_places_are_combined_one_by_one(op, dtype, shape, axes, keepdims):
    x = odd(shape, dtype)
    found, _ = run_op(lambda g, v: g.reduce(op, v, axes, keepdims), x)
    with np.errstate(all="ignore"):
        expected = one_by_one(op, x, axes)
    if keepdims:
        expected = np.expand_dims(expected, axes)
    assert_same_bits(found, expected)


@pytest.mark.parametrize("how", DISGUISES)
@pytest.mark.parametrize("axes", [(0, 2), (1,), (0, 1, 2), (0,)], ids=str)
@pytest.mark.parametrize("shape", [(1, 4, 1, 9), (2, 1, 3, 8), (4, 4, 1, 17)], ids=str)
@pytest.mark.parametrize("op", [ReduceOp.MAX, ReduceOp.SUM], ids=str)
def test_axes_of_one_place_beside_few_of_several(op, shape, axes, how):
    x = numbers(np.random.default_rng(3), shape, DType.I32)
    found, oracle = run_op(lambda g, v: g.reduce(op, v, axes), x, how=how)
    assert_same_bits(found, oracle)
    reduced = x.astype(np.int64) if op is ReduceOp.SUM else x
    assert_same_bits(found, COMBINE[op].reduce(reduced, axis=axes))


def test_a_place_that_is_left_out_is_found(monkeypatch):
    """The counter-test."""
    picked = View.picked
    monkeypatch.setattr(
        View, "picked", lambda self, axes, places: picked(self, axes, [0] * len(axes))
    )
    with pytest.raises(AssertionError):
        test_few_places_are_combined_one_by_one(ReduceOp.SUM, DType.F64, (4, 16), (0,), False)


def test_few_places_are_calls_and_many_or_short_rows_are_one():
    def of(shape, axes):
        graph = Graph("places")
        graph.set_outputs([graph.input("x", shape).max(axes)])
        return calls(graph)

    assert of([2, 2, 16], [0, 1]) == ["maximum"] * 2
    assert of([4, 16], [0]) == ["maximum"] * 3
    assert of([17, 16], [0]) == of([4, 7], [0]) == of([4, 16], [1]) == ["maximum.reduce"]


def test_an_operand_of_few_places_that_others_read_stays_whole():
    graph = Graph("whole")
    x = graph.input("x", [4, 16])
    doubled = x * 2.0
    graph.set_outputs([doubled.max([0]), doubled.sum([0]), doubled])
    given = odd((4, 16))
    found = Session().compile(graph).run({"x": given})
    with np.errstate(all="ignore"):
        whole = given * np.float32(2)
        assert_same_bits(found[0], one_by_one(ReduceOp.MAX, whole, (0,)))
        assert_same_bits(found[1], one_by_one(ReduceOp.SUM, whole, (0,)))
    assert_same_bits(found[2], whole)


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16], ids=str)
def test_few_places_of_halves_are_rounded_once(dtype):
    """60,000 + 60,000 - 60,000 is beyond F16 on the way; 256 + 1 + 1 stops at 256 in BF16."""
    x = np.array([[6e4, 256], [6e4, 1], [-6e4, 1]]).astype(numpy_dtype(dtype)).repeat(8, 1)
    found, _ = run_op(lambda g, v: v.sum([0]), x)
    assert (found[:8] == x[0, 0]).all()
    assert (found[8:].astype(float) == 258).all()
