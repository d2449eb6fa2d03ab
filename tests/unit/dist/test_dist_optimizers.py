"""The optimisers against their formulas, and in blocks of any size the same bits."""

from types import SimpleNamespace

import numpy as np
import pytest

from rlx.dist import Adam, AdamW, Sgd, optimizers

LR = 0.05
STEPS = 4
LENGTH = 3 * 1000 + 7
CASES = {
    "sgd": (Sgd(), 0.0),
    "momentum": (Sgd(), 0.9),
    "adam": (Adam(), 0.0),
    "adamw": (AdamW(weight_decay=0.3), 0.0),
}


def trained(case, dtype):
    """The parameters after each update, and the state after the last."""
    settings, momentum = CASES[case]
    rng = np.random.default_rng(5)
    params = rng.normal(size=LENGTH).astype(dtype)
    spec = SimpleNamespace(optimizer=settings, momentum=momentum)
    optimizer = optimizers.optimizer_for(spec, params)
    after = []
    for _ in range(STEPS):
        optimizer.step(params, rng.normal(size=LENGTH).astype(dtype), LR)
        after.append(params.copy())
    return after, optimizer.state()


def by_formula(case):
    """The same in F64, as the papers of the optimisers have it."""
    settings, momentum = CASES[case]
    rng = np.random.default_rng(5)
    params = rng.normal(size=LENGTH)
    velocity, mean, square = (np.zeros(LENGTH) for _ in range(3))
    after = []
    for step in range(1, STEPS + 1):
        gradient = rng.normal(size=LENGTH)
        if isinstance(settings, Sgd):
            velocity = momentum * velocity + gradient
            params = params - LR * velocity
        else:
            decay = settings.weight_decay if isinstance(settings, AdamW) else 0.0
            mean = settings.beta1 * mean + (1 - settings.beta1) * gradient
            square = settings.beta2 * square + (1 - settings.beta2) * gradient**2
            spread = np.sqrt(square / (1 - settings.beta2**step)) + settings.epsilon
            params = params * (1 - LR * decay) - LR * mean / (1 - settings.beta1**step) / spread
        after.append(params)
    return after


@pytest.mark.parametrize("case", CASES)
def test_each_update_is_the_formulas(case):
    after, _ = trained(case, np.float64)
    for found, expected in zip(after, by_formula(case), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", CASES)
def test_no_block_size_changes_a_bit(case, dtype, monkeypatch):
    whole, state = trained(case, dtype)
    for block_bytes in (8, 1000 * np.dtype(dtype).itemsize, 5000):
        monkeypatch.setattr(optimizers, "BLOCK_BYTES", block_bytes)
        after, kept = trained(case, dtype)
        assert [one.tobytes() for one in after] == [one.tobytes() for one in whole]
        assert {name: one.tobytes() for name, one in kept.items()} == {
            name: one.tobytes() for name, one in state.items()
        }
