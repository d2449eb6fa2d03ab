"""Formulas that a forward pass and its gradient share, node for node.

A kernel that is a composition of ops (`backends`) and the VJP rule of the same op (`autodiff`) both
take them from here. Equal nodes become one before a graph is planned, so they are computed once.
"""

from __future__ import annotations

import math

from rlx.ir.ops import UnaryOp
from rlx.ir.value import Value

GELU_SCALE, GELU_CUBIC = 2 * math.sqrt(2 / math.pi), 0.044715


def gelu_gate(x: Value) -> Value:
    """The share of x that passes: GELU in its tanh form is x times this.

    (1 + tanh(z)) / 2 is 1 / (1 + exp(-2 z)), here with z = sqrt(2/pi) (x + 0.044715 x^3).
    Source: Hendrycks and Gimpel, arXiv 1606.08415.
    """
    exponent = x * (x * x * (-GELU_SCALE * GELU_CUBIC) - GELU_SCALE)
    return 1 / (1 + x.graph.unary(UnaryOp.EXP, exponent))


def gelu_slope(x: Value) -> Value:
    """The derivative of GELU: gate + x gate (1 - gate) z', with z' that of 2 z above."""
    gate = gelu_gate(x)
    bend = x * x * (3 * GELU_SCALE * GELU_CUBIC) + GELU_SCALE
    return gate + x * gate * (1 - gate) * bend


def powers(a: Value, axis: int) -> tuple[Value, Value]:
    """a - max(a) along `axis`, and its exponential, which does not overflow."""
    below = a - a.max(axis, keepdims=True)
    return below, a.graph.unary(UnaryOp.EXP, below)


def softmax(a: Value, axis: int) -> Value:
    """exp(a) / sum(exp(a)) along `axis`."""
    _, exponentials = powers(a, axis)
    return exponentials / exponentials.sum(axis, keepdims=True)


def log_softmax(a: Value, axis: int) -> Value:
    """The logarithm of the softmax along `axis`."""
    below, exponentials = powers(a, axis)
    return below - a.graph.unary(UnaryOp.LOG, exponentials.sum(axis, keepdims=True))


def cross_entropy(logits: Value, labels: Value) -> Value:
    """-log_softmax(logits)[label] over the last axis."""
    below, exponentials = powers(logits, -1)
    total = exponentials.sum(-1, keepdims=True).reshape(*labels.shape)
    return logits.graph.unary(UnaryOp.LOG, total) - logits.graph.pick(below, labels)


def deviation(x: Value, epsilon: Value) -> tuple[Value, Value]:
    """x - mean(x), and sqrt(variance + epsilon), over the last axis."""
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    return centred, x.graph.unary(UnaryOp.SQRT, variance + epsilon)
