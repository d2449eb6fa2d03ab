"""Four small models, as graphs: what a step of training is measured on. All float32."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from rlx.autodiff import grad_with_loss
from rlx.ir import DType, Graph, UnaryOp, Value

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Model:
    """A model: what it is, its batch, its loss as a graph, and its inputs for a batch."""

    about: str
    batch: int
    loss: Callable[[Graph], Value]
    inputs: Callable[[np.random.Generator, int], Arrays]

    def graph(self) -> tuple[Graph, tuple[str, ...]]:
        """The loss, then the gradients of all parameters; and the names of these, in order."""
        graph = Graph("model")
        graph.set_outputs([self.loss(graph)])
        names = tuple(node.name for node in graph.params)
        return grad_with_loss(graph, names), names

    def params(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """First values: gains are 1, biases 0, all else uniform by the number of inputs."""
        graph = Graph("model")
        self.loss(graph)
        found = {}
        for node in graph.params:
            shape = node.shape.bind({})
            if len(shape) == 1:
                value = np.ones(shape) if node.name.endswith("gain") else np.zeros(shape)
            else:
                bound = np.prod(shape[:-1]) ** -0.5
                value = rng.uniform(-bound, bound, shape)
            found[node.name] = value.astype(np.float32)
        return found


def _linear(graph: Graph, name: str, x: Value, inputs: int, outputs: int) -> Value:
    return x @ graph.param(name, [inputs, outputs]) + graph.param(f"{name}.bias", [outputs])


def _regression(graph: Graph) -> Value:
    error = graph.input("x", ["batch", 3]) @ graph.param("w", [3, 1]) - graph.input(
        "y", ["batch", 1]
    )
    return (error * error).mean()


def _regression_inputs(rng: np.random.Generator, batch: int) -> Arrays:
    return {name: rng.standard_normal((batch, n), np.float32) for name, n in (("x", 3), ("y", 1))}


def _digits(*shape: int) -> Callable[[np.random.Generator, int], Arrays]:
    """Rows of `shape`, and labels of ten classes."""

    def inputs(rng: np.random.Generator, batch: int) -> Arrays:
        return {
            "x": rng.standard_normal((batch, *shape), np.float32),
            "labels": rng.integers(0, 10, batch),
        }

    return inputs


def _mlp(graph: Graph) -> Value:
    x, sizes = graph.input("x", ["batch", 784]), (784, 512, 256, 10)
    labels = graph.input("labels", ["batch"], DType.I64)
    for number, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        x = x if not number else graph.unary(UnaryOp.RELU, x)
        x = _linear(graph, f"w{number}", x, inputs, outputs)
    return graph.cross_entropy(x, labels).mean()


def _cnn(graph: Graph) -> Value:
    x = graph.input("x", ["batch", 28, 28, 1])
    labels = graph.input("labels", ["batch"], DType.I64)
    for number, (channels, filters) in enumerate(((1, 16), (16, 32))):
        x = graph.conv2d(x, graph.param(f"k{number}", [3, 3, channels, filters]))
        x = graph.unary(UnaryOp.RELU, x + graph.param(f"k{number}.bias", [filters]))
        x = graph.max_pool(x, 2)
    x = _linear(graph, "head", x.reshape("batch", 5 * 5 * 32), 5 * 5 * 32, 10)
    return graph.cross_entropy(x, labels).mean()


WIDTH, HEADS, LENGTH, VOCABULARY = 128, 4, 64, 65
"""The sizes of the GPT-like model."""


def _gpt(graph: Graph, layers: int) -> Value:
    tokens = graph.input("tokens", ["batch", LENGTH], DType.I64)
    labels = graph.input("labels", ["batch", LENGTH], DType.I64)
    table = graph.param("table", [VOCABULARY, WIDTH])
    x = graph.gather(table, tokens) + graph.param("places", [LENGTH, WIDTH])
    for number in range(layers):
        x = x + _attention(graph, f"block{number}.attention", _norm(graph, f"block{number}.1", x))
        inner = _norm(graph, f"block{number}.2", x)
        inner = _linear(graph, f"block{number}.up", inner, WIDTH, 4 * WIDTH)
        inner = graph.unary(UnaryOp.GELU, inner)
        x = x + _linear(graph, f"block{number}.down", inner, 4 * WIDTH, WIDTH)
    logits = _norm(graph, "last", x) @ table.transpose()
    return graph.cross_entropy(logits, labels).mean()


def _norm(graph: Graph, name: str, x: Value) -> Value:
    gain, bias = graph.param(f"{name}.gain", [WIDTH]), graph.param(f"{name}.bias", [WIDTH])
    return graph.layer_norm(x, gain, bias)


def _attention(graph: Graph, name: str, x: Value) -> Value:
    depth = WIDTH // HEADS
    whole = _linear(graph, f"{name}.in", x, WIDTH, 3 * WIDTH)
    parts = whole.reshape("batch", LENGTH, 3, HEADS, depth).transpose(2, 0, 3, 1, 4)
    queries, keys, values = (parts[number] for number in range(3))
    later = np.triu(np.full((LENGTH, LENGTH), -np.inf, np.float32), 1)
    scores = (queries @ keys.transpose(0, 1, 3, 2)) * depth**-0.5 + graph.constant(later)
    mixed = (graph.softmax(scores, -1) @ values).transpose(0, 2, 1, 3)
    return _linear(graph, f"{name}.out", mixed.reshape("batch", LENGTH, WIDTH), WIDTH, WIDTH)


def _gpt_inputs(rng: np.random.Generator, batch: int) -> Arrays:
    text = rng.integers(0, VOCABULARY, (batch, LENGTH + 1))
    return {"tokens": text[:, :-1].copy(), "labels": text[:, 1:].copy()}


def gpt_like(layers: int) -> Model:
    """The GPT-like model, of any depth."""
    about = f"GPT-like, {layers} layers of {WIDTH}, batch 8 x {LENGTH}"
    return Model(about, 8, partial(_gpt, layers=layers), _gpt_inputs)


MODELS: dict[str, Model] = {
    "A": Model("linear regression, 4x3 @ 3x1", 4, _regression, _regression_inputs),
    "B": Model("MLP 784-512-256-10, batch 64", 64, _mlp, _digits(784)),
    "C": Model("CNN 28x28, two convolutions, batch 32", 32, _cnn, _digits(28, 28, 1)),
    "D": gpt_like(2),
}
"""The models by their letters."""
