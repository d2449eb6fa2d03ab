"""Softmax and its kin, and normalisation: by other ops, so that their gradients share the parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.backends.kernels.table import KERNELS, Kernel, Lower, narrowed, widened
from rlx.ir import Node, Op, Value, formulas


def _along_axis(formula: Callable[[Value, int], Value]) -> Lower:
    def lower(node: Node, operands: Sequence[Value]) -> Value:
        (a,) = operands
        axis = node.attributes["axis"]
        # Of nothing there is no maximum, and its softmax is nothing.
        return a if node.shape[axis] == 0 else narrowed(formula(widened(a), axis), node)

    return lower


def _cross_entropy(node: Node, operands: Sequence[Value]) -> Value:
    """The loss is F32 for F16 and BF16."""
    logits, labels = operands
    return formulas.cross_entropy(widened(logits), labels)


def _normalize(node: Node, operands: Sequence[Value]) -> Value:
    centred, deviation = formulas.deviation(*operands)
    return centred / deviation


KERNELS[Op.SOFTMAX] = Kernel(lower=_along_axis(formulas.softmax))
KERNELS[Op.LOG_SOFTMAX] = Kernel(lower=_along_axis(formulas.log_softmax))
KERNELS[Op.CROSS_ENTROPY] = Kernel(lower=_cross_entropy)
KERNELS[Op.NORMALIZE] = Kernel(lower=_normalize)
