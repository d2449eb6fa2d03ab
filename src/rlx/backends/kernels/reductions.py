"""Reductions over axes. F16 and BF16 are accumulated in F32 and rounded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy

from rlx.backends.kernels.table import Emitter, kernel, number
from rlx.backends.layout import View
from rlx.ir import DType, Node, Op

_REDUCE: dict[Op, Callable[..., Any]] = {
    Op.REDUCE_SUM: numpy.add.reduce,
    Op.REDUCE_PROD: numpy.multiply.reduce,
    Op.REDUCE_MAX: numpy.maximum.reduce,
    Op.REDUCE_MIN: numpy.minimum.reduce,
}


def reduce_into(
    emit: Emitter, op: Op, a: View, axes: tuple[int, ...], keepdims: bool, out: View
) -> None:
    """Emit the reduction of `a` into `out`, both of one dtype that is accumulated as it is."""
    emit.call(_REDUCE[op], a, axes, None, out, keepdims)


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
