"""Ops that move elements and compute nothing. Most are views of their operand and need no call."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy

from rlx.backends.kernels.table import KERNELS, Emitter, Kernel, kernel, number
from rlx.backends.layout import View
from rlx.ir import Node, Op


def _copied(emit: Emitter, node: Node, operands: Sequence[View], out: View) -> None:
    emit.copy(out, operands[0])


def _reshape_by_copy(emit: Emitter, node: Node, operands: Sequence[View], out: View) -> None:
    """The operand's elements in row order, through a view of the result in the operand's shape."""
    target = out.reshaped(operands[0].shape)
    assert target is not None
    emit.copy(target, operands[0])


def _reshaped(node: Node, operand: View, shape: tuple[int, ...]) -> View | None:
    return operand.reshaped(shape)


def _transposed(node: Node, operand: View, shape: tuple[int, ...]) -> View | None:
    return operand.transposed(node.attributes["axes"])


def _broadcast(node: Node, operand: View, shape: tuple[int, ...]) -> View | None:
    return operand.broadcast(shape)


def _sliced(node: Node, operand: View, shape: tuple[int, ...]) -> View | None:
    return operand.sliced(*_bounds(node))


def _unfolded(node: Node, operand: View, shape: tuple[int, ...]) -> View | None:
    attributes = node.attributes
    return operand.unfolded(attributes["axes"], attributes["sizes"], attributes["steps"])


def _same_dtype(node: Node, operand: View, shape: tuple[int, ...]) -> View | None:
    return operand if operand.dtype is node.dtype else None


KERNELS[Op.RESHAPE] = Kernel(_reshape_by_copy, alias=_reshaped)
KERNELS[Op.TRANSPOSE] = Kernel(_copied, alias=_transposed)
KERNELS[Op.BROADCAST] = Kernel(_copied, alias=_broadcast)
KERNELS[Op.SLICE] = Kernel(_copied, alias=_sliced)
KERNELS[Op.UNFOLD] = Kernel(_copied, alias=_unfolded)
KERNELS[Op.CAST] = Kernel(_copied, alias=_same_dtype)


@kernel(Op.UNSLICE)
def _unslice(emit: Emitter, node: Node, operands: Sequence[View], out: View) -> None:
    part = out.sliced(*_bounds(node))
    if part.shape != operands[0].shape:
        emit.refuse(f"that slice is {list(part.shape)}; the operand is {list(operands[0].shape)}")
    if part.size != out.size:
        emit.call(numpy.copyto, out, number(0, out.dtype))
    emit.copy(part, operands[0])


@kernel(Op.FOLD)
def _fold(emit: Emitter, node: Node, operands: Sequence[View], out: View) -> None:
    """One addition for each place in a window: of all windows at once, which do not meet there."""
    windows, rank = emit.widened(operands[0]), len(out.shape)
    axes, steps = node.attributes["axes"], node.attributes["steps"]
    inner = range(rank, len(windows.shape))
    wide = emit.wide_like(out)
    emit.call(numpy.copyto, wide, number(0, wide.dtype))
    for places in itertools.product(*map(range, windows.shape[rank:])) if windows.size else ():
        starts, stops, strides = [0] * rank, list(out.shape), [1] * rank
        for axis, place, step in zip(axes, places, steps, strict=True):
            starts[axis], strides[axis] = place, step
            stops[axis] = place + step * (windows.shape[axis] - 1) + 1
        target = wide.sliced(starts, stops, strides)
        emit.ufunc(numpy.add, target, windows.picked(inner, places), target)
    emit.narrow(out, wide)


@kernel(Op.CONCAT)
def _concat(emit: Emitter, node: Node, operands: Sequence[View], out: View) -> None:
    axis, rank = node.attributes["axis"], len(out.shape)
    first = 0
    for operand in operands:
        last = first + operand.shape[axis]
        starts: list[int | None] = [None] * rank
        stops: list[int | None] = [None] * rank
        starts[axis], stops[axis] = first, last
        emit.copy(out.sliced(starts, stops, [None] * rank), operand)
        first = last


def _bounds(node: Node) -> tuple[Sequence[int | None], Sequence[int | None], Sequence[int | None]]:
    attributes = node.attributes
    return attributes["starts"], attributes["stops"], attributes["steps"]
