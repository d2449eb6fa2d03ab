"""Elementwise ops: one ufunc each, or a few over scratch. All may write over a dying operand.

F16 uses numpy's own loops, which compute in float32 and round once; BF16 is computed in F32 scratch
and rounded once, so that it needs no more of ml_dtypes than conversions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import numpy

from rlx.backends.kernels.runs import with_long_runs
from rlx.backends.kernels.table import (
    KERNELS,
    Emitter,
    Kernel,
    kernel,
    narrowed,
    number,
    widened,
)
from rlx.backends.layout import View
from rlx.ir import DType, Node, Op, Value, formulas

_UFUNCS: dict[Op, Callable[..., Any]] = {
    Op.NEG: numpy.negative,
    Op.EXP: numpy.exp,
    Op.LOG: numpy.log,
    Op.SQRT: numpy.sqrt,
    Op.TANH: numpy.tanh,
    Op.ABS: numpy.absolute,
    Op.SIN: numpy.sin,
    Op.COS: numpy.cos,
    Op.NOT: numpy.logical_not,
    Op.ADD: numpy.add,
    Op.SUB: numpy.subtract,
    Op.MUL: numpy.multiply,
    Op.DIV: numpy.true_divide,
    Op.POW: numpy.power,
    Op.MAX: numpy.maximum,
    Op.MIN: numpy.minimum,
    Op.EQ: numpy.equal,
    Op.NE: numpy.not_equal,
    Op.LT: numpy.less,
    Op.LE: numpy.less_equal,
    Op.GT: numpy.greater,
    Op.GE: numpy.greater_equal,
    Op.AND: numpy.logical_and,
    Op.OR: numpy.logical_or,
}

_LARGE = 8192


@kernel(*_UFUNCS, overwrites=(0, 1), keeps_order=True)
def _ufunc(emit: Emitter, node: Node, operands: Sequence[View], out: View) -> None:
    function = _UFUNCS[node.op]
    if operands[0].dtype is not DType.BF16:
        emit.ufunc(function, *[with_long_runs(emit, operand, out) for operand in operands], out)
        return
    wide = emit.scratch(DType.F32, out.shape) if out.dtype is DType.BF16 else out
    emit.ufunc(function, *[emit.widened(operand) for operand in operands], wide)
    emit.narrow(out, wide)


@kernel(Op.RELU, overwrites=(0,), keeps_order=True)
def _relu(emit: Emitter, node: Node, operands: Sequence[View], out: View) -> None:
    wide = emit.scratch(DType.F32, out.shape) if out.dtype is DType.BF16 else out
    (a,) = operands
    if out.dtype is DType.BF16:
        a = emit.widened(a)
    if wide.dtype.is_float and out.size >= _LARGE:
        # numpy.maximum with a number has no vector loop: 270 us for 346,112 elements, clip 90 us.
        emit.call(numpy.clip, a, number(0, wide.dtype), number(inf, wide.dtype), wide)
    else:
        emit.ufunc(numpy.maximum, a, number(0, wide.dtype), wide)
    emit.narrow(out, wide)


@kernel(Op.SIGMOID, overwrites=(0,), keeps_order=True)
def _sigmoid(emit: Emitter, node: Node, operands: Sequence[View], out: View) -> None:
    """1 / (1 + exp(-x)): where the exponential overflows, what is left of the result is subnormal,
    and becomes 0."""
    x, wide = emit.widened(operands[0]), emit.wide_like(out)
    one = number(1, wide.dtype)
    emit.ufunc(numpy.negative, x, wide)
    emit.ufunc(numpy.exp, wide, wide)
    emit.ufunc(numpy.add, wide, one, wide)
    emit.ufunc(numpy.true_divide, one, wide, wide)
    emit.narrow(out, wide)


def _gelu(node: Node, operands: Sequence[Value]) -> Value:
    x = widened(operands[0])
    return narrowed(x * formulas.gelu_gate(x), node)


KERNELS[Op.GELU] = Kernel(lower=_gelu)


@kernel(Op.WHERE, overwrites=(2,), keeps_order=True)
def _where(emit: Emitter, node: Node, operands: Sequence[View], out: View) -> None:
    condition, chosen, other = operands
    if not out.same_place(other):
        emit.copy(out, other)
    emit.call(numpy.copyto, out, chosen, "same_kind", condition)
