"""Training and evaluation by jax: the same bits on all ranks, and numpy's within a tolerance."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jax")

from training_support import linear_graph, linear_spec, rows_of, train_on

from rlx import job
from rlx.dist import DataRef, EvaluationSpec, evaluate, file_resolver, run_train
from rlx.errors import DisagreementError, UsageError
from rlx.ir import DType, Graph
from rlx.testing import run_ranks

DIGITS = Path(__file__).parents[3] / "examples" / "digits" / "job.toml"
TOLERANCE = 1e-4
"""Of the largest parameter after an epoch of digits: see "The jax backend" in docs/numerics.md."""


def digits(backend, world_size, lanes=1):
    """Each rank's figures and parameters after one epoch of the example."""
    options = ["job.epochs=1", f"job.backend={backend}", f"job.lanes={lanes}"]
    spec = job.inspect_job(job.load_config(DIGITS, {}, options)).spec
    resolve = file_resolver([DIGITS.parent])
    return run_ranks(world_size, lambda group: run_train(spec, group, resolve=resolve))


def flat(params):
    return np.concatenate([value.reshape(-1) for value in params.values()])


def test_digits_by_jax_are_numpys_within_the_tolerance_and_one_rank_is_two():
    (_, expected), *_ = digits("numpy", 1)
    (alone, one), *_ = digits("jax", 1)
    (_, first), (_, second) = digits("jax", 2)
    (_, laned), *_ = digits("jax", 1, lanes=2)
    for other in (first, second, laned):
        assert flat(other).tobytes() == flat(one).tobytes()
    apart = np.abs(flat(one) - flat(expected)).max() / np.abs(flat(expected)).max()
    assert 0 < apart < TOLERANCE
    assert alone.last_loss < alone.first_loss / 2


def test_lanes_compile_a_graph_once(monkeypatch):
    from rlx.backends.jax import program

    made = []
    original = program.Program.__init__
    monkeypatch.setattr(
        program.Program,
        "__init__",
        lambda self, *args: (made.append(args[1]), original(self, *args))[-1],
    )
    run_train(linear_spec(lanes=3, backend="jax"), resolve=rows_of(48).__getitem__)
    assert made == [{"batch": 4}]


@pytest.mark.parametrize("dtype", [DType.F16, DType.F64], ids=str)
def test_parameters_of_any_float_are_trained(dtype):
    rows = {
        name: value.astype(np.float16 if dtype is DType.F16 else np.float64)
        for name, value in rows_of(50).items()
    }
    trained = [
        train_on(1, linear_spec(graph=linear_graph(dtype), backend=backend), rows)[0][1]
        for backend in ("numpy", "jax")
    ]
    for name, value in trained[0].items():
        assert trained[1][name].dtype == value.dtype
        rtol = 1e-2 if dtype is DType.F16 else 1e-12
        np.testing.assert_allclose(trained[1][name], value, rtol=rtol, atol=rtol)


def evaluation(backend):
    graph = Graph("errors")
    x, y, w = graph.input("x", ["n", 3]), graph.input("y", ["n", 1]), graph.param("w", [3, 1])
    error = graph.dropout(x, 0.5) @ w - y
    graph.set_outputs([(error * error).mean(), abs(error).reshape(-1)])
    data = [DataRef("x", "x", 3), DataRef("y", "y", 1)]
    return EvaluationSpec(graph, ["square", "distance"], data, batch=4, backend=backend)


def test_an_evaluation_is_numpys_and_the_same_on_every_rank():
    rows, params = rows_of(30), {"w": np.ones((3, 1), np.float32)}
    figures = {
        backend: run_ranks(
            2,
            lambda group, backend=backend: evaluate(
                evaluation(backend), params, group, resolve=rows.__getitem__
            ),
        )
        for backend in ("numpy", "jax")
    }
    assert figures["jax"][0] == figures["jax"][1]
    assert figures["jax"][0] == pytest.approx(figures["numpy"][0], rel=1e-6)


def test_an_evaluation_says_what_computes_it():
    assert EvaluationSpec.from_bytes(evaluation("jax").to_bytes()).backend == "jax"
    with pytest.raises(UsageError, match="no backend 'torch'; known: numpy, jax"):
        evaluation("torch")


def test_ranks_with_other_backends_refuse_each_other():
    with pytest.raises(DisagreementError, match="backend"):
        train_on(2, lambda rank: linear_spec(backend=("numpy", "jax")[rank]), rows_of(48))
