"""Ops that see more than one element: reductions, products, shaping, indexing, softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax.numpy as jnp
from jax import lax

from rlx.backends.dtypes import numpy_dtype
from rlx.backends.jax.table import RULES, Trace, Traced, narrowed, ones_where, rule, widened
from rlx.backends.kernels import KERNELS
from rlx.ir import Node, Op


@rule(Op.INPUT, Op.PARAM, Op.KEEP_MASK)
def _fed(trace: Trace, node: Node, operands: Sequence[Traced]) -> Traced:
    """Masks too come from outside: numpy draws them, so that dropout drops the same units."""
    return trace.fed[node.id]


@rule(Op.CONSTANT, Op.SIZE)
def _known(trace: Trace, node: Node, operands: Sequence[Traced]) -> Traced:
    """Known once the names are bound, as numpy has it."""
    fill = KERNELS[node.op].fill
    assert fill is not None
    return jnp.asarray(fill(node, trace.bindings))


RULES[Op.RESHAPE] = lambda trace, node, operands: operands[0].reshape(trace.shape(node))
RULES[Op.BROADCAST] = lambda trace, node, operands: jnp.broadcast_to(operands[0], trace.shape(node))
RULES[Op.TRANSPOSE] = lambda trace, node, operands: jnp.transpose(
    operands[0], node.attributes["axes"]
)
RULES[Op.CONCAT] = lambda trace, node, operands: jnp.concatenate(operands, node.attributes["axis"])


@rule(Op.MATMUL)
def _matmul(trace: Trace, node: Node, operands: Sequence[Traced]) -> Traced:
    """In full F32: a GPU would else round F32 operands to TF32. Halves are summed in F32."""
    wide = jnp.float64 if operands[0].dtype == jnp.float64 else jnp.float32
    product = jnp.matmul(*operands, precision=lax.Precision.HIGHEST, preferred_element_type=wide)
    return narrowed(product, node)


_REDUCE: dict[Op, Callable[..., Any]] = {
    Op.REDUCE_SUM: jnp.sum,
    Op.REDUCE_MEAN: jnp.sum,
    Op.REDUCE_PROD: jnp.prod,
    Op.REDUCE_MAX: jnp.max,
    Op.REDUCE_MIN: jnp.min,
}


@rule(Op.REDUCE_SUM, Op.REDUCE_MEAN, Op.REDUCE_PROD)
def _sum(trace: Trace, node: Node, operands: Sequence[Traced]) -> Traced:
    """Integers become I64, and for a mean F64, before they are added."""
    axes, keepdims = node.attributes["axes"], node.attributes["keepdims"]
    a = widened(operands[0].astype(numpy_dtype(node.dtype)), node.dtype)
    total = _REDUCE[node.op](a, axis=axes, keepdims=keepdims)
    if node.op is Op.REDUCE_MEAN:
        count = prod(a.shape[axis] for axis in axes)
        total = total / jnp.asarray(count, total.dtype)
    return narrowed(total, node)


@rule(Op.REDUCE_MAX, Op.REDUCE_MIN)
def _extreme(trace: Trace, node: Node, operands: Sequence[Traced]) -> Traced:
    shape = trace.shape(node)
    if prod(shape) == 0:
        return jnp.zeros(shape, operands[0].dtype)
    axes, keepdims = node.attributes["axes"], node.attributes["keepdims"]
    return _REDUCE[node.op](operands[0], axis=axes, keepdims=keepdims)


@rule(Op.ARGMAX)
def _argmax(trace: Trace, node: Node, operands: Sequence[Traced]) -> Traced:
    """The first maximum, or the first NaN."""
    shape = trace.shape(node)
    if prod(shape) == 0:
        return jnp.zeros(shape, jnp.int64)
    return narrowed(jnp.argmax(operands[0], node.attributes["axis"]), node)


def _slices(node: Node) -> tuple[slice, ...]:
    names = ("starts", "stops", "steps")
    return tuple(slice(*one) for one in zip(*[node.attributes[n] for n in names], strict=True))


RULES[Op.SLICE] = lambda trace, node, operands: operands[0][_slices(node)]


@rule(Op.UNSLICE)
def _unslice(trace: Trace, node: Node, operands: Sequence[Traced]) -> Traced:
    """Zeros before, between and behind: a slice with a negative step is first turned round."""
    (part,) = operands
    config = []
    for axis, (one, length) in enumerate(zip(_slices(node), trace.shape(node), strict=True)):
        places = range(*one.indices(length))
        if places.step < 0:
            part, places = jnp.flip(part, axis), places[::-1]
        low, inner = places.start, max(places.step - 1, 0)
        if places:
            config.append((low, length - places[-1] - 1, inner))
        else:
            config.append((0, length, 0))
    return lax.pad(part, jnp.zeros((), part.dtype), config)


@rule(Op.UNFOLD)
def _unfold(trace: Trace, node: Node, operands: Sequence[Traced]) -> Traced:
    """Axis by axis: the windows' elements of one place are a slice, and the slices are stacked."""
    (a,) = operands
    attributes = node.attributes
    for axis, size, step in zip(
        attributes["axes"], attributes["sizes"], attributes["steps"], strict=True
    ):
        count = (a.shape[axis] - size) // step + 1
        if step == size:
            whole = lax.slice_in_dim(a, 0, count * size, axis=axis)
            apart = whole.reshape(*a.shape[:axis], count, size, *a.shape[axis + 1 :])
            a = jnp.moveaxis(apart, axis + 1, -1)
        elif size <= count:
            last = (count - 1) * step + 1
            places = [lax.slice_in_dim(a, k, k + last, step, axis) for k in range(size)]
            a = jnp.stack(places, -1)
        else:
            windows = [
                lax.slice_in_dim(a, k * step, k * step + size, 1, axis) for k in range(count)
            ]
            a = jnp.moveaxis(jnp.stack(windows, axis), axis + 1, -1)
    return a


