"""Small jobs for the tests of training: a linear model with rows made here."""

from __future__ import annotations

import numpy as np

from rlx.autodiff import grad_with_loss
from rlx.dist import DataRef, TrainSpec, WeightRef, run_train
from rlx.ir import DType, Graph
from rlx.testing import run_ranks


def rows_of(count: int, features: int = 3, dtype=np.float32) -> dict[str, np.ndarray]:
    """x, and y = x @ w + noise, the same for the same count."""
    generator = np.random.Generator(np.random.Philox(count))
    x = generator.uniform(-1, 1, (count, features)).astype(dtype)
    y = (x.sum(1, keepdims=True) + generator.uniform(-0.1, 0.1, (count, 1))).astype(dtype)
    return {"x": x, "y": y}


def linear_graph(dtype: DType = DType.F32, features: int = 3) -> Graph:
    """The mean square of x @ w + b - y, with its gradients."""
    graph = Graph("linear")
    x = graph.input("x", ["batch", features], dtype)
    y = graph.input("y", ["batch", 1], dtype)
    w = graph.param("w", [features, 1], dtype)
    b = graph.param("b", [1], dtype)
    error = x @ w + b - y
    graph.set_outputs([(error * error).mean()])
    return grad_with_loss(graph, ["w", "b"])


def linear_spec(**changes) -> TrainSpec:
    """Three epochs over x and y by the resolver's names "x" and "y"."""
    fields = {
        "graph": linear_graph(),
        "params": [WeightRef("w", "init:uniform?seed=3"), WeightRef("b", "init:zeros")],
        "data": [DataRef("x", "x", 3), DataRef("y", "y", 1)],
        "lr_per_epoch": [0.1, 0.1, 0.05],
        "batch": 4,
        "global_batch": 16,
        "shuffle_seed": 7,
    }
    return TrainSpec(**{**fields, **changes})


def sharded(spec_changes, starts_and_lengths, rank) -> TrainSpec:
    """The spec of the rank that owns one of the shards."""
    start, length = starts_and_lengths[rank]
    data = [DataRef("x", "x", 3, start, length), DataRef("y", "y", 1, start, length)]
    return linear_spec(data=data, global_batch=None, shuffle_seed=None, **spec_changes)


def train_on(world_size, spec_for, rows, transport="memory", **options):
    """Train on threads; [(metrics, params)] in rank order. `spec_for(rank)` or one spec."""
    choose = spec_for if callable(spec_for) else lambda rank: spec_for

    def body(group):
        resolve = rows if callable(rows) else rows.__getitem__
        return run_train(choose(group.rank), group, resolve=resolve, **options)

    return run_ranks(world_size, body, transport=transport)
