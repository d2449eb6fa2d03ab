"""The oracle: a slow and obvious interpreter of graphs, for tests to compare the executor with.

One op after another, each one expression of numpy over whole arrays, without plans, reused memory
or `out`. The formulas are written apart from the kernels: where rounding matters, in float64 and
rounded once to the node's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from rlx.backends.dtypes import Array, numpy_dtype
from rlx.errors import DataError, UsageError
from rlx.ir import Graph, Node, Op
from rlx.ir import evaluate as dim_value

Bindings: TypeAlias = Mapping[str, int]
Rule: TypeAlias = Callable[[Node, Sequence[Array], Bindings], Any]

ORACLE: dict[Op, Rule] = {}


def evaluate(
    graph: Graph, inputs: Mapping[str, Array], params: Mapping[str, Array] | None = None
) -> list[Array]:
    """The outputs of `graph`, each a new array. Every input and parameter must be given."""
    given = {**inputs, **(params or {})}
    bindings = _bindings(graph, inputs)
    values: list[Array] = []
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            if node.op in (Op.INPUT, Op.PARAM):
                made = given[node.name]
            else:
                made = ORACLE[node.op](node, [values[one] for one in node.inputs], bindings)
            values.append(_checked(node, made, bindings))
    return [values[one].copy() for one in graph.outputs]


def _bindings(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, int]:
    bindings: dict[str, int] = {}
    for node in graph.inputs:
        for dim, size in zip(node.shape, np.shape(inputs[node.name]), strict=True):
            if isinstance(dim, str) and dim.isidentifier():
                bindings[dim] = size
    return bindings


def _checked(node: Node, made: Any, bindings: Bindings) -> Array:
    """The value as an array of the node's dtype; a wrong shape means a wrong graph or rule."""
    value: Array = np.asarray(made).astype(numpy_dtype(node.dtype))
    expected = node.shape.bind(bindings)
    if value.shape != expected:
        raise UsageError(f"{node}: computed shape {value.shape}, expected {expected}")
    return value


def _oracle(*ops: Op) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        for op in ops:
            ORACLE[op] = rule
        return rule

    return register


def _wide(a: Array) -> Array:
    """Any number as float64."""
    return a.astype(np.float64)


def _elementwise(formula: Callable[..., Any]) -> Rule:
    return lambda node, operands, bindings: formula(*operands)


def _in_float64(formula: Callable[..., Any]) -> Rule:
    return lambda node, operands, bindings: formula(*[_wide(one) for one in operands])


def _logistic(x: Array) -> Array:
    """Each branch overflows only on the side where the other is taken."""
    return np.where(x >= 0, 1 / (1 + np.exp(-x)), np.exp(x) / (1 + np.exp(x)))


def _gelu(x: Array) -> Array:
    result: Array = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x * x * x)))
    return result


ORACLE.update(
    {
        Op.INPUT: lambda node, operands, bindings: None,
        Op.PARAM: lambda node, operands, bindings: None,
        Op.NEG: _elementwise(lambda a: -a),
        Op.ABS: _elementwise(abs),
        Op.RELU: _elementwise(lambda a: np.where(a < 0, np.zeros_like(a), a)),
        Op.NOT: _elementwise(lambda a: ~a),
        Op.EXP: _in_float64(np.exp),
        Op.LOG: _in_float64(np.log),
        Op.SQRT: _in_float64(np.sqrt),
        Op.TANH: _in_float64(np.tanh),
        Op.SIN: _in_float64(np.sin),
        Op.COS: _in_float64(np.cos),
        Op.SIGMOID: _in_float64(_logistic),
        Op.GELU: _in_float64(_gelu),
        Op.ADD: _elementwise(lambda a, b: a + b),
        Op.SUB: _elementwise(lambda a, b: a - b),
        Op.MUL: _elementwise(lambda a, b: a * b),
        Op.DIV: _elementwise(lambda a, b: a / b),
        Op.POW: _in_float64(lambda a, b: a**b),
        Op.MAX: _elementwise(lambda a, b: np.where((a > b) | (a != a), a, b)),
        Op.MIN: _elementwise(lambda a, b: np.where((a < b) | (a != a), a, b)),
        Op.EQ: _elementwise(lambda a, b: a == b),
        Op.NE: _elementwise(lambda a, b: a != b),
        Op.LT: _elementwise(lambda a, b: a < b),
        Op.LE: _elementwise(lambda a, b: a <= b),
        Op.GT: _elementwise(lambda a, b: a > b),
        Op.GE: _elementwise(lambda a, b: a >= b),
        Op.AND: _elementwise(lambda a, b: a & b),
        Op.OR: _elementwise(lambda a, b: a | b),
        Op.WHERE: _elementwise(np.where),
        Op.CAST: lambda node, operands, bindings: operands[0],
        Op.TRANSPOSE: lambda node, operands, bindings: np.transpose(
            operands[0], node.attributes["axes"]
        ),
        Op.RESHAPE: lambda node, operands, bindings: np.reshape(
            operands[0], node.shape.bind(bindings)
        ),
        Op.BROADCAST: lambda node, operands, bindings: np.broadcast_to(
            operands[0], node.shape.bind(bindings)
        ),
        Op.SLICE: lambda node, operands, bindings: operands[0][_slices(node)],
        Op.CONCAT: lambda node, operands, bindings: np.concatenate(
            operands, axis=node.attributes["axis"]
        ),
    }
)


