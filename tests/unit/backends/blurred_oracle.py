"""The oracle, and how far from it a result may be: the graph is evaluated again, a few times, with
each rounding pushed up or down at random. What that moves, a right result may differ in too."""

from __future__ import annotations

import numpy as np
from backends_support import EPSILON, NAMES

from rlx.backends import ORACLE, numpy_dtype
from rlx.backends.oracle import _bindings, _checked
from rlx.ir import DType, Op, wide_dtype

FEW, MANY = 6, 40
MARGIN = 12
SUMS = {Op.REDUCE_SUM, Op.REDUCE_MEAN, Op.MATMUL, Op.FOLD, Op.SCATTER_ADD}
COMPOSED = {Op.SOFTMAX, Op.LOG_SOFTMAX, Op.CROSS_ENTROPY, Op.NORMALIZE, Op.GELU}
ROUNDED = {Op.EXP, Op.LOG, Op.SQRT, Op.TANH, Op.SIGMOID, Op.SIN, Op.COS, Op.POW}
ANY_ZERO = {Op.ADD, Op.MAX, Op.MIN, Op.RELU, Op.REDUCE_MAX, Op.REDUCE_MIN, *SUMS, *ROUNDED}


def outcomes(graph, arrays, seed, runs=FEW):
    """The oracle's outputs, and for each the outputs of so many runs with other roundings."""
    exact = _evaluated(graph, arrays, None)
    rng = np.random.Generator(np.random.Philox(seed))
    others = [_evaluated(graph, arrays, Blur(rng, run)) for run in range(runs)]
    return exact, list(zip(*others, strict=True))


class Blur:
    """What one run adds: signs at random, and anything for what overflows on the way.

    A third of the runs leave most numbers as they are, so that equal ones stay equal, and a third
    push all of them one way, as the same rounding of equal numbers does.
    """

    def __init__(self, rng, run):
        self.rng = rng
        self.is_odd = run % 2 == 1
        self._unknown = ([np.nan], [0.0])[run] if run < 2 else [np.nan, 0.0, np.inf, -np.inf]
        either, rarely = [-1.0, 1.0], [-1.0, 0.0, 0.0, 0.0, 1.0]
        self._choices = (either, either, rarely, rarely, [1.0], [-1.0])[run % 6]

    def signs(self, like):
        return self.rng.choice(self._choices, like.shape).astype(np.longdouble)

    def unknown(self, like):
        return self.rng.choice(self._unknown, like.shape)


def assert_within(found, exact, blurred):
    """Integers equal, NaN and infinities in the same places, numbers as close as roundings let
    them be. Elements on which the runs do not agree count for nothing; the share of the others."""
    assert found.dtype == exact.dtype
    assert found.shape == exact.shape
    if found.dtype.kind in "iub":
        sure = np.all([one == exact for one in blurred], axis=0)
        np.testing.assert_array_equal(found[sure], exact[sure])
        return sure.mean() if sure.size else 1.0
    with np.errstate(all="ignore"):
        return _assert_numbers_within(found, exact, blurred)


def _assert_numbers_within(found, exact, blurred):
    unit = EPSILON[NAMES[found.dtype]]
    found, exact, *others = (np.asarray(one, np.longdouble) for one in (found, exact, *blurred))
    sure = np.all([_class(one) == _class(exact) for one in others], axis=0)
    np.testing.assert_array_equal(_class(found)[sure], _class(exact)[sure])
    sure &= np.isfinite(exact)
    apart = np.max([np.abs(one - exact)[sure] for one in others], axis=0, initial=0)
    if apart.any():
        # Rounded numbers may by chance not have been moved.
        apart = np.maximum(apart, np.abs(exact[sure]) * unit)
    off = np.abs(found - exact)[sure]
    wrong = off > MARGIN * apart
    assert not wrong.any(), (
        f"{wrong.sum()} of {off.size}: {found[sure][wrong][:5]}, not {exact[sure][wrong][:5]} "
        f"within {MARGIN * apart[wrong][:5]}"
    )
    return sure.mean() if sure.size else 1.0


def _class(values):
    """0 for numbers, 1 and -1 for the infinities, 2 for NaN."""
    return np.where(np.isnan(values), 2, np.where(np.isinf(values), np.sign(values), 0))


def _evaluated(graph, arrays, blur):
    inputs = {node.name: arrays[node.name] for node in graph.inputs}
    bindings, needed = _bindings(graph, inputs), graph.needed()
    values = {}
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            if node.id not in needed:
                continue
            operands = [values[one] for one in node.inputs]
            if node.op in (Op.INPUT, Op.PARAM):
                made = arrays[node.name]
            else:
                made = ORACLE[node.op](node, operands, bindings)
                if blur is not None:
                    made = _blurred(node, operands, np.asarray(made), bindings, blur)
            values[node.id] = _checked(node, made, bindings)
    return [values[one].copy() for one in graph.outputs]


