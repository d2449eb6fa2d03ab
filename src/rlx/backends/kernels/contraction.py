"""Matrix products, arranged so that numpy always finds operands that BLAS takes.

numpy hands a product to BLAS where the last two axes of each operand are rows, or columns, at an
even distance; anything else (a broadcast axis, a negative step) goes through a slow loop, so it is
copied to scratch first.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy

from rlx.backends.kernels.table import Emitter, kernel
from rlx.backends.layout import View
from rlx.ir import Node, Op


@kernel(Op.MATMUL)
def _matmul(emit: Emitter, node: Node, operands: Sequence[View], out: View) -> None:
    left, right = (_for_blas(emit, emit.widened(operand)) for operand in operands)
    wide = emit.wide_like(out)
    emit.call(numpy.matmul, *_as_one_product(left, right, wide))
    emit.narrow(out, wide)


def _for_blas(emit: Emitter, view: View) -> View:
    if rows_suit(view, -2, -1) or rows_suit(view, -1, -2):
        return view
    copy = emit.scratch(view.dtype, view.shape)
    emit.copy(copy, view)
    return copy


def rows_suit(view: View, outer: int, inner: int) -> bool:
    """Whether BLAS takes such matrices: elements side by side along one axis, which do not overlap
    along the other."""
    itemsize = view.dtype.itemsize
    return (
        view.strides[inner] == itemsize
        and view.strides[outer] % itemsize == 0
        and view.strides[outer] >= view.shape[inner] * itemsize
    )


def _as_one_product(left: View, right: View, out: View) -> tuple[View, View, View]:
    """A stack of matrices times one matrix, as one product of more rows: one call of BLAS."""
    stack, rows = out.shape[:-2], out.shape[-2]
    if prod(stack) <= 1 or prod(right.shape[:-2]) != 1:
        return left, right, out
    flat = left.reshaped((prod(stack) * rows, left.shape[-1]))
    matrix = right.reshaped(right.shape[-2:])
    target = out.reshaped((prod(stack) * rows, out.shape[-1]))
    if left.shape[:-2] != stack or flat is None or matrix is None or target is None:
        return left, right, out
    if not rows_suit(flat, -2, -1):
        return left, right, out
    return flat, matrix, target
