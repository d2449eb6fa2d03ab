"""Rows by number: gather, scatter-add, one-hot. An index out of range is an error; none wraps."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy

from rlx.backends.dtypes import Array
from rlx.backends.kernels.table import Emitter, kernel, number
from rlx.backends.layout import View
from rlx.errors import DataError
from rlx.ir import DType, Node, Op


def checked_indices(emit: Emitter, indices: View, count: int, copy: View | None = None) -> View:
    """The indices as I64 side by side, after a call that refuses those outside 0..count-1.

    They are written into `copy` where one is given.
    """
    if copy is None:
        copy = emit.contiguous(emit.converted(indices, DType.I64))
    else:
        emit.copy(copy, indices)
    if copy.size:
        emit.call(check_range, emit.origin, emit.last_source, copy, count)
    return copy


def check_range(node: Node, source: str, indices: Array, count: int) -> None:
    """Raise `DataError` where an index is not in 0..count-1; `source` is where they are from, or
    empty."""
    # Seen as unsigned, a negative index is huge: one pass finds both ends.
    if int(numpy.maximum.reduce(indices.view(numpy.uint64), None)) < count:
        return
    wrong = (indices < 0) | (indices >= count)
    place = tuple(int(axis) for axis in numpy.argwhere(wrong)[0])
    raise out_of_range(node, source, int(indices[place]), place, count)


def out_of_range(
    node: Node, source: str, index: int, place: tuple[int, ...], count: int
) -> DataError:
    """The error for an index from `source` that is not in 0..count-1."""
    legal = f"0 to {count - 1}" if count else "nothing: there are no rows"
    return DataError(
        f"{node.op.value} (%{node.id}){source and f', indices from {source}'}: the index {index} "
        f"at {list(place)} is out of range; legal is {legal}"
    )


@kernel(Op.GATHER)
def _gather(emit: Emitter, node: Node, operands: Sequence[View], out: View) -> None:
    table, indices = operands
    indices = checked_indices(emit, indices, table.shape[0])
    if out.size:
        # With "raise" numpy buffers the result; the range is checked, so nothing is clipped.
        emit.call(numpy.take, emit.contiguous(table), indices, 0, out, "clip")


@kernel(Op.SCATTER_ADD)
def _scatter_add(emit: Emitter, node: Node, operands: Sequence[View], out: View) -> None:
    """Element by element in the order of the updates, so that the bits depend on nothing else.

    numpy.add.at is fast over one axis only (5 times so at 4096 updates of 256 on numpy 2.4), so
    the rows' numbers become numbers of elements.
    """
    updates, indices = operands
    wide = emit.wide_like(out)
    indices = checked_indices(emit, indices, out.shape[0])
    emit.call(numpy.copyto, wide, number(0, wide.dtype))
    if updates.size:
        width = prod(out.shape[1:])
        firsts = emit.scratch(DType.I64, (indices.size, 1))
        places = emit.scratch(DType.I64, (indices.size, width))
        emit.call(numpy.multiply, _flat(indices, 1), number(width, DType.I64), firsts)
        emit.call(numpy.add, firsts, numpy.arange(width), places)
        added = emit.contiguous(emit.widened(updates))
        emit.call(numpy.add.at, _flat(wide), _flat(places), _flat(added))
    emit.narrow(out, wide)


@kernel(Op.PICK)
def _pick(emit: Emitter, node: Node, operands: Sequence[View], out: View) -> None:
    values, indices = operands
    if out.size == 0:
        return
    places, width = emit.scratch(DType.I64, indices.shape), values.shape[-1]
    checked_indices(emit, indices, width, places)
    starts = (numpy.arange(out.size) * width).reshape(indices.shape)
    emit.call(numpy.add, places, starts, places)
    emit.call(numpy.take, _flat(emit.contiguous(values)), places, None, out, "clip")


@kernel(Op.ONE_HOT)
def _one_hot(emit: Emitter, node: Node, operands: Sequence[View], out: View) -> None:
    (indices,) = operands
    depth = out.shape[-1]
    places = emit.scratch(DType.I64, indices.shape)
    checked_indices(emit, indices, depth, places)
    emit.call(numpy.copyto, out, number(0, out.dtype))
    if out.size:
        starts = numpy.arange(0, out.size, depth).reshape(indices.shape)
        emit.call(numpy.add, places, starts, places)
        emit.call(_put, _flat(out), _flat(places), number(1, out.dtype))


def _put(target: Array, places: Array, value: Array) -> None:
    target[places] = value


def _flat(view: View, columns: int | None = None) -> View:
    flat = view.reshaped((view.size,) if columns is None else (view.size, columns))
    assert flat is not None
    return flat
