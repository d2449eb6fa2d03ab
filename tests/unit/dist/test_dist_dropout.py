"""Dropout in a run: the same units at every world size, others at every step and microbatch."""

import numpy as np
import pytest
from training_support import rows_of, train_on

from rlx.autodiff import grad_with_loss
from rlx.dist import DataRef, EvaluationSpec, TrainSpec, WeightRef, evaluate, params_digest, run_train
from rlx.errors import UsageError
from rlx.ir import DROPOUT_KEY, Graph


def dropout_graph(rate=0.5) -> Graph:
    graph = Graph("dropout")
    x, y = graph.input("x", ["batch", 3]), graph.input("y", ["batch", 1])
    hidden = graph.dropout(x @ graph.param("w", [3, 8]), rate)
    error = hidden @ graph.param("v", [8, 1]) - y
    graph.set_outputs([(error * error).mean()])
    return graph


def spec(rate=0.5, **changes) -> TrainSpec:
    fields = {
        "graph": grad_with_loss(dropout_graph(rate), ["w", "v"]),
        "params": [WeightRef("w", "init:uniform?seed=3"), WeightRef("v", "init:uniform?seed=4")],
        "data": [DataRef("x", "x", 3), DataRef("y", "y", 1)],
        "lr_per_epoch": [0.1, 0.1],
        "batch": 4,
        "global_batch": 16,
        "shuffle_seed": 7,
        "dropout_seed": 11,
    }
    return TrainSpec(**{**fields, **changes})


def digest(spec, rows):
    return params_digest(run_train(spec, resolve=rows.__getitem__)[1])


@pytest.mark.parametrize("count", [16, 50])
def test_every_world_size_and_lane_count_drops_the_same_units(count):
    rows = rows_of(count)
    alone = digest(spec(), rows)
    for world_size in (1, 2, 3, 4):
        for lanes in (1, 2):
            results = train_on(world_size, spec(lanes=lanes), rows)
            assert {params_digest(params) for _, params in results} == {alone}


def test_the_seed_and_the_rate_change_the_run():
    rows = rows_of(50)
    found = {digest(one, rows) for one in (spec(), spec(dropout_seed=12), spec(rate=0.25))}
    assert len(found) == 3


def test_each_microbatch_of_each_step_has_a_key_of_its_own(monkeypatch):
    from rlx.dist import microbatch

    places = []
    leaf = microbatch.Microbatch.leaf

    def spied(self, order, place, out):
        leaf(self, order, place, out)
        (bound,) = {id(one): one for one in self._bound.values()}.values()
        places.append((tuple(place), tuple(bound.inputs[DROPOUT_KEY])))

    monkeypatch.setattr(microbatch.Microbatch, "leaf", spied)
    run_train(spec(), resolve=rows_of(32).__getitem__)
    expected = [(step, leaf) for step in range(4) for leaf in range(4)]
    assert places == [(place, (11, *place)) for place in expected]


def test_an_evaluation_drops_nothing():
    rows = rows_of(20)
    params = {"w": np.ones((3, 8), np.float32), "v": np.ones((8, 1), np.float32)}
    data = [DataRef("x", "x", 3), DataRef("y", "y", 1)]
    found = evaluate(
        EvaluationSpec(dropout_graph(), ["error"], data, 6), params, resolve=rows.__getitem__
    )
    error = rows["x"] @ params["w"] @ params["v"] - rows["y"]
    assert found["error"] == pytest.approx(float((error**2).mean()), rel=1e-5)


def test_the_key_is_no_input_for_rows():
    with pytest.raises(UsageError, match="no input 'dropout_key'"):
        spec(data=[DataRef("x", "x", 3), DataRef("y", "y", 1), DataRef(DROPOUT_KEY, "k", 1)])
