"""Nodes without operands: what the caller fills, and what is known once the names are bound."""

from __future__ import annotations

from collections.abc import Mapping

import numpy

from rlx.backends.dtypes import Array, numpy_dtype
from rlx.backends.kernels.table import KERNELS, Kernel
from rlx.errors import UsageError
from rlx.ir import Node, Op, evaluate


def _constant(node: Node, bindings: Mapping[str, int]) -> Array:
    dtype = numpy_dtype(node.dtype)
    flat = numpy.frombuffer(node.attributes["content"], dtype.newbyteorder("<"))
    return flat.astype(dtype).reshape(node.shape.bind({}))


def _size(node: Node, bindings: Mapping[str, int]) -> Array:
    dtype = numpy_dtype(node.dtype)
    value = evaluate(node.attributes["dim"], bindings)
    if node.dtype.is_integer and value > numpy.iinfo(dtype).max:
        raise UsageError(f"the size is {value}, which {node.dtype} does not hold")
    with numpy.errstate(over="ignore"):
        size = numpy.array(value).astype(dtype)
    if not numpy.isfinite(size):
        raise UsageError(f"the size is {value}, which {node.dtype} does not hold")
    return size


KERNELS[Op.INPUT] = Kernel()
KERNELS[Op.PARAM] = Kernel()
KERNELS[Op.CONSTANT] = Kernel(fill=_constant)
KERNELS[Op.SIZE] = Kernel(fill=_size)
