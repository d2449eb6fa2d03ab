"""A GPT-like model of characters: two layers of width 64 with four heads, 64 characters at once."""

from __future__ import annotations

import numpy as np

from rlx.ir import DType, Graph, UnaryOp, Value

ALPHABET = "\n" + "".join(chr(code) for code in range(32, 127))
"""A token is a character's place here: the end of a line, then printable ASCII."""

LENGTH = 64
WIDTH = 64
HEADS = 4
LAYERS = 2


def scores(graph: Graph, tokens: Value) -> Value:
    """What may follow each of `tokens` [batch, LENGTH]: [batch, LENGTH, characters], unscaled.

    The table of characters is also the last matrix, transposed.
    """
    table = graph.param("table", [len(ALPHABET), WIDTH])
    x = graph.gather(table, tokens.cast(DType.I32)) + graph.param("places", [LENGTH, WIDTH])
    for number in range(LAYERS):
        block = f"block{number}"
        x = x + _attention(graph, f"{block}.attention", _norm(graph, f"{block}.norm1", x))
        inner = _linear(graph, f"{block}.up", _norm(graph, f"{block}.norm2", x), 4 * WIDTH)
        x = x + _linear(graph, f"{block}.down", graph.unary(UnaryOp.GELU, inner), WIDTH)
    return _norm(graph, "last.norm", x) @ table.transpose()


def loss() -> Graph:
    """The mean cross-entropy of all characters of a batch, in nats."""
    graph = Graph("char gpt")
    graph.set_outputs([_surprise(graph).mean()])
    return graph


def evaluation() -> Graph:
    """The same, one number a row."""
    graph = Graph("char gpt evaluation")
    graph.set_outputs([_surprise(graph).mean(1)])
    return graph


def sampling() -> Graph:
    """The scores for `tokens`; those of a place depend on no later one."""
    graph = Graph("char gpt sampling")
    graph.set_outputs([scores(graph, graph.input("tokens", ["batch", LENGTH], DType.U8))])
    return graph


def _surprise(graph: Graph) -> Value:
    """-log of the probability that each character but the first of a row had: [batch, LENGTH]."""
    text = graph.input("text", ["batch", LENGTH + 1], DType.U8)
    return graph.cross_entropy(scores(graph, text[:, :-1]), text[:, 1:].cast(DType.I32))


def _linear(graph: Graph, name: str, x: Value, outputs: int) -> Value:
    weights = graph.param(name, [x.shape.dims[-1], outputs])
    return x @ weights + graph.param(f"{name}.bias", [outputs])


def _norm(graph: Graph, name: str, x: Value) -> Value:
    gain, bias = graph.param(f"{name}.gain", [WIDTH]), graph.param(f"{name}.bias", [WIDTH])
    return graph.layer_norm(x, gain, bias)


def _attention(graph: Graph, name: str, x: Value) -> Value:
    """Each place takes from itself and from earlier ones, head by head."""
    depth = WIDTH // HEADS
    joined = _linear(graph, f"{name}.in", x, 3 * WIDTH)
    parts = joined.reshape("batch", LENGTH, 3, HEADS, depth).transpose(2, 0, 3, 1, 4)
    queries, keys, values = (parts[number] for number in range(3))
    later = np.triu(np.full((LENGTH, LENGTH), -np.inf, np.float32), 1)
    match = (queries @ keys.transpose(0, 1, 3, 2)) * depth**-0.5 + graph.constant(later)
    mixed = (graph.softmax(match, -1) @ values).transpose(0, 2, 1, 3)
    return _linear(graph, f"{name}.out", mixed.reshape("batch", LENGTH, WIDTH), WIDTH)
