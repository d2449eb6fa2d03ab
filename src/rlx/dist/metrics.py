"""What a run says of itself: while it goes on, and at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np


@dataclass(frozen=True, slots=True)
class Progress:
    """One finished step, as an observer sees it.

    `loss` is the step's mean loss over all ranks. A step whose weights sum to zero is empty: it
    changed nothing, and its loss is NaN. Epochs and steps count from 1.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    epoch_loss: float
    lr: float
    samples: int
    is_empty: bool = False

    @property
    def ends_epoch(self) -> bool:
        """Whether this was the last step of its epoch."""
        return self.step == self.steps


Observer: TypeAlias = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class TrainMetrics:
    """A run's figures.

    Attributes
    ----------
    samples
        Rows seen by all ranks, over all epochs.
    first_loss, last_loss
        The mean loss of the first and the last step that was not empty.
    losses
        The mean loss of each epoch over its rows.
    wall_s, compute_s, comm_s
        Seconds of this rank: in all, in its own microbatches, and in the gradient collective.
    empty_steps
        Steps whose weights summed to zero, which changed nothing.
    """

    samples: int
    first_loss: float
    last_loss: float
    losses: tuple[float, ...]
    wall_s: float
    compute_s: float
    comm_s: float
    device: str
    lanes: int
    empty_steps: int = 0


@dataclass(frozen=True, slots=True)
class TrainReport:
    """What a worker knows when it has served a run."""

    rank: int
    metrics: TrainMetrics
    params: Mapping[str, np.ndarray]


@dataclass(slots=True)
class Tally:
    """What `TrainMetrics` needs to know of the steps, gathered one by one."""

    samples: int = 0
    first_loss: float = float("nan")
    last_loss: float = float("nan")
    losses: list[float] = field(default_factory=list)
    empty_steps: int = 0
    _sum: float = 0.0
    _weight: float = 0.0

    def add(self, loss: float, weight: float, rows: int) -> None:
        """Count one step; one of weight zero is empty and has no loss."""
        self.samples += rows
        if not weight:
            self.empty_steps += 1
            return
        if not self.losses and not self._weight:
            self.first_loss = loss
        self.last_loss = loss
        self._sum += loss * weight
        self._weight += weight

    @property
    def epoch_loss(self) -> float:
        """The mean loss of the present epoch so far; NaN before its first step."""
        return self._sum / self._weight if self._weight else float("nan")

    def end_epoch(self) -> None:
        """Keep the epoch's mean loss, and begin the next one."""
        self.losses.append(self.epoch_loss)
        self._sum = self._weight = 0.0
