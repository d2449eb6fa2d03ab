"""Elementwise ops. F16 and BF16 are computed in F32 and rounded once, as numpy's kernels do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy

from rlx.backends.dtypes import numpy_dtype
from rlx.backends.jax.table import RULES, Trace, Traced, ones_where, rule
from rlx.ir import Node, Op
from rlx.ir.formulas import GELU_CUBIC, GELU_SCALE


def _sigmoid(x: Traced) -> Traced:
    return 1 / (1 + jnp.exp(-x))


def _gelu(x: Traced) -> Traced:
    """x times the gate of `ir.formulas.gelu_gate`."""
    return x / (1 + jnp.exp(x * (x * x * (-GELU_SCALE * GELU_CUBIC) - GELU_SCALE)))


_FORMULAS: dict[Op, Callable[..., Any]] = {
    Op.NEG: jnp.negative,
    Op.EXP: jnp.exp,
    Op.LOG: jnp.log,
    Op.SQRT: jnp.sqrt,
    Op.TANH: jnp.tanh,
    Op.SIGMOID: _sigmoid,
    Op.RELU: lambda x: jnp.maximum(x, 0),
    Op.GELU: _gelu,
    Op.ABS: jnp.absolute,
    Op.SIN: jnp.sin,
    Op.COS: jnp.cos,
    Op.NOT: jnp.logical_not,
    Op.ADD: jnp.add,
    Op.SUB: jnp.subtract,
    Op.MUL: jnp.multiply,
    Op.DIV: jnp.divide,
    Op.POW: jnp.power,
    Op.MAX: jnp.maximum,
    Op.MIN: jnp.minimum,
    Op.EQ: jnp.equal,
    Op.NE: jnp.not_equal,
    Op.LT: jnp.less,
    Op.LE: jnp.less_equal,
    Op.GT: jnp.greater,
    Op.GE: jnp.greater_equal,
    Op.AND: jnp.logical_and,
    Op.OR: jnp.logical_or,
}


@rule(*_FORMULAS)
def _formula(trace: Trace, node: Node, operands: Sequence[Traced]) -> Traced:
    is_half = operands[0].dtype.itemsize == 2  # there are no other types of two bytes
    wide = [one.astype(jnp.float32) for one in operands] if is_half else operands
    return _FORMULAS[node.op](*wide).astype(numpy_dtype(node.dtype))


RULES[Op.WHERE] = lambda trace, node, operands: jnp.where(*operands)


@rule(Op.CAST)
def _cast(trace: Trace, node: Node, operands: Sequence[Traced]) -> Traced:
    (a,) = operands
    target = numpy_dtype(node.dtype)
    if a.dtype == bool:
        return ones_where(a, node)
    if not (jnp.issubdtype(a.dtype, jnp.floating) and node.dtype.is_integer):
        return a.astype(target)
    if a.dtype == jnp.bfloat16:
        return _whole(a, target, otherwise=0)
    # To 8 bits by way of I32, whose low byte is then what counts.
    middle = target if target.itemsize >= 4 else numpy.dtype(numpy.int32)
    return _whole(a, middle, otherwise=int(numpy.iinfo(middle).min)).astype(target)


def _whole(a: Traced, target: numpy.dtype[Any], otherwise: int) -> Traced:
    """Floats without their fraction as integers; `otherwise` for NaN and what `target` cannot hold.

    numpy has the least integer there on x86-64, and ml_dtypes 0 for BF16; XLA the nearest one.
    """
    bounds = numpy.iinfo(target)
    whole = jnp.trunc(a.astype(jnp.float32) if a.dtype.itemsize == 2 else a)
    fits = (whole >= float(bounds.min)) & (whole < float(bounds.max + 1))
    return jnp.where(fits, jnp.where(fits, whole, 0).astype(target), target.type(otherwise))
