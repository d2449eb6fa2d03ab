"""The optimisers, on flat vectors: a few numpy calls a block, and no allocation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final

import numpy as np

from rlx.dist.spec import Adam, AdamW, Sgd, TrainSpec

BLOCK_BYTES: Final = 256 * 1024
"""Of each vector, what is changed at a time: all calls of a block then find it in the cache. Every
number is changed by itself, so it is in no bit; docs/performance.md has what it is worth."""


class FlatOptimizer(ABC):
    """Changes a flat parameter vector in place by a flat gradient of the same length and dtype."""

    def step(self, params: np.ndarray, gradient: np.ndarray, lr: float) -> None:
        """One update. `gradient` is scratch afterwards."""
        self._begin(lr)
        count = _block_length(params)
        for start in range(0, len(params), count):
            block = slice(start, start + count)
            self._update(params[block], gradient[block], block)

    @abstractmethod
    def state(self) -> Mapping[str, np.ndarray]:
        """The vectors that the next update depends on besides the parameters."""

    @abstractmethod
    def _begin(self, lr: float) -> None:
        """Make ready what all blocks of one update share."""

    @abstractmethod
    def _update(self, params: np.ndarray, gradient: np.ndarray, block: slice) -> None:
        """Change one block of the parameters, which `block` is within the whole."""


class SgdStep(FlatOptimizer):
    """p -= lr * v, with v = momentum * v + gradient; without momentum v is the gradient."""

    def __init__(self, params: np.ndarray, momentum: float) -> None:
        self._momentum = momentum
        self._velocity = np.zeros_like(params) if momentum else None
        self._lr = 0.0

    def state(self) -> Mapping[str, np.ndarray]:
        return {} if self._velocity is None else {"velocity": self._velocity}

    def _begin(self, lr: float) -> None:
        self._lr = lr

    def _update(self, params: np.ndarray, gradient: np.ndarray, block: slice) -> None:
        if self._velocity is not None:
            velocity = self._velocity[block]
            np.multiply(velocity, self._momentum, out=velocity)
            np.add(velocity, gradient, out=velocity)
            np.multiply(velocity, self._lr, out=gradient)
        else:
            np.multiply(gradient, self._lr, out=gradient)
        np.subtract(params, gradient, out=params)


class AdamStep(FlatOptimizer):
    """Adam, and AdamW where `weight_decay` is set.

    The powers beta**t are running products, so that they depend on no library's `pow`.
    """

    def __init__(self, params: np.ndarray, settings: Adam | AdamW) -> None:
        self._beta1 = settings.beta1
        self._beta2 = settings.beta2
        self._epsilon = settings.epsilon
        self._decay = settings.weight_decay if isinstance(settings, AdamW) else 0.0
        self._mean = np.zeros_like(params)
        self._square = np.zeros_like(params)
        self._scratch = np.empty_like(params[: _block_length(params)])
        self._powers = np.ones(2, np.float64)
        self._kept, self._rate, self._spread = 1.0, 0.0, 1.0

    def state(self) -> Mapping[str, np.ndarray]:
        return {"mean": self._mean, "square": self._square, "powers": self._powers}

    def _begin(self, lr: float) -> None:
        self._powers *= (self._beta1, self._beta2)
        first, self._spread = (float(1 - power) for power in self._powers)
        self._kept, self._rate = 1 - lr * self._decay, lr / first

    def _update(self, params: np.ndarray, gradient: np.ndarray, block: slice) -> None:
        mean, square = self._mean[block], self._square[block]
        scratch = self._scratch[: len(params)]
        if self._decay:
            np.multiply(params, self._kept, out=params)
        np.multiply(mean, self._beta1, out=mean)
        np.multiply(gradient, 1 - self._beta1, out=scratch)
        np.add(mean, scratch, out=mean)
        np.multiply(square, self._beta2, out=square)
        np.multiply(gradient, gradient, out=scratch)
        np.multiply(scratch, 1 - self._beta2, out=scratch)
        np.add(square, scratch, out=square)
        np.divide(square, self._spread, out=scratch)
        np.sqrt(scratch, out=scratch)
        np.add(scratch, self._epsilon, out=scratch)
        np.divide(mean, scratch, out=gradient)
        np.multiply(gradient, self._rate, out=gradient)
        np.subtract(params, gradient, out=params)


def _block_length(vector: np.ndarray) -> int:
    return BLOCK_BYTES // vector.itemsize


def optimizer_for(spec: TrainSpec, params: np.ndarray) -> FlatOptimizer:
    """The optimiser that `spec` names, with fresh state for `params`."""
    if isinstance(spec.optimizer, Sgd):
        return SgdStep(params, spec.momentum)
    return AdamStep(params, spec.optimizer)
