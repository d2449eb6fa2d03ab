"""Which rank reads which rows in which step. Pure: a schedule is a value, tested for every size.

A step is cut into microbatches, the leaves of the canonical sum. Which rows a leaf has, and in
which order the leaves stand, depends on the job alone; only who computes a leaf depends on the
ranks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rlx.errors import DataError
from rlx.group import SumPlan


def epoch_order(rows: int, seed: int | None, epoch: int) -> np.ndarray:
    """The order in which an epoch visits `rows` rows (int64): a function of its arguments alone.

    The rows are sorted by one raw word each of numpy's Philox, keyed by (seed, epoch); equal words,
    should they occur, keep the rows' own order. Without a seed the order is 0, 1, 2, ...
    """
    if seed is None:
        return np.arange(rows, dtype=np.int64)
    words = np.random.Philox(key=np.array([seed, epoch], np.uint64)).random_raw(rows)
    return np.argsort(np.asarray(words, np.uint64), kind="stable").astype(np.int64, copy=False)


@dataclass(frozen=True, slots=True)
class Step:
    """One step: its sum plan, and where each leaf's rows lie in the epoch's order.

    Leaf k has the rows `order[starts[k]:stops[k]]` of the rank that owns it.
    """

    plan: SumPlan
    starts: Sequence[int]
    stops: Sequence[int]

    @property
    def rows(self) -> int:
        """The rows of all leaves together."""
        return sum(self.stops) - sum(self.starts)


class Schedule(ABC):
    """The steps of an epoch; every epoch has the same."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Steps in an epoch."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """Rows that all ranks together use in an epoch: each of them once."""

    @property
    @abstractmethod
    def has_partial_microbatch(self) -> bool:
        """Whether some microbatch has fewer rows than the others."""

    @abstractmethod
    def step(self, number: int) -> Step:
        """Step `number` of an epoch, from 0."""


class SharedRows(Schedule):
    """One set of rows, `step_rows` of them a step, dealt to the ranks in microbatches of `batch`.

    The last step, and the last microbatch of a step, may be smaller; none is left out.
    """

    def __init__(self, rows: int, batch: int, step_rows: int, world_size: int) -> None:
        if rows < 1:
            raise DataError("there are no rows to train on")
        self._rows = rows
        self._batch = batch
        self._step_rows = step_rows
        self._world_size = world_size

    @property
    def steps(self) -> int:
        return -(-self._rows // self._step_rows)

    @property
    def rows(self) -> int:
        return self._rows

    @property
    def has_partial_microbatch(self) -> bool:
        full_steps = self._rows // self._step_rows
        cut = full_steps > 0 and self._step_rows % self._batch > 0
        return cut or (self._rows % self._step_rows) % self._batch > 0

    def step(self, number: int) -> Step:
        first = number * self._step_rows
        last = min(first + self._step_rows, self._rows)
        starts = range(first, last, self._batch)
        stops = [min(start + self._batch, last) for start in starts]
        return Step(_dealt(len(starts), self._world_size), starts, stops)


class ShardedRows(Schedule):
    """Rows that each rank owns by hand: a step takes one microbatch from every rank.

    Leaf r is rank r's. A rank whose rows have run out brings none; the leaf is absent.
    """

    def __init__(self, counts: Sequence[int], batch: int) -> None:
        if not any(counts):
            raise DataError("there are no rows to train on: every rank's shard is empty")
        self._counts = tuple(counts)
        self._batch = batch

    @property
    def steps(self) -> int:
        return -(-max(self._counts) // self._batch)

    @property
    def rows(self) -> int:
        return sum(self._counts)

    @property
    def has_partial_microbatch(self) -> bool:
        return any(count % self._batch for count in self._counts)

    def step(self, number: int) -> Step:
        starts = [min(number * self._batch, count) for count in self._counts]
        stops = [
            min(start + self._batch, count)
            for start, count in zip(starts, self._counts, strict=True)
        ]
        present = tuple(start < stop for start, stop in zip(starts, stops, strict=True))
        return Step(_one_each(present), starts, stops)


@lru_cache(maxsize=64)
def _dealt(leaves: int, world_size: int) -> SumPlan:
    return SumPlan.dealt(leaves, world_size)


@lru_cache(maxsize=64)
def _one_each(present: tuple[bool, ...]) -> SumPlan:
    ranges = tuple((rank, rank + here) for rank, here in enumerate(present))
    return SumPlan(len(present), ranges)
