"""A multilayer perceptron for 8x8 digits: 64 pixels, 128 hidden units, 10 classes."""

from __future__ import annotations

from rlx.ir import BinaryOp, DType, Graph, UnaryOp, Value

PIXELS = 64
HIDDEN = 128
CLASSES = 10


def logits(graph: Graph) -> Value:
    """The network, as far as the scores of the classes."""
    image = graph.input("image", ["batch", PIXELS], DType.U8)
    w1 = graph.param("w1", [PIXELS, HIDDEN])
    b1 = graph.param("b1", [HIDDEN])
    w2 = graph.param("w2", [HIDDEN, CLASSES])
    b2 = graph.param("b2", [CLASSES])
    bright = image.cast(DType.F32) / 16
    hidden = graph.unary(UnaryOp.RELU, bright @ w1 + b1)
    return hidden @ w2 + b2


def loss() -> Graph:
    """The mean cross-entropy of a batch."""
    graph = Graph("digits")
    scores = logits(graph)
    label = graph.input("label", ["batch"], DType.I32)
    graph.set_outputs([graph.cross_entropy(scores, label).mean()])
    return graph


def evaluation() -> Graph:
    """Cross-entropy and accuracy, one number a row."""
    graph = Graph("digits evaluation")
    scores = logits(graph)
    label = graph.input("label", ["batch"], DType.I32)
    guess = graph.argmax(scores, axis=-1)
    right = graph.binary(BinaryOp.EQ, guess, label.cast(DType.I64))
    graph.set_outputs([graph.cross_entropy(scores, label), right.cast(DType.F32)])
    return graph