@_oracle(Op.CONSTANT)
def _constant(node: Node, operands: Sequence[Array], bindings: Bindings) -> Array:
    dtype = numpy_dtype(node.dtype).newbyteorder("<")
    return np.frombuffer(node.attributes["content"], dtype).reshape(node.shape.bind({}))


@_oracle(Op.SIZE)
def _size(node: Node, operands: Sequence[Array], bindings: Bindings) -> int:
    return dim_value(node.attributes["dim"], bindings)


@_oracle(Op.MATMUL)
def _matmul(node: Node, operands: Sequence[Array], bindings: Bindings) -> Any:
    return np.einsum("...ij,...jk->...ik", *[_wide(one) for one in operands])


@_oracle(Op.REDUCE_SUM, Op.REDUCE_PROD)
def _sum(node: Node, operands: Sequence[Array], bindings: Bindings) -> Any:
    a = _wide(operands[0]) if node.dtype.is_float else operands[0].astype(np.int64)
    combine = np.sum if node.op is Op.REDUCE_SUM else np.prod
    return combine(a, axis=node.attributes["axes"], keepdims=node.attributes["keepdims"])


@_oracle(Op.REDUCE_MEAN)
def _mean(node: Node, operands: Sequence[Array], bindings: Bindings) -> Any:
    axes = node.attributes["axes"]
    count = np.float64(np.prod([operands[0].shape[axis] for axis in axes]))
    return np.sum(_wide(operands[0]), axis=axes, keepdims=node.attributes["keepdims"]) / count


@_oracle(Op.REDUCE_MAX, Op.REDUCE_MIN)
def _extreme(node: Node, operands: Sequence[Array], bindings: Bindings) -> Any:
    """Along one axis after another, largest axis first, so that the others keep their numbers."""
    if 0 in (expected := node.shape.bind(bindings)):
        return np.zeros(expected)
    pick = np.max if node.op is Op.REDUCE_MAX else np.min
    a = operands[0]
    a = _wide(a) if node.dtype.is_float else a
    for axis in sorted(node.attributes["axes"], reverse=True):
        a = pick(a, axis=axis, keepdims=node.attributes["keepdims"])
    return a


@_oracle(Op.ARGMAX)
def _argmax(node: Node, operands: Sequence[Array], bindings: Bindings) -> Any:
    a = operands[0]
    if 0 in (expected := node.shape.bind(bindings)):
        return np.zeros(expected)
    return np.argmax(_wide(a) if a.dtype.kind not in "iu" else a, axis=node.attributes["axis"])


def _slices(node: Node) -> tuple[slice, ...]:
    names = ("starts", "stops", "steps")
    return tuple(slice(*one) for one in zip(*[node.attributes[n] for n in names], strict=True))


@_oracle(Op.UNSLICE)
def _unslice(node: Node, operands: Sequence[Array], bindings: Bindings) -> Array:
    result = np.zeros(node.shape.bind(bindings), operands[0].dtype)
    part = result[_slices(node)]
    if part.shape != operands[0].shape:
        raise UsageError(f"{node}: that slice is {part.shape}, the operand {operands[0].shape}")
    part[...] = operands[0]
    return result


@_oracle(Op.UNFOLD)
def _unfold(node: Node, operands: Sequence[Array], bindings: Bindings) -> Array:
    result = np.zeros(node.shape.bind(bindings), operands[0].dtype)
    for place in np.ndindex(result.shape):
        result[place] = operands[0][_source(node, place, operands[0].ndim)]
    return result


@_oracle(Op.FOLD)
def _fold(node: Node, operands: Sequence[Array], bindings: Bindings) -> Array:
    wide = np.float64 if node.dtype.is_float else operands[0].dtype
    result = np.zeros(node.shape.bind(bindings), wide)
    for place, element in np.ndenumerate(operands[0]):
        result[_source(node, place, result.ndim)] += element.astype(wide)
    return result


