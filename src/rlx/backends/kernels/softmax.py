"""Softmax and its kin. The maximum is subtracted first, so that no exponential overflows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from rlx.backends.kernels.indexing import checked_indices
from rlx.backends.kernels.reductions import reduce_into
from rlx.backends.kernels.table import Emitter, kernel
from rlx.backends.layout import View
from rlx.ir import DType, Node, Op


@kernel(Op.SOFTMAX, overwrites=(0,))
def _softmax(emit: Emitter, node: Node, operands: Sequence[View], out: View) -> None:
    if out.size == 0:
        return
    axis, wide = node.attributes["axis"], emit.wide_like(out)
    row = _below_maximum(emit, emit.widened(operands[0]), axis, wide)
    emit.call(numpy.exp, wide, wide)
    reduce_into(emit, Op.REDUCE_SUM, wide, (axis,), True, row)
    emit.call(numpy.true_divide, wide, row, wide)
    emit.narrow(out, wide)


@kernel(Op.LOG_SOFTMAX, overwrites=(0,))
def _log_softmax(emit: Emitter, node: Node, operands: Sequence[View], out: View) -> None:
    if out.size == 0:
        return
    axis, wide = node.attributes["axis"], emit.wide_like(out)
    row = _below_maximum(emit, emit.widened(operands[0]), axis, wide)
    powers = emit.scratch(wide.dtype, wide.shape)
    emit.call(numpy.exp, wide, powers)
    reduce_into(emit, Op.REDUCE_SUM, powers, (axis,), True, row)
    emit.call(numpy.log, row, row)
    emit.call(numpy.subtract, wide, row, wide)
    emit.narrow(out, wide)


@kernel(Op.CROSS_ENTROPY)
def _cross_entropy(emit: Emitter, node: Node, operands: Sequence[View], out: View) -> None:
    """log(sum(exp(a - max a))) - (a - max a)[label]: the loss is F32 for F16 and BF16."""
    logits, labels = operands
    if labels.size == 0:
        return
    classes = logits.shape[-1]
    if classes == 0:
        emit.refuse(f"there is no class to choose; the logits are {list(logits.shape)}")
    flat = emit.scratch(DType.I64, labels.shape)
    checked_indices(emit, labels, classes, flat)
    wide = emit.scratch(out.dtype, logits.shape)
    row = _below_maximum(emit, emit.widened(logits), len(logits.shape) - 1, wide)
    starts = numpy.arange(0, labels.size * classes, classes).reshape(labels.shape)
    emit.call(numpy.add, flat, starts, flat)
    emit.call(numpy.take, _flat(wide), flat, None, out, "clip")
    emit.call(numpy.exp, wide, wide)
    sums = _squeezed(row)
    reduce_into(emit, Op.REDUCE_SUM, wide, (len(logits.shape) - 1,), False, sums)
    emit.call(numpy.log, sums, sums)
    emit.call(numpy.subtract, sums, out, out)


def _below_maximum(emit: Emitter, a: View, axis: int, out: View) -> View:
    """Write a - max(a) into `out`; give scratch of the maximum's shape, free to use."""
    row = emit.scratch(a.dtype, [1 if one == axis else n for one, n in enumerate(a.shape)])
    reduce_into(emit, Op.REDUCE_MAX, a, (axis,), True, row)
    emit.call(numpy.subtract, a, row, out)
    return row


def _flat(view: View) -> View:
    flat = view.reshaped((view.size,))
    assert flat is not None
    return flat


def _squeezed(row: View) -> View:
    squeezed = row.reshaped(row.shape[:-1])
    assert squeezed is not None
    return squeezed
