"""A small convolutional network for 8x8 digits: two convolutions with pools, then dropout."""

from __future__ import annotations

from rlx.ir import BinaryOp, DType, Graph, UnaryOp, Value

SIDE = 8
FILTERS = (16, 32)
CLASSES = 10
DROPOUT = 0.3


def logits(graph: Graph, dropout: float) -> Value:
    """The scores of the classes. 8x8 pixels become 4x4 places, then 2x2, which are then joined."""
    image = graph.input("image", ["batch", SIDE, SIDE, 1], DType.U8)
    x = image.cast(DType.F32) / 16
    channels = 1
    for number, filters in enumerate(FILTERS, 1):
        kernel = graph.param(f"kernel{number}", [3, 3, channels, filters])
        bias = graph.param(f"kernel{number}.bias", [filters])
        x = graph.unary(UnaryOp.RELU, graph.conv2d(x, kernel, padding=1) + bias)
        x = graph.max_pool(x, 2)
        channels = filters
    joined = 2 * 2 * channels
    x = graph.dropout(x.reshape("batch", joined), dropout)
    return x @ graph.param("head", [joined, CLASSES]) + graph.param("head.bias", [CLASSES])


def loss() -> Graph:
    """The mean cross-entropy of a batch, some of whose units are dropped."""
    graph = Graph("digits cnn")
    scores = logits(graph, DROPOUT)
    label = graph.input("label", ["batch"], DType.I32)
    graph.set_outputs([graph.cross_entropy(scores, label).mean()])
    return graph


def evaluation() -> Graph:
    """Cross-entropy and accuracy, one number a row, of the whole network: nothing is dropped."""
    graph = Graph("digits cnn evaluation")
    scores = logits(graph, 0.0)
    label = graph.input("label", ["batch"], DType.I32)
    guess = graph.argmax(scores, axis=-1)
    right = graph.binary(BinaryOp.EQ, guess, label.cast(DType.I64))
    graph.set_outputs([graph.cross_entropy(scores, label), right.cast(DType.F32)])
    return graph