def _blurred(node, operands, made, bindings, blur):
    if node.op is Op.CAST and node.dtype.is_integer and operands[0].dtype.kind not in "iub":
        return _any_where_undefined(node, operands[0], blur)
    if not node.dtype.is_float:
        return made
    made = made.astype(np.longdouble)
    if node.op in ANY_ZERO:
        made = np.where(made == 0, 0 * blur.signs(made), made)
    if node.op in SUMS:
        error = _error_of_sum(node, operands, made, bindings)
        return np.where(np.isnan(error), blur.unknown(made), made + blur.signs(made) * error)
    if node.op is Op.REDUCE_PROD:
        return _product(node, operands[0], made, blur)
    if node.op in COMPOSED:
        return _composed(node, operands, bindings, blur)
    return _pushed(node.dtype, made, blur) if node.op in ROUNDED else made


def _limits(dtype):
    """Epsilon, the smallest normal number and the largest number of what `dtype` is added up in."""
    info = np.finfo(numpy_dtype(wide_dtype(dtype)))
    return EPSILON[wide_dtype(dtype)], np.longdouble(info.tiny), np.longdouble(info.max)


def _pushed(dtype, made, blur, epsilon=None):
    unit = 2 * (EPSILON[dtype] if epsilon is None else epsilon)
    tiny = 2.0**-24 if dtype is DType.F16 else _limits(dtype)[1]
    return made + blur.signs(made) * (np.abs(made) * unit + tiny)


def _any_where_undefined(node, operand, blur):
    """C leaves a cast of what does not fit undefined, so such an element may be anything."""
    info = np.iinfo(numpy_dtype(node.dtype))
    wide = np.trunc(operand.astype(np.longdouble))
    fits = (wide >= info.min) & (wide <= info.max)
    random = blur.rng.integers(info.min, info.max, operand.shape, info.dtype)
    return np.where(fits, operand.astype(info.dtype), random)


def _error_of_sum(node, operands, made, bindings):
    """What the order of additions may change; NaN where it decides whether they overflow."""
    epsilon, tiny, most = _limits(node.dtype)
    sizes = []
    for one in operands[: 2 if node.op is Op.MATMUL else 1]:
        wide = np.abs(one.astype(np.float64))
        sizes.append(np.where(np.isfinite(wide), wide, 0))
    rest = operands[len(sizes) :]
    if node.op is Op.MATMUL:
        total = np.einsum("...ij,...jk->...ik", *(one.astype(np.longdouble) for one in sizes))
        terms = operands[0].shape[-1]
    else:
        total = np.asarray(ORACLE[node.op](node, [*sizes, *rest], bindings), np.longdouble)
        terms = max(1, operands[0].size // max(1, made.size), 2)
        total = total * terms if node.op is Op.REDUCE_MEAN else total
    count = terms if node.op is Op.REDUCE_MEAN else 1
    own = EPSILON[node.dtype] * np.abs(np.where(np.isfinite(made), made, 0))
    lost = np.where(total > 0, tiny * (terms + 1) + _tiny_half(node.dtype), 0)
    error = total * epsilon * (4 + np.sqrt(terms)) / count + lost + own
    return np.where(total > most, np.nan, error)


def _tiny_half(dtype):
    return 2.0**-24 if dtype is DType.F16 else 0.0


def _product(node, operand, made, blur):
    """Factors in another order may overflow or underflow on the way."""
    epsilon, tiny, most = _limits(node.dtype)
    size = np.abs(operand.astype(np.longdouble))
    given = {"axis": node.attributes["axes"], "keepdims": node.attributes["keepdims"]}
    high = np.prod(np.maximum(size, 1), **given)
    low = np.prod(np.where(size == 0, 1, np.minimum(size, 1)), **given)
    terms = max(1, operand.size // max(1, made.size))
    pushed = _pushed(node.dtype, made, blur, EPSILON[node.dtype] + epsilon * terms)
    return np.where((high > most) | (low < tiny), blur.unknown(made), pushed)


def _composed(node, operands, bindings, blur):
    """The same formula of operands that are off a little, and the result off a little."""
    dtype = wide_dtype(node.dtype)
    epsilon, _, most = _limits(dtype)
    first = operands[0].astype(np.longdouble)
    moved = first * (1 + 2 * epsilon * blur.signs(first))
    made = np.asarray(ORACLE[node.op](node, [moved, *operands[1:]], bindings), np.longdouble)
    if node.op in (Op.LOG_SOFTMAX, Op.CROSS_ENTROPY):
        made = made + 4 * epsilon * blur.signs(made)
        # Near certainty the logarithm of 1 is 0, and so a pole for what comes after.
        made = np.where((np.abs(made) < 8 * epsilon) & blur.is_odd, 0, made)
    if node.op is Op.GELU:
        made = made + 4 * EPSILON[dtype] * blur.signs(made) * np.where(np.isfinite(first), first, 0)
    made = _pushed(node.dtype, made, blur, EPSILON[node.dtype])
    if node.op is not Op.NORMALIZE or not made.size:
        return made
    # The mean's own rounding shifts all of a row.
    size = np.where(np.isfinite(first), np.abs(first), 0)
    spread = np.sqrt(np.var(first, -1, keepdims=True) + operands[1])
    made = made + blur.signs(made) * epsilon * size.max(-1, keepdims=True) / spread
    # Squares overflow in the dtype of the graph, and not in the oracle's.
    over = 16 * (size * size).sum(-1, keepdims=True) > most
    return np.where(over, blur.unknown(made), made)
