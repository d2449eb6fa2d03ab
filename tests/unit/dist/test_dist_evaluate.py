"""An evaluation counts each row once, and its ranks agree on what they evaluate."""

from __future__ import annotations

import numpy as np
import pytest
from training_support import rows_of

from rlx.dist import DataRef, EvaluationSpec, evaluate
from rlx.errors import DataError, DisagreementError, UsageError
from rlx.ir import DType, Graph
from rlx.testing import run_ranks


def accuracy_graph() -> Graph:
    """1 for a row that is classified right, as a number a row."""
    graph = Graph("accuracy")
    guess = graph.input("guess", ["batch"], DType.I64)
    label = graph.input("label", ["batch"], DType.I64)
    graph.set_outputs([guess.equal(label).cast(DType.F64)])
    return graph


def mean_graph() -> Graph:
    """The mean of x + shift, as a number a batch and as a number a row."""
    graph = Graph("mean")
    x = graph.input("x", ["batch", 1], DType.F64)
    shift = graph.param("shift", [1], DType.F64)
    moved = (x + shift).reshape("batch")
    graph.set_outputs([moved.mean(), moved])
    return graph


def mean_spec(**changes) -> EvaluationSpec:
    fields = {
        "graph": mean_graph(),
        "names": ["batchwise", "rowwise"],
        "data": [DataRef("x", "x", 1)],
        "batch": 4,
    }
    return EvaluationSpec(**{**fields, **changes})


SHIFT = {"shift": np.array([1.0])}


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_accuracy_of_five_rows_of_which_one_is_right(world_size):
    """Padding the last microbatches with a repeated row would give 1/3."""
    rows = {"guess": np.array([1, 0, 0, 0, 0]), "label": np.array([1, 1, 1, 1, 1])}
    data = [DataRef("guess", "guess", 1), DataRef("label", "label", 1)]
    spec = EvaluationSpec(graph=accuracy_graph(), names=["accuracy"], data=data, batch=2)

    def body(group):
        return evaluate(spec, {}, group, resolve=rows.__getitem__)

    assert run_ranks(world_size, body, transport="memory") == [{"accuracy": 0.2}] * world_size


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_figures_do_not_depend_on_the_number_of_ranks(world_size):
    rows = {"x": rows_of(19)["y"].astype(np.float64)}
    alone = evaluate(mean_spec(), SHIFT, resolve=rows.__getitem__)

    def body(group):
        return evaluate(mean_spec(), SHIFT, group, resolve=rows.__getitem__)

    assert run_ranks(world_size, body, transport="memory") == [alone] * world_size
    assert np.isclose(alone["rowwise"], rows["x"].mean() + 1)
    assert np.isclose(alone["batchwise"], alone["rowwise"])


@pytest.mark.parametrize(
    ("fact", "change"),
    [
        ("number of rows", lambda rank: (mean_spec(), SHIFT, 19 - rank)),
        ("parameters", lambda rank: (mean_spec(), {"shift": np.array([float(rank)])}, 19)),
        ("batch", lambda rank: (mean_spec(batch=4 + rank), SHIFT, 19)),
    ],
)
def test_ranks_that_evaluate_other_things_all_refuse(fact, change):
    def body(group):
        spec, params, count = change(group.rank)
        with pytest.raises(DisagreementError, match=fact):
            evaluate(spec, params, group, resolve=lambda uri: np.ones((count, 1)))

    run_ranks(2, body, transport="memory")


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": 2.5},
        {"batch": True},
        {"batch": "3"},
        {"batch": 0},
        {"push_data": "no"},
        {"names": [3, 4]},
        {"names": "ab"},
        {"names": ["one"]},
        {"names": ["same", "same"]},
        {"data": ["x"]},
        {"data": []},
        {"data": [DataRef("x", "x", 1, 0, 4)]},
        {"graph": None},
    ],
)
def test_a_wrong_spec_is_refused_when_it_is_made(changes):
    with pytest.raises(UsageError):
        mean_spec(**changes)


def test_bytes_come_back_as_the_same_spec():
    data = mean_spec().to_bytes()
    assert EvaluationSpec.from_bytes(data).to_bytes() == data


def test_a_parameter_that_was_not_trained_is_named():
    with pytest.raises(UsageError, match="'shift' is not a trained one"):
        evaluate(mean_spec(), {}, resolve=lambda uri: np.ones((4, 1)))


@pytest.mark.parametrize("content", [[1.0], None, "text", np.ma.masked_array([[1.0]])])
def test_a_resolver_that_gives_something_else_is_named_with_its_uri(content):
    with pytest.raises(DataError, match="the resolver gives a .* for x"):
        evaluate(mean_spec(), SHIFT, resolve=lambda uri: content)
