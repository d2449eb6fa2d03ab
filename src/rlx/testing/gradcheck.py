"""Are a graph's gradients right? Central differences in float64, which know no VJP rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlx.autodiff import SEED_INPUT, grad_with_loss
from rlx.backends import Session
from rlx.errors import UsageError
from rlx.ir import DType, Graph


def check_gradients(
    graph: Graph,
    wrt: Sequence[str],
    values: Mapping[str, np.ndarray],
    *,
    step: float = 1e-6,
    tolerance: float = 1e-6,
) -> None:
    """Compare the gradients of `graph` with central differences of its loss.

    Parameters
    ----------
    graph
        Its first output is a loss in F64, without axes.
    wrt
        Names of F64 inputs or parameters, each element of which is moved by `step`.
    values
        An array for each input and parameter. Choose points at which the loss is smooth.
    tolerance
        How far a gradient may be off, as a share of one plus its size.

    Raises
    ------
    AssertionError
        A gradient is off; the message has the name, the element and both numbers.
    """
    for name in wrt:
        if graph[name].dtype is not DType.F64:
            raise UsageError(f"{name!r} is {graph[name].dtype}; differences need F64")
    derived = grad_with_loss(graph, list(wrt))
    seed = np.ones((), np.float64)
    _, *gradients = _run(derived, {**values, SEED_INPUT: seed})
    for name, gradient in zip(wrt, gradients, strict=False):
        expected = _differences(graph, name, values, step)
        assert gradient.shape == expected.shape, f"{name}: {gradient.shape}, not {expected.shape}"
        error = np.abs(gradient - expected) / (1 + np.abs(expected))
        if not (error <= tolerance).all():
            worst = np.unravel_index(int(np.nanargmax(error)), error.shape)
            place = [int(index) for index in worst]
            raise AssertionError(
                f"d loss / d {name}{place} is {gradient[worst]!r}; "
                f"differences give {expected[worst]!r}"
            )


def _differences(
    graph: Graph, name: str, values: Mapping[str, np.ndarray], step: float
) -> np.ndarray:
    point = np.array(values[name], np.float64)
    result = np.empty_like(point)
    for index in np.ndindex(point.shape):
        sides = []
        for direction in (step, -step):
            moved = point.copy()
            moved[index] += direction
            sides.append(float(_run(graph, {**values, name: moved})[0]))
        result[index] = (sides[0] - sides[1]) / (2 * step)
    return result


def _run(graph: Graph, values: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    executable = Session("cpu").compile(graph)
    for node in graph.params:
        executable.set_param(node.name, values[node.name])
    return executable.run({node.name: values[node.name] for node in graph.inputs})
