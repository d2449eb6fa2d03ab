"""Gradients where a number does not fit, a value changes in steps, or a shape is unusual."""

from __future__ import annotations

import numpy as np
import pytest

from rlx.autodiff import grad
from rlx.backends import Session
from rlx.errors import NoGradientError
from rlx.ir import DType, Graph
from rlx.testing.gradcheck import check_gradients

pytestmark = pytest.mark.usefixtures("each_backend")


def gradient_of(build, x, dims, dtype=DType.F32, seed=1.0):
    graph = Graph("corner")
    value = graph.input("x", dims, dtype)
    graph.set_outputs([build(graph, value)])
    derived = grad(graph, ["x"])
    one = np.array(seed, derived["d_output"].dtype.value)
    return Session("cpu").compile(derived).run({"x": x, "d_output": one})[0]


@pytest.mark.parametrize("rows", [63, 64, 100])
def test_the_mean_of_many_halves_has_a_gradient(rows):
    """A count over 65,504 is infinite in F16."""
    x = np.ones((rows, 1024), np.float16)
    got = gradient_of(lambda graph, a: a.mean(), x, ["batch", 1024], DType.F16, seed=1024.0)
    assert np.allclose(got.astype(float), 1 / rows, rtol=1e-3)


def test_many_equal_halves_share_the_gradient_of_their_maximum():
    x = np.ones(70_000, np.float16)
    got = gradient_of(lambda graph, a: a.max(), x, ["batch"], DType.F16, seed=1024.0)
    assert np.isclose(got.astype(float).sum(), 1024, rtol=1e-2)


@pytest.mark.parametrize("steps", [DType.I32, DType.BOOL])
def test_no_gradient_flows_through_a_cast_to_steps(steps):
    x = np.array([1.5, 2.5, 3.5, 4.5], np.float32)
    with pytest.raises(NoGradientError, match="casts to integers"):
        gradient_of(lambda graph, a: a.cast(steps).mean(), x, ["batch"])

    def both(graph, a):
        return a.mean() + a.cast(steps).mean().cast(DType.F32)

    assert gradient_of(both, x, ["batch"]).tolist() == [0.25] * 4


def test_integers_between_the_loss_and_the_parameter_are_passed_over():
    def build(graph, a):
        doubled = a.cast(DType.I32) * 2
        return a.mean() + doubled.mean().cast(DType.F32)

    x = np.ones(4, np.float32)
    assert gradient_of(build, x, ["batch"]).tolist() == [0.25] * 4


def test_a_product_over_nothing():
    graph = Graph("empty")
    x = graph.input("x", ["batch", 2, 0])
    w = graph.param("w", [0, 3])
    graph.set_outputs([(x @ w).sum()])
    assert grad(graph, ["w"]).value(grad(graph, ["w"]).outputs[0]).shape.dims == (0, 3)


def test_a_shared_matrix_with_a_computed_dimension():
    graph = Graph("computed")
    x = graph.input("x", ["batch", 2, "n"], DType.F64)
    y = graph.input("y", ["batch", 2, 1], DType.F64)
    w = graph.input("w", ["n", 3], DType.F64)
    v = graph.input("v", [1, 3], DType.F64)
    joined = graph.concat([x, y], 2) @ graph.concat([w, v], 0)
    graph.set_outputs([(joined * joined).sum()])
    executable = Session("cpu").compile(grad(graph, ["w"]))
    arrays = {
        "x": np.ones((5, 2, 4)),
        "y": np.ones((5, 2, 1)),
        "w": np.ones((4, 3)),
        "v": np.ones((1, 3)),
        "d_output": np.ones(()),
    }
    assert executable.run(arrays)[0].tolist() == [[100.0] * 3] * 4


def slopes(build, arrays, dtype=DType.F64):
    """The gradients of the sum of what `build` makes, times numbers that all differ."""
    graph = Graph("slopes")
    values = []
    for name, array in arrays.items():
        own = DType.I64 if array.dtype == np.int64 else dtype
        values.append(graph.input(name, array.shape, own))
    made = build(graph, *values)
    graph.set_outputs([(made * made).sum()])
    names = [name for name, array in arrays.items() if array.dtype != np.int64]
    check_gradients(graph, names, arrays)


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (0,)], ids=str)
def test_a_pick_hands_its_gradient_to_what_it_picked(shape):
    rng = np.random.default_rng(1)
    x, rows = rng.uniform(-2, 2, (*shape, 5)), np.asarray(rng.integers(0, 5, shape))
    slopes(lambda graph, a, i: graph.pick(a, i), {"a": x, "i": rows})
    graph = Graph("picked")
    a, i = graph.input("a", x.shape, DType.F64), graph.input("i", shape, DType.I64)
    graph.set_outputs([graph.pick(a, i).sum()])
    one = np.array(1.0)
    (found,) = Session().compile(grad(graph, ["a"])).run({"a": x, "i": rows, "d_output": one})
    np.testing.assert_array_equal(found, np.arange(5) == rows[..., None])


@pytest.mark.parametrize("shape", [(5,), (3, 1), (2, 3, 4), (0, 3), (2, 0)], ids=str)
@pytest.mark.parametrize("epsilon", [1e-2, 1.0])
def test_the_gradient_of_a_normalisation(shape, epsilon):
    x, weights = np.random.default_rng(2).uniform(-2, 2, (2, *shape))

    def build(graph, a, w):
        return graph.normalize(a, epsilon) * w

    slopes(build, {"a": x, "w": weights})


def test_a_normalisation_of_equal_numbers_has_a_finite_gradient():
    x = np.full((2, 4), 3.0, np.float32)
    weights = np.array([1.0, 0, 0, 0], np.float32)

    def build(graph, a):
        return (graph.layer_norm(a) * graph.constant(weights)).sum()

    found = gradient_of(build, x, [2, 4])
    expected = np.array([0.75, -0.25, -0.25, -0.25]) / np.sqrt(1e-5)
    np.testing.assert_allclose(found, [expected, expected], rtol=1e-5)
