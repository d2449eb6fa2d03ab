"""Whole models with their gradients, by jax and by numpy."""

import numpy as np
import pytest

pytest.importorskip("jax")

from rlx.backends import Session
from rlx.bench.models import MODELS

TOLERANCE = 2e-5
"""Of the largest element of each gradient: see "The jax backend" in docs/numerics.md."""


def outputs(backend, letter, seed=1):
    """The loss, and each gradient by its parameter's name."""
    model = MODELS[letter]
    graph, names = model.graph()
    rng = np.random.default_rng(seed)
    executable = Session(backend=backend).compile(graph)
    for name, value in model.params(rng).items():
        executable.set_param(name, value)
    inputs = {**model.inputs(rng, model.batch), "d_output": np.float32(1)}
    return dict(zip(("loss", *names), executable.run(inputs), strict=True))


def apart(found, expected):
    """The largest difference, by the largest element."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("letter", MODELS)
def test_loss_and_gradients_are_numpys_within_the_tolerance(letter):
    found, expected = outputs("jax", letter), outputs("numpy", letter)
    assert max(apart(found[name], expected[name]) for name in expected) < TOLERANCE


def test_other_inputs_are_further_apart_than_the_tolerance():
    found, expected = outputs("jax", "B", seed=2), outputs("numpy", "B")
    assert min(apart(found[name], expected[name]) for name in expected) > 100 * TOLERANCE
