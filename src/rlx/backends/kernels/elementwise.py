"""Elementwise ops: one ufunc each, or a few over scratch. All may write over a dying operand.

F16 uses numpy's own loops, which compute in float32 and round once; BF16 is computed in F32 scratch
and rounded once, so that it needs no more of ml_dtypes than conversions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, pi, sqrt
from typing import Any

import numpy

from rlx.backends.kernels.runs import with_long_runs
from rlx.backends.kernels.table import Emitter, kernel, number
from rlx.backends.layout import View
from rlx.ir import DType, Node, Op

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

_GELU_CUBIC = 0.044715
_GELU_SCALE = sqrt(2 / pi)
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
    """exp(min(x, 0)) / (1 + exp(-|x|)): no exponent is positive, so nothing overflows."""
    x, wide = emit.widened(operands[0]), emit.wide_like(out)
    below = emit.scratch(wide.dtype, wide.shape)
    emit.ufunc(numpy.absolute, x, below)
    emit.ufunc(numpy.negative, below, below)
    emit.ufunc(numpy.exp, below, below)
    emit.ufunc(numpy.add, below, number(1, wide.dtype), below)
    emit.ufunc(numpy.minimum, x, number(0, wide.dtype), wide)
    emit.ufunc(numpy.exp, wide, wide)
    emit.ufunc(numpy.true_divide, wide, below, wide)
    emit.narrow(out, wide)


@kernel(Op.GELU, overwrites=(0,), keeps_order=True)
def _gelu(emit: Emitter, node: Node, operands: Sequence[View], out: View) -> None:
    """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): Hendrycks and Gimpel, arXiv:1606.08415."""
    x, wide = emit.widened(operands[0]), emit.wide_like(out)
    inner = emit.scratch(wide.dtype, wide.shape)
    emit.ufunc(numpy.multiply, x, x, inner)
    emit.ufunc(numpy.multiply, inner, number(_GELU_CUBIC * _GELU_SCALE, wide.dtype), inner)
    emit.ufunc(numpy.add, inner, number(_GELU_SCALE, wide.dtype), inner)
    emit.ufunc(numpy.multiply, inner, x, inner)
    emit.ufunc(numpy.tanh, inner, inner)
    emit.ufunc(numpy.add, inner, number(1, wide.dtype), inner)
    emit.ufunc(numpy.multiply, inner, number(0.5, wide.dtype), inner)
    emit.ufunc(numpy.multiply, inner, x, wide)
    emit.narrow(out, wide)


@kernel(Op.WHERE, overwrites=(2,), keeps_order=True)
def _where(emit: Emitter, node: Node, operands: Sequence[View], out: View) -> None:
    condition, chosen, other = operands
    if not out.same_place(other):
        emit.copy(out, other)
    emit.call(numpy.copyto, out, chosen, "same_kind", condition)
