"""The measured models: they learn, both sides are the same model, and a wrong one is found."""

import numpy as np
import pytest

from rlx.bench import steps
from rlx.bench.models import MODELS


def started(letter, batch=None):
    model, rng = MODELS[letter], np.random.default_rng(3)
    return model.params(rng), model.inputs(rng, batch or min(model.batch, 4))


@pytest.mark.parametrize("letter", MODELS)
def test_a_step_lowers_the_loss_of_its_batch(letter):
    step = steps.rlx_step(MODELS[letter], *started(letter))
    losses = [step() for _ in range(12)]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("letter", MODELS)
def test_the_model_in_torch_is_the_same_model(letter):
    pytest.importorskip("torch")
    from rlx.bench.torch_models import torch_step

    params, inputs = started(letter)
    own, other = (
        steps.rlx_step(MODELS[letter], params, inputs),
        torch_step(letter, params, inputs, steps.LR),
    )
    assert np.allclose([own() for _ in range(5)], [other() for _ in range(5)], rtol=1e-4)


def test_a_contender_that_computes_something_else_is_an_error():
    step = steps.rlx_step(MODELS["A"], *started("A"))
    with pytest.raises(ArithmeticError, match="model A is not the same model: other"):
        steps._compare("A", {"rlx": step, "other": lambda: 1e6})


def test_rows_have_every_turn_and_notes_say_what_was_measured():
    found = steps.measure_steps(steps.cases(["A"], [], []), seconds=0.1)
    assert found.rows[0].name == "A: linear regression, 4x3 @ 3x1, rlx"
    assert all(len(row.seconds) >= 3 and min(row.seconds) > 0 for row in found.rows)
    assert any("torch" in note for note in found.notes)


def test_cases_are_each_model_at_each_batch_and_d_at_each_depth():
    found = steps.cases(["A", "D"], [4, 7], [1, 3])
    assert [(case.letter, case.batch, case.shown) for case in found] == [
        ("A", 4, "A: linear regression, 4x3 @ 3x1"),
        ("A", 7, "A: linear regression, 4x3 @ 3x1, batch 7"),
        ("D", 4, "D: GPT-like, 1 layers of 128, batch 4"),
        ("D", 7, "D: GPT-like, 1 layers of 128, batch 7"),
        ("D", 4, "D: GPT-like, 3 layers of 128, batch 4"),
        ("D", 7, "D: GPT-like, 3 layers of 128, batch 7"),
    ]
    shallow, deep = (len(steps.cases(["D"], [], [n])[0].model.graph()[1]) for n in (1, 3))
    assert deep - 4 == 3 * (shallow - 4)  # the table, the places and the last norm are there once
