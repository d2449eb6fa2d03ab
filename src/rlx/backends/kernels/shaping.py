"""Ops that move elements and compute nothing. Most are views of their operand and need no call."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

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


def _folded(node: Node, operand: View, shape: tuple[int, ...]) -> View | None:
    attributes = node.attributes
    return operand.folded(attributes["axes"], attributes["lengths"], attributes["steps"])


def _same_dtype(node: Node, operand: View, shape: tuple[int, ...]) -> View | None:
    return operand if operand.dtype is node.dtype else None


KERNELS[Op.RESHAPE] = Kernel(_reshape_by_copy, alias=_reshaped)
KERNELS[Op.TRANSPOSE] = Kernel(_copied, alias=_transposed)
KERNELS[Op.BROADCAST] = Kernel(_copied, alias=_broadcast)
KERNELS[Op.SLICE] = Kernel(_copied, alias=_sliced)
KERNELS[Op.UNFOLD] = Kernel(_copied, alias=_unfolded)
KERNELS[Op.CAST] = Kernel(_copied, alias=_same_dtype, keeps_order=True)


@kernel(Op.UNSLICE)
def _unslice(emit: Emitter, node: Node, operands: Sequence[View], out: View) -> None:
    part = out.sliced(*_bounds(node))
    if part.shape != operands[0].shape:
        emit.refuse(f"that slice is {list(part.shape)}; the operand is {list(operands[0].shape)}")
    if part.size != out.size:
        emit.call(numpy.copyto, out, number(0, out.dtype))
    emit.copy(part, operands[0])


@kernel(Op.FOLD, alias=_folded)
def _fold(emit: Emitter, node: Node, operands: Sequence[View], out: View) -> None:
    """Windows that do not overlap are copied. Others are added, in one call those that lie together
    and do not overlap: all windows' elements of one place, where places are the outer axes; else
    every m-th window along an axis, where m of them span a window."""
    (windows,) = operands
    axes, steps = node.attributes["axes"], node.attributes["steps"]
    sizes = windows.shape[len(out.shape) :]
    spans = [-(-size // step) for size, step in zip(sizes, steps, strict=True)]
    if windows.size == 0 or max(spans, default=1) == 1:
        if windows.size != out.size:
            emit.call(numpy.copyto, out, number(0, out.dtype))
        emit.copy(out.unfolded(axes, sizes, steps), windows)
        return
    windows, wide = emit.widened(windows), emit.wide_like(out)
    emit.call(numpy.copyto, wide, number(0, wide.dtype))
    target = wide.unfolded(axes, sizes, steps)
    for pick in _apart(windows, axes, sizes, spans):
        part = pick(windows)
        if part.size:
            emit.ufunc(numpy.add, pick(target), part, pick(target))
    emit.narrow(out, wide)


def _apart(
    windows: View, axes: Sequence[int], sizes: Sequence[int], spans: Sequence[int]
) -> Iterator[Callable[[View], View]]:
    """Parts of windows, none of which overlaps itself, that together are all."""
    rank = len(windows.shape)
    inner = tuple(range(rank - len(axes), rank))
    if set(windows.order[: len(axes)]) == set(inner):
        for places in itertools.product(*map(range, sizes)):
            yield partial(View.picked, axes=inner, places=places)
        return
    for firsts in itertools.product(*map(range, spans)):
        starts, every = [0] * rank, [1] * rank
        for axis, first, span in zip(axes, firsts, spans, strict=True):
            starts[axis], every[axis] = first, span
        yield partial(View.sliced, starts=starts, stops=[None] * rank, steps=every)


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
