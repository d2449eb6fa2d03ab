"""What one rank of a job does, from the specs to the result, over any transport."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from rlx.backends import fingerprint, fingerprint_digest
from rlx.dist import (
    EvaluationSpec,
    Progress,
    TrainMetrics,
    TrainSpec,
    evaluate,
    file_resolver,
    params_digest,
    recv_train,
    run_train,
    save_safetensors,
    ship_train,
)
from rlx.group import ProcessGroup

COORDINATOR = 0
_EVALUATION_LIMIT_BYTES = (1 << 30) + 4096

Observer: TypeAlias = Callable[[Progress], None]


@dataclass(frozen=True)
class Work:
    """What the coordinator brings: the run, perhaps an evaluation, and where to save."""

    train: TrainSpec
    evaluation: EvaluationSpec | None
    save: Path | None


@dataclass(frozen=True)
class Outcome:
    """What every rank knows at the end; the same everywhere but for the seconds."""

    metrics: TrainMetrics
    figures: dict[str, float]
    params: dict[str, np.ndarray]
    world_size: int
    backend: str
    device: str

    def summary(self, transport: str) -> dict[str, Any]:
        """The figures that `--json` prints."""
        return {
            "params_sha256": params_digest(self.params),
            "first_loss": self.metrics.first_loss,
            "last_loss": self.metrics.last_loss,
            "losses": list(self.metrics.losses),
            "samples": self.metrics.samples,
            "empty_steps": self.metrics.empty_steps,
            "world_size": self.world_size,
            "transport": transport,
            "lanes": self.metrics.lanes,
            "backend": self.backend,
            "fingerprint": fingerprint_digest(fingerprint(self.backend, self.device)),
            "wall_s": round(self.metrics.wall_s, 6),
            "compute_s": round(self.metrics.compute_s, 6),
            "comm_s": round(self.metrics.comm_s, 6),
            "evaluation": self.figures,
        }


def coordinate(
    work: Work, group: ProcessGroup, roots: list[Path], observer: Observer | None
) -> Outcome:
    """Rank 0: ship the specs, train, evaluate, save."""
    try:
        for rank in range(1, group.world_size):
            ship_train(group, rank, work.train)
            evaluation = b"" if work.evaluation is None else work.evaluation.to_bytes()
            group.send(rank, evaluation)
        outcome = _train(work.train, work.evaluation, group, roots, observer)
        if work.save is not None:
            metadata = {"rlx.spec_sha256": work.train.digest()}
            save_safetensors(work.save, outcome.params, metadata)
        # The others wait here, so that a save that fails is an error on every rank.
        group.barrier(name="finished")
        return outcome
    except BaseException as error:
        group.abort(error)
        raise


def work_for(group: ProcessGroup, roots: list[Path]) -> Outcome:
    """Any other rank: receive the specs, train, evaluate. It has no model code."""
    try:
        spec = recv_train(group, COORDINATOR)
        encoded = group.receive(COORDINATOR, limit_bytes=_EVALUATION_LIMIT_BYTES)
        evaluation = EvaluationSpec.from_bytes(encoded) if encoded else None
        outcome = _train(spec, evaluation, group, roots, None)
        group.barrier(name="finished")
        return outcome
    except BaseException as error:
        group.abort(error)
        raise


def _train(
    spec: TrainSpec,
    evaluation: EvaluationSpec | None,
    group: ProcessGroup,
    roots: list[Path],
    observer: Observer | None,
) -> Outcome:
    resolve = file_resolver(roots)
    metrics, params = run_train(spec, group, resolve=resolve, observer=observer)
    figures = {} if evaluation is None else evaluate(evaluation, params, group, resolve=resolve)
    return Outcome(metrics, figures, params, group.world_size, spec.backend, spec.device)
