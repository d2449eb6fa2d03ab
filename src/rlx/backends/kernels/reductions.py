"""Reductions over axes. F16 and BF16 are accumulated in F32 and rounded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy

from rlx.backends.dtypes import numpy_dtype
from rlx.backends.kernels.contraction import rows_suit
from rlx.backends.kernels.table import Emitter, kernel, number
from rlx.backends.layout import View
from rlx.ir import DType, Node, Op

_COMBINE: dict[Op, numpy.ufunc] = {
    Op.REDUCE_SUM: numpy.add,
    Op.REDUCE_PROD: numpy.multiply,
    Op.REDUCE_MAX: numpy.maximum,
    Op.REDUCE_MIN: numpy.minimum,
}
_REDUCE: dict[Op, Callable[..., Any]] = {op: one.reduce for op, one in _COMBINE.items()}

# Up to so many places along the reduced axes, and from so many elements along the last axis on, one
# call a place is faster: a 2 x 2 maximum over F32[32, 13, 13, 2, 2, 16] took 0.3 of the time.
_FEW = 16
_LONG = 8

# Sums of fewer elements are as fast by numpy's own reduction; longer rows are added in pairs there.
_PRODUCT_FROM = 2048
_SHORT_ROW = 4096


def reduce_into(
    emit: Emitter, op: Op, a: View, axes: tuple[int, ...], keepdims: bool, out: View
) -> None:
    """Emit the reduction of `a` into `out`, both of one dtype that is accumulated as it is."""
    count = prod(a.shape[axis] for axis in axes)
    if op is Op.REDUCE_SUM and _as_product(emit, a, axes, out):
        return
    if 1 < count <= _FEW and len(a.shape) - 1 not in axes and a.shape[-1] >= _LONG:
        _by_places(emit, op, a, axes, out)
    else:
        emit.call(_REDUCE[op], a, axes, None, out, keepdims)


def _as_product(emit: Emitter, a: View, axes: tuple[int, ...], out: View) -> bool:
    """Emit a sum of floats over leading or trailing axes as a product with ones, where that is
    faster; say whether.

    Summing F32[21632, 16] over its rows took 41 us so, and 620 us as a reduction. A row is summed
    one by one (no pairs), so only short ones are.
    """
    rank, last = len(a.shape), len(a.shape) - len(axes)
    leading, trailing = axes == tuple(range(len(axes))), axes == tuple(range(last, rank))
    if not axes or leading == trailing or a.dtype not in (DType.F32, DType.F64):
        return False
    first = len(axes) if leading else last
    rows, columns = prod(a.shape[:first]), prod(a.shape[first:])
    matrix = a.reshaped((rows, columns))
    if matrix is None or not rows_suit(matrix, -2, -1) or min(rows, columns) < 2:
        return False
    if rows * columns < _PRODUCT_FROM or (trailing and columns > _SHORT_ROW):
        return False
    target = out.reshaped((1, columns) if leading else (rows, 1))
    assert target is not None
    ones = numpy.ones((1, rows) if leading else (columns, 1), numpy_dtype(a.dtype))
    emit.call(numpy.matmul, *((ones, matrix) if leading else (matrix, ones)), target)
    return True


def _by_places(emit: Emitter, op: Op, a: View, axes: tuple[int, ...], out: View) -> None:
    """One axis after the other, and one call for each place along it: numpy's own reduction would
    loop over the few places innermost, call by call.

    The axis of the widest stride is first, so that the loops over what is left are long.
    """
    by_stride = sorted(axes, key=lambda axis: (a.shape[axis] > 1, -abs(a.strides[axis])))
    for done, axis in enumerate(by_stride):
        place = axis - sum(earlier < axis for earlier in by_stride[:done])
        a, *parts = (a.picked((place,), (one,)) for one in range(a.shape[place]))
        if parts:
            is_last = done == len(by_stride) - 1
            target = out.reshaped(a.shape) if is_last else emit.scratch(a.dtype, a.shape, a.order)
            assert target is not None
            for part in parts:
                emit.ufunc(_COMBINE[op], a, part, target)
                a = target


@kernel(Op.REDUCE_SUM, Op.REDUCE_PROD)
def _sum(emit: Emitter, node: Node, operands: Sequence[View], out: View) -> None:
    wide = emit.wide_like(out)
    _reduce(emit, node, emit.converted(operands[0], wide.dtype), wide)
    emit.narrow(out, wide)


@kernel(Op.REDUCE_MEAN)
def _mean(emit: Emitter, node: Node, operands: Sequence[View], out: View) -> None:
    """The sum, then one division. The mean of nothing is NaN, as 0 / 0 is."""
    wide = emit.wide_like(out)
    count = prod(operands[0].shape[axis] for axis in node.attributes["axes"])
    a = emit.converted(operands[0], wide.dtype)
    axes, keepdims = node.attributes["axes"], node.attributes["keepdims"]
    reduce_into(emit, Op.REDUCE_SUM, a, axes, keepdims, wide)
    emit.call(numpy.true_divide, wide, number(count, wide.dtype), wide)
    emit.narrow(out, wide)


@kernel(Op.REDUCE_MAX, Op.REDUCE_MIN)
def _extreme(emit: Emitter, node: Node, operands: Sequence[View], out: View) -> None:
    (a,) = operands
    if out.size == 0:
        return
    if a.size == 0:
        emit.refuse(f"there is no maximum or minimum of nothing; the operand is {list(a.shape)}")
    wide = emit.scratch(DType.F32, out.shape) if out.dtype is DType.BF16 else out
    _reduce(emit, node, emit.converted(a, wide.dtype), wide)
    emit.narrow(out, wide)


@kernel(Op.ARGMAX)
def _argmax(emit: Emitter, node: Node, operands: Sequence[View], out: View) -> None:
    (a,) = operands
    axis = node.attributes["axis"]
    if out.size == 0:
        return
    if a.size == 0:
        emit.refuse(f"there is no maximum of nothing; the operand is {list(a.shape)}")
    order = [one for one in range(len(a.shape)) if one != axis]
    rows = a.transposed([*order, axis])
    # numpy would copy operands that are not rows, and knows no order of BF16.
    rows = emit.converted(rows, DType.F32) if a.dtype is DType.BF16 else emit.contiguous(rows)
    emit.call(numpy.argmax, rows, -1, out)


def _reduce(emit: Emitter, node: Node, a: View, out: View) -> None:
    reduce_into(emit, node.op, a, node.attributes["axes"], node.attributes["keepdims"], out)
