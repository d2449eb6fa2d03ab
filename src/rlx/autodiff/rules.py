"""The VJP rules: for each op, the cotangents of its inputs from the cotangent of its output.

A rule emits the same kind of graph that it differentiates. It may return a cotangent of the
broadcast shape; the driver sums it down. `None` for an input means that no gradient flows there,
and a table entry of `None` that the op has no gradient at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rlx.autodiff.concat import part_bounds
from rlx.ir import DType, Graph, Op, ReduceOp, Shape, UnaryOp, Value, formulas, wide_dtype


@dataclass(frozen=True, slots=True)
class Site:
    """The node that is differentiated: its graph, its inputs as values, and its attributes."""

    graph: Graph
    inputs: tuple[Value, ...]
    attributes: Any


Cotangents: TypeAlias = Sequence[Value | None]
Rule: TypeAlias = Callable[[Site, Value, Value], Cotangents]

VJP: dict[Op, Rule | None] = dict.fromkeys(
    (
        *(Op.INPUT, Op.PARAM, Op.CONSTANT, Op.SIZE),
        *(Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE, Op.AND, Op.OR, Op.NOT),
        *(Op.ARGMAX, Op.ONE_HOT, Op.KEEP_MASK),
    )
)


def vjp(op: Op) -> Callable[[Rule], Rule]:
    """Register the rule of `op`."""

    def register(rule: Rule) -> Rule:
        VJP[op] = rule
        return rule

    return register


def _zero(like: Value) -> Value:
    return like.graph.scalar(0.0, like.dtype)


def _step(condition: Value, like: Value) -> Value:
    return condition.cast(like.dtype)


@vjp(Op.NEG)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    return [-cotangent]


@vjp(Op.EXP)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    return [cotangent * output]


@vjp(Op.LOG)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    return [cotangent / site.inputs[0]]


@vjp(Op.SQRT)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    return [cotangent * 0.5 / output]


@vjp(Op.TANH)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    return [cotangent * (1 - output * output)]


@vjp(Op.SIGMOID)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    return [cotangent * (output * (1 - output))]


@vjp(Op.RELU)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    return [cotangent * _step(output > 0, cotangent)]


@vjp(Op.GELU)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    x = _wide(site.inputs[0])
    return [cotangent * _as(formulas.gelu_slope(x), cotangent.dtype)]


@vjp(Op.ABS)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    (x,) = site.inputs
    return [cotangent * (_step(x > 0, x) - _step(x < 0, x))]


@vjp(Op.SIN)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    return [cotangent * site.graph.unary(UnaryOp.COS, site.inputs[0])]


@vjp(Op.COS)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    return [-cotangent * site.graph.unary(UnaryOp.SIN, site.inputs[0])]


@vjp(Op.ADD)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    return [cotangent, cotangent]


@vjp(Op.SUB)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    return [cotangent, -cotangent]


@vjp(Op.MUL)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    left, right = site.inputs
    return [cotangent * right, cotangent * left]


@vjp(Op.DIV)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    _, divisor = site.inputs
    share = cotangent / divisor
    return [share, -share * output]


@vjp(Op.POW)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    """x**0 has gradient 0 also at x = 0, and 0**b has gradient 0 in b; see docs/numerics.md."""
    graph = site.graph
    base, exponent = site.inputs
    flat = exponent.equal(0.0)
    below = graph.where(flat, graph.scalar(1.0, exponent.dtype), exponent) - 1
    to_base = graph.where(flat, _zero(cotangent), cotangent * exponent * base**below)
    nothing = base.equal(0.0)
    logarithm = graph.unary(UnaryOp.LOG, graph.where(nothing, graph.scalar(1.0, base.dtype), base))
    return [to_base, graph.where(nothing, _zero(cotangent), cotangent * output * logarithm)]


def _extreme(site: Site, wins: Value, ties: Value, cotangent: Value) -> Cotangents:
    """At a tie each side gets half, so that the total is the cotangent."""
    left = _step(wins, cotangent) + 0.5 * _step(ties, cotangent)
    return [cotangent * left, cotangent * (1 - left)]


@vjp(Op.MAX)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    left, right = site.inputs
    return _extreme(site, left > right, left.equal(right), cotangent)


@vjp(Op.MIN)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    left, right = site.inputs
    return _extreme(site, left < right, left.equal(right), cotangent)


@vjp(Op.WHERE)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    condition = site.inputs[0]
    chosen = site.graph.where(condition, cotangent, _zero(cotangent))
    other = site.graph.where(condition, _zero(cotangent), cotangent)
    return [None, chosen, other]


@vjp(Op.CAST)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    (operand,) = site.inputs
    return [cotangent.cast(operand.dtype) if operand.dtype.is_float else None]


@vjp(Op.MATMUL)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    left, right = site.inputs
    to_left = cotangent @ _swapped(right)
    if right.shape.rank > 2 or left.shape.rank == 2:
        return [to_left, _swapped(left) @ cotangent]
    # One matrix shared by a stack: one product over all rows, not a stack of products to be summed.
    count = Shape(left.shape.dims[:-1]).size
    rows = left.reshape(count, left.shape[-1])
    return [to_left, _swapped(rows) @ cotangent.reshape(count, cotangent.shape[-1])]


def _swapped(matrix: Value) -> Value:
    rank = matrix.shape.rank
    return matrix.transpose(*range(rank - 2), rank - 1, rank - 2)


def _kept(site: Site, value: Value) -> Value:
    """The output or cotangent of a reduction with the reduced axes back, of length 1."""
    axes = site.attributes["axes"]
    shape = site.inputs[0].shape
    return value.reshape(*[1 if axis in axes else dim for axis, dim in enumerate(shape)])


@vjp(Op.REDUCE_SUM)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    return [site.graph.broadcast_to(_kept(site, cotangent), site.inputs[0].shape)]


@vjp(Op.REDUCE_MEAN)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    graph, (operand,) = site.graph, site.inputs
    count = Shape([operand.shape[axis] for axis in site.attributes["axes"]]).size
    wide = _wide(_kept(site, cotangent))
    share = _as(wide / graph.size(count, wide.dtype), cotangent.dtype)
    return [graph.broadcast_to(share, operand.shape)]


def _reduced_extreme(site: Site, output: Value, cotangent: Value) -> Cotangents:
    """Equal extremes share the cotangent equally, so that its total stays."""
    (operand,) = site.inputs
    share = _wide(_kept(site, cotangent))
    hits = _step(operand.equal(_kept(site, output)), share)
    count = site.graph.reduce(ReduceOp.SUM, hits, site.attributes["axes"], keepdims=True)
    return [_as(hits * (share / count), operand.dtype)]


VJP[Op.REDUCE_MAX] = _reduced_extreme
VJP[Op.REDUCE_MIN] = _reduced_extreme


@vjp(Op.REDUCE_PROD)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    """The product of all the others, also where one or more of the factors are zero."""
    graph, (x,) = site.graph, site.inputs
    axes = site.attributes["axes"]
    zeros = x.equal(0.0)
    safe = graph.where(zeros, graph.scalar(1.0, x.dtype), x)
    others = graph.reduce(ReduceOp.PROD, safe, axes, keepdims=True)
    count = graph.reduce(ReduceOp.SUM, _step(zeros, _wide(x)), axes, keepdims=True)
    without = graph.where(count.equal(0.0), others / safe, _zero(x))
    only = graph.where(zeros & count.equal(1.0), graph.broadcast_to(others, x.shape), without)
    return [only * _kept(site, cotangent)]


@vjp(Op.RESHAPE)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    return [cotangent.reshape(*site.inputs[0].shape)]


@vjp(Op.TRANSPOSE)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    axes = site.attributes["axes"]
    if not axes:
        return [cotangent]
    return [cotangent.transpose(*sorted(range(len(axes)), key=lambda axis: axes[axis]))]


@vjp(Op.BROADCAST)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    return [cotangent]


def _bounds(site: Site) -> tuple[Any, Any, Any]:
    return site.attributes["starts"], site.attributes["stops"], site.attributes["steps"]


@vjp(Op.SLICE)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    return [site.graph.unslice(cotangent, site.inputs[0].shape, *_bounds(site))]


@vjp(Op.UNSLICE)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    return [site.graph.slice(cotangent, *_bounds(site))]


@vjp(Op.UNFOLD)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    axes, shape = site.attributes["axes"], site.inputs[0].shape
    lengths = [int(shape[axis]) for axis in axes]
    return [site.graph.fold(cotangent, axes, lengths, site.attributes["steps"])]


@vjp(Op.FOLD)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    axes = site.attributes["axes"]
    sizes = [int(size) for size in site.inputs[0].shape.dims[output.shape.rank :]]
    return [site.graph.unfold(cotangent, axes, sizes, site.attributes["steps"])]


@vjp(Op.CONCAT)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    axis = site.attributes["axis"]
    lengths = [operand.shape[axis] for operand in site.inputs]
    everything: list[int | None] = [None] * output.shape.rank
    parts = []
    for start, stop in part_bounds(lengths):
        starts, stops = everything.copy(), everything.copy()
        starts[axis], stops[axis] = start, stop
        parts.append(site.graph.slice(cotangent, starts, stops))
    return parts


@vjp(Op.GATHER)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    table, indices = site.inputs
    return [site.graph.scatter_add(cotangent, indices, table.shape[0]), None]


@vjp(Op.SCATTER_ADD)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    return [site.graph.gather(cotangent, site.inputs[1]), None]


@vjp(Op.PICK)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    values, indices = site.inputs
    places = site.graph.one_hot(indices, values.shape[-1], values.dtype)
    return [places * cotangent.reshape(*cotangent.shape, 1), None]


@vjp(Op.NORMALIZE)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    """The part of the cotangent that neither shifts nor scales a row; epsilon is a constant."""
    _, deviation = formulas.deviation(*site.inputs)
    along = output * (cotangent * output).mean(-1, keepdims=True)
    return [(cotangent - cotangent.mean(-1, keepdims=True) - along) / deviation, None]


@vjp(Op.SOFTMAX)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    weighted = cotangent * output
    total = weighted.sum([site.attributes["axis"]], keepdims=True)
    return [weighted - output * total]


@vjp(Op.LOG_SOFTMAX)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    total = cotangent.sum([site.attributes["axis"]], keepdims=True)
    return [cotangent - site.graph.unary(UnaryOp.EXP, output) * total]


@vjp(Op.CROSS_ENTROPY)
def _(site: Site, output: Value, cotangent: Value) -> Cotangents:
    graph, (logits, labels) = site.graph, site.inputs
    wide = _as(logits, cotangent.dtype)
    wanted = graph.one_hot(labels, logits.shape[-1], cotangent.dtype)
    error = graph.softmax(wide, -1) - wanted
    return [_as(error * cotangent.reshape(*cotangent.shape, 1), logits.dtype), None]


def _wide(value: Value) -> Value:
    """F32 for half precision, which cannot count beyond 65,504, or 256 without gaps."""
    return _as(value, wide_dtype(value.dtype))


def _as(value: Value, dtype: DType) -> Value:
    return value if value.dtype is dtype else value.cast(dtype)