def _source(node: Node, place: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Where the element at `place` of unfolded windows lies in the array that they slide over."""
    found = list(place[:rank])
    attributes = node.attributes
    for axis, step, inside in zip(
        attributes["axes"], attributes["steps"], place[rank:], strict=True
    ):
        found[axis] = found[axis] * step + inside
    return tuple(found)


def _check(node: Node, indices: Array, count: int) -> None:
    for place, index in np.ndenumerate(indices):
        if not 0 <= index < count:
            raise DataError(f"{node}: index {index} at {place} is not in 0..{count - 1}")


@_oracle(Op.GATHER)
def _gather(node: Node, operands: Sequence[Array], bindings: Bindings) -> Any:
    table, indices = operands
    _check(node, indices, len(table))
    return table[indices]


@_oracle(Op.SCATTER_ADD)
def _scatter_add(node: Node, operands: Sequence[Array], bindings: Bindings) -> Array:
    updates, indices = operands
    shape = node.shape.bind(bindings)
    _check(node, indices, shape[0])
    wide = np.float64 if node.dtype.is_float else updates.dtype
    result = np.zeros(shape, wide)
    for place, index in np.ndenumerate(indices):
        result[index] += updates[place].astype(wide)
    return result


@_oracle(Op.PICK)
def _pick(node: Node, operands: Sequence[Array], bindings: Bindings) -> Array:
    values, indices = operands
    _check(node, indices, values.shape[-1])
    return np.take_along_axis(values, indices.astype(np.int64)[..., None], -1)[..., 0]


@_oracle(Op.NORMALIZE)
def _normalize(node: Node, operands: Sequence[Array], bindings: Bindings) -> Any:
    a, epsilon = (one.astype(np.longdouble) for one in operands)
    if not a.size:
        return a
    centred = a - a.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)


@_oracle(Op.ONE_HOT)
def _one_hot(node: Node, operands: Sequence[Array], bindings: Bindings) -> Any:
    depth = node.shape.bind(bindings)[-1]
    _check(node, operands[0], depth)
    return operands[0][..., None] == np.arange(depth)


@_oracle(Op.KEEP_MASK)
def _keep_mask(node: Node, operands: Sequence[Array], bindings: Bindings) -> Array:
    seed, step, microbatch = (int(word) for word in operands[0])
    shape = node.shape.bind(bindings)
    if seed < 0:
        return np.ones(shape)
    dropped, size = node.attributes["dropped"], math.prod(shape)
    words: list[int] = []
    while len(words) < size:
        counter = (len(words) // 8 + 1, step % 2**64, microbatch % 2**64, 0)
        for word in _philox(counter, (seed, node.attributes["stream"])):
            words += [word % 2**32, word >> 32]
    kept = [0.0 if word < dropped else 2**32 / (2**32 - dropped) for word in words[:size]]
    return np.array(kept).reshape(shape)


def _philox(counter: Sequence[int], key: Sequence[int]) -> tuple[int, int, int, int]:
    """Philox4x64-10 (Salmon et al. 2011) in whole numbers."""
    a, b, c, d = counter
    left, right = key
    for _ in range(10):
        first, second = a * 0xD2E7470EE14C6C93, c * 0xCA5A826395121157
        a, b, c, d = (
            *(second >> 64 ^ b ^ left, second % 2**64),
            *(first >> 64 ^ d ^ right, first % 2**64),
        )
        left, right = (left + 0x9E3779B97F4A7C15) % 2**64, (right + 0xBB67AE8584CAA73B) % 2**64
    return a, b, c, d


def _log_shares(a: Array, axis: int) -> Array:
    """log(exp(a) / sum(exp(a))), in long double. The maximum is taken out of both, and not put back
    in: beside 1e30 the logarithm of the sum would be lost."""
    below = a - np.max(a, axis=axis, keepdims=True)
    return np.asarray(below - np.log(np.sum(np.exp(below), axis=axis, keepdims=True)))


@_oracle(Op.LOG_SOFTMAX)
def _log_softmax(node: Node, operands: Sequence[Array], bindings: Bindings) -> Array:
    a = operands[0].astype(np.longdouble)
    return _log_shares(a, node.attributes["axis"]) if a.size else a


@_oracle(Op.SOFTMAX)
def _softmax(node: Node, operands: Sequence[Array], bindings: Bindings) -> Any:
    return np.exp(_log_softmax(node, operands, bindings))


@_oracle(Op.CROSS_ENTROPY)
def _cross_entropy(node: Node, operands: Sequence[Array], bindings: Bindings) -> Array:
    logits, labels = operands
    _check(node, labels, logits.shape[-1])
    losses = np.zeros(labels.shape, np.float64)
    for place, label in np.ndenumerate(labels):
        losses[place] = -_log_shares(logits[place].astype(np.longdouble), 0)[label]
    return losses
