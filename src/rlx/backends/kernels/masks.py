"""Random masks, from a stream whose values numpy guarantees for all releases."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from rlx.backends.dtypes import Array, numpy_dtype
from rlx.backends.kernels.table import Emitter, kernel
from rlx.backends.layout import View
from rlx.ir import DType, Node, Op

_PIECE = 1 << 15
"""Words taken from the stream at once: what they need beside the mask stays small."""


@kernel(Op.KEEP_MASK)
def _keep_mask(emit: Emitter, node: Node, operands: Sequence[View], out: View) -> None:
    (key,) = operands
    flat = out.reshaped((out.size,))
    assert flat is not None
    dropped, stream = node.attributes["dropped"], node.attributes["stream"]
    with numpy.errstate(over="ignore"):  # 1 / (1 - p) may be beyond F16, and is infinite then
        kept = numpy.array(kept_value(dropped), numpy_dtype(node.dtype))
    if node.dtype is DType.F32 or node.dtype is DType.F64:
        emit.call(_draw, emit.contiguous(key), dropped, stream, kept, flat)
        return
    wide = emit.scratch(DType.F32, flat.shape)
    # Where it is infinite, that times 0 would be NaN: the largest number becomes infinite below.
    finite = numpy.nan_to_num(kept.astype(numpy.float32))
    emit.call(_draw, emit.contiguous(key), dropped, stream, finite, wide)
    emit.copy(flat, wide)


def kept_value(dropped: int) -> float:
    """What an element that stays is multiplied by, so that the mean stays."""
    return float(2**32 / (2**32 - dropped))


def _draw(key: Array, dropped: int, stream: int, kept: Array, out: Array) -> None:
    """Write the mask of `key` into `out`: see `Builder.keep_mask`."""
    seed, step, microbatch = (int(word) & (2**64 - 1) for word in key)
    if key[0] < 0:
        out[...] = 1
        return
    words = numpy.random.Philox(
        key=numpy.array([seed, stream], numpy.uint64),
        counter=numpy.array([0, step, microbatch, 0], numpy.uint64),
    )
    for first in range(0, out.size, 2 * _PIECE):
        part = out[first : first + 2 * _PIECE]
        drawn = words.random_raw(-(-part.size // 2)).astype("<u8", copy=False).view("<u4")
        numpy.multiply(drawn[: part.size] >= dropped, kept, out=part)
