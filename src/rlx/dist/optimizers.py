"""The optimisers, on flat vectors: a few numpy calls a step, and no allocation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from rlx.dist.spec import Adam, AdamW, Sgd, TrainSpec


class FlatOptimizer(ABC):
    """Changes a flat parameter vector in place by a flat gradient of the same length and dtype."""

    @abstractmethod
    def step(self, params: np.ndarray, gradient: np.ndarray, lr: float) -> None:
        """One update. `gradient` is scratch afterwards."""

    @abstractmethod
    def state(self) -> Mapping[str, np.ndarray]:
        """The vectors that the next update depends on besides the parameters."""


class SgdStep(FlatOptimizer):
    """p -= lr * v, with v = momentum * v + gradient; without momentum v is the gradient."""

    def __init__(self, params: np.ndarray, momentum: float) -> None:
        self._momentum = momentum
        self._velocity = np.zeros_like(params) if momentum else None

    def step(self, params: np.ndarray, gradient: np.ndarray, lr: float) -> None:
        if self._velocity is not None:
            np.multiply(self._velocity, self._momentum, out=self._velocity)
            np.add(self._velocity, gradient, out=self._velocity)
            np.multiply(self._velocity, lr, out=gradient)
        else:
            np.multiply(gradient, lr, out=gradient)
        np.subtract(params, gradient, out=params)

    def state(self) -> Mapping[str, np.ndarray]:
        return {} if self._velocity is None else {"velocity": self._velocity}


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
        self._scratch = np.empty_like(params)
        self._powers = np.ones(2, np.float64)

    def step(self, params: np.ndarray, gradient: np.ndarray, lr: float) -> None:
        self._powers *= (self._beta1, self._beta2)
        first, second = (float(1 - power) for power in self._powers)
        scratch = self._scratch
        if self._decay:
            np.multiply(params, 1 - lr * self._decay, out=params)
        np.multiply(self._mean, self._beta1, out=self._mean)
        np.multiply(gradient, 1 - self._beta1, out=scratch)
        np.add(self._mean, scratch, out=self._mean)
        np.multiply(self._square, self._beta2, out=self._square)
        np.multiply(gradient, gradient, out=scratch)
        np.multiply(scratch, 1 - self._beta2, out=scratch)
        np.add(self._square, scratch, out=self._square)
        np.divide(self._square, second, out=scratch)
        np.sqrt(scratch, out=scratch)
        np.add(scratch, self._epsilon, out=scratch)
        np.divide(self._mean, scratch, out=gradient)
        np.multiply(gradient, lr / first, out=gradient)
        np.subtract(params, gradient, out=params)

    def state(self) -> Mapping[str, np.ndarray]:
        return {"mean": self._mean, "square": self._square, "powers": self._powers}


def optimizer_for(spec: TrainSpec, params: np.ndarray) -> FlatOptimizer:
    """The optimiser that `spec` names, with fresh state for `params`."""
    if isinstance(spec.optimizer, Sgd):
        return SgdStep(params, spec.momentum)
    return AdamStep(params, spec.optimizer)