@rule(Op.FOLD)
def _fold(trace: Trace, node: Node, operands: Sequence[Traced]) -> Traced:
    """The transpose of `_unfold`: what it stacked is added, each part in its place."""
    a = widened(operands[0], node.dtype)
    attributes = node.attributes
    columns = zip(attributes["axes"], attributes["lengths"], attributes["steps"], strict=True)
    for axis, length, step in reversed(list(columns)):
        a = _folded(a, axis, length, step)
    return narrowed(a, node)


def _folded(windows: Traced, axis: int, length: int, step: int) -> Traced:
    """[..., count (at `axis`), ..., size] to [..., length, ...]."""
    size, count = windows.shape[-1], windows.shape[axis]
    if step == size:
        apart = jnp.moveaxis(windows, -1, axis + 1)
        whole = apart.reshape(*apart.shape[:axis], count * size, *apart.shape[axis + 2 :])
        return _placed(whole, axis, 0, 1, length)
    if size <= count:
        parts = [_placed(windows[..., k], axis, k, step, length) for k in range(size)]
    else:
        rows = jnp.moveaxis(windows, -1, axis + 1)
        picked = [lax.index_in_dim(rows, k, axis, keepdims=False) for k in range(count)]
        parts = [_placed(one, axis, k * step, 1, length) for k, one in enumerate(picked)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _placed(part: Traced, axis: int, first: int, step: int, length: int) -> Traced:
    """Zeros of `length` along `axis`, but for `part`, from `first` on, every `step`-th."""
    config = [(0, 0, 0)] * part.ndim
    last = first + (part.shape[axis] - 1) * step
    config[axis] = (first, length - last - 1, step - 1)
    return lax.pad(part, jnp.zeros((), part.dtype), config)


@rule(Op.GATHER)
def _gather(trace: Trace, node: Node, operands: Sequence[Traced]) -> Traced:
    table, indices = operands
    rows = trace.checked(node, indices, table.shape[0])
    if table.shape[0] == 0:
        return jnp.zeros(trace.shape(node), table.dtype)
    return jnp.take(table, rows, axis=0, mode="clip")


@rule(Op.SCATTER_ADD)
def _scatter_add(trace: Trace, node: Node, operands: Sequence[Traced]) -> Traced:
    updates, indices = operands
    shape = trace.shape(node)
    rows = trace.checked(node, indices, shape[0])
    added = widened(updates, node.dtype)
    total = jnp.zeros(shape, added.dtype)
    # Into no rows nothing can be added, and `checked` has said so.
    return narrowed(total.at[rows].add(added) if total.size else total, node)


@rule(Op.ONE_HOT)
def _one_hot(trace: Trace, node: Node, operands: Sequence[Traced]) -> Traced:
    (indices,) = operands
    depth = trace.shape(node)[-1]
    places = trace.checked(node, indices, depth)
    return ones_where(places[..., None] == jnp.arange(depth), node)


@rule(Op.PICK)
def _pick(trace: Trace, node: Node, operands: Sequence[Traced]) -> Traced:
    return _picked(trace, node, *operands)


def _picked(trace: Trace, node: Node, values: Traced, indices: Traced) -> Traced:
    places = trace.checked(node, indices, values.shape[-1])
    if values.size == 0:
        return jnp.zeros(indices.shape, values.dtype)
    return jnp.take_along_axis(values, places[..., None], -1, mode="clip")[..., 0]


def _powers(a: Traced, axis: int) -> tuple[Traced, Traced]:
    """As `ir.formulas.powers`: a row without finite values gives NaN."""
    below = a - a.max(axis, keepdims=True)
    return below, jnp.exp(below)


@rule(Op.SOFTMAX, Op.LOG_SOFTMAX)
def _softmax(trace: Trace, node: Node, operands: Sequence[Traced]) -> Traced:
    (a,), axis = operands, node.attributes["axis"]
    if a.size == 0:
        return a
    below, exponentials = _powers(widened(a, node.dtype), axis)
    total = exponentials.sum(axis, keepdims=True)
    share = exponentials / total if node.op is Op.SOFTMAX else below - jnp.log(total)
    return narrowed(share, node)


@rule(Op.CROSS_ENTROPY)
def _cross_entropy(trace: Trace, node: Node, operands: Sequence[Traced]) -> Traced:
    """F32 for F16 and BF16, as the node's dtype says."""
    logits, labels = operands
    below, exponentials = _powers(logits.astype(numpy_dtype(node.dtype)), -1)
    return jnp.log(exponentials.sum(-1)) - _picked(trace, node, below, labels)


@rule(Op.NORMALIZE)
def _normalize(trace: Trace, node: Node, operands: Sequence[Traced]) -> Traced:
    a, epsilon = operands
    count = jnp.asarray(a.shape[-1], a.dtype)
    centred = a - a.sum(-1, keepdims=True) / count
    variance = (centred * centred).sum(-1, keepdims=True) / count
    return centred / jnp.sqrt(variance + epsilon)
