"""What a job would do, found without doing it: the coordinator's spec, its rows and its plan."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from rlx.backends import BoundGraph
from rlx.dist import TrainSpec, count_rows, file_resolver, plan_microbatch
from rlx.job.build import data_roots, train_spec
from rlx.job.config import JobConfig


@dataclass(frozen=True)
class Inspection:
    """A job's spec, and what follows from it and from its files."""

    config: JobConfig
    spec: TrainSpec

    @cached_property
    def rows(self) -> int:
        """The rows of an epoch. Reads the files; raises `DataError` where they do not fit."""
        return count_rows(self.spec, file_resolver(data_roots(self.config)))

    @property
    def steps(self) -> int:
        """The steps of an epoch."""
        return -(-self.rows // self.spec.step_rows)

    def plan(self, rows: int | None = None) -> BoundGraph:
        """The plan of a microbatch of so many rows; of a whole one for None."""
        return plan_microbatch(self.spec, self.spec.batch if rows is None else rows)


def inspect_job(config: JobConfig) -> Inspection:
    """Load a job's model and check that it fits the job. Raises `ConfigError` or `UsageError`."""
    return Inspection(config, train_spec(config))
